"""What did not fit where arrays were loaded by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

Shape = tuple[int, ...]


class IncompatibleKeys(NamedTuple):
    """What ``strict=False`` has left out, named as PyTorch's and Hugging Face's loaders do. False where all did fit.

    Args:
        missing_keys: what the net has, and was not given: it is as it was.
        unexpected_keys: what was given, and the net does not have.
        mismatched_keys: name, shape that was given, and shape in the net: it is as it was.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]
    mismatched_keys: list[tuple[str, Shape, Shape]]

    def __bool__(self) -> bool:
        return any(self)

    def with_others(self, others: IncompatibleKeys) -> IncompatibleKeys:
        """These and others."""
        return IncompatibleKeys(
            self.missing_keys + others.missing_keys,
            self.unexpected_keys + others.unexpected_keys,
            self.mismatched_keys + others.mismatched_keys,
        )


def incompatible(
    found: Mapping[str, np.ndarray],
    own: Mapping[str, np.ndarray],
    needed: Iterable[str] | None = None,
) -> IncompatibleKeys:
    """What of the arrays that were found does not fit those that are there, by names, shapes and types.

    Args:
        found: given arrays.
        own: that are there.
        needed: those of the own ones that are missing where they are not given; all by default.
    """
    both = [name for name in own if name in found]
    unlike = [n for n in both if (found[n].shape, found[n].dtype) != (own[n].shape, own[n].dtype)]
    return IncompatibleKeys(
        [name for name in (own if needed is None else needed) if name not in found],
        [name for name in found if name not in own],
        [(name, found[name].shape, own[name].shape) for name in unlike],
    )
