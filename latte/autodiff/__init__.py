"""Reverse-mode differentiation of programs of loop nests.

``derive`` follows the modules in this order: ``winners`` (max reductions save their index), ``prepare`` (single
assignment), ``reverse`` with ``partials`` and ``terms`` (statement by statement), ``finish`` (zeroing, names).
"""

from latte.autodiff.derive import Derived, derive, strip_stop_gradient

__all__ = ["Derived", "derive", "strip_stop_gradient"]
