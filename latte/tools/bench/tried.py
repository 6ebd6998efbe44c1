"""A layer that ``latte bench`` tries by its name, beside the same lines in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from latte.ensemble import Ensemble
from latte.net import Net
from latte.tools.library.entries import Definition, Measured


@dataclass(frozen=True, kw_only=True)
class Tried(Measured):
    """A layer.

    Args:
        declare: adds it to a net, after a source.
        computed: the same in PyTorch: ``computed(torch, x, **parameters)``, parameters by the names of their fields.
    """

    declare: Callable[[Net, Ensemble], Ensemble]
    computed: Definition
