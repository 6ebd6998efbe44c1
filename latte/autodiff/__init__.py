"""Reverse-mode differentiation of programs of loop nests.

``derive`` follows the modules in this order: ``argmax`` (max reductions save their index), ``prepare``
(single assignment), ``reverse`` with ``partials``, ``adjoint_terms``, ``values`` and ``recovered`` (statement by
statement), ``gather`` (fewer passes over a gradient), ``finish`` (zeroing, names). Where a needed value has been
overwritten and ``saved`` has no buffer for it, everything is repeated with ``tapes``: one value is kept for each
iteration.
"""

from latte.autodiff.derive import Derived, derive, strip_stop_gradient

__all__ = ["Derived", "derive", "strip_stop_gradient"]
