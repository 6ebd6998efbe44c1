"""Reverse-mode differentiation of programs of loop nests.

``derive`` follows the modules in this order: ``winners`` (max reductions save their index), ``prepare``
(single assignment), ``reverse`` with ``partials``, ``terms`` and ``values`` (statement by statement),
``gather`` (fewer passes over a gradient), ``finish`` (zeroing, names).
"""

from latte.autodiff.derive import Derived, derive, strip_stop_gradient

__all__ = ["Derived", "derive", "strip_stop_gradient"]
