"""Transforms of images, (items, channels, rows, columns), for :class:`latte.runtime.loading.DataLoader`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from latte.model.checks import check_unmasked, is_integer, is_number
from latte.model.source_location import user_location
from latte.runtime.data import UNREADABLE, as_array, check_array, check_finite, converted
from swirl.errors import DataError

Numbers = float | Sequence[float] | np.ndarray
"""One number, or one for each channel."""


def _images(images: np.ndarray, what: str) -> np.ndarray:
    if images.ndim != 4:
        raise DataError(
            f"{what} needs images of shape (items, channels, rows, columns), not {images.shape}",
            location=user_location(),
        )
    return images


class Flip:
    """Mirrors each image with a probability, from left to right (or upside down).

    Args:
        probability: 0 … 1.
        vertical: whether upside down.

    Raises:
        DataError: for a wrong type or value.
    """

    def __init__(self, probability: float = 0.5, *, vertical: bool = False):
        if not is_number(probability) or isinstance(probability, bool) or not 0 <= probability <= 1:
            raise DataError(
                f"the probability must be a number from 0 to 1, not {probability!r}", location=user_location()
            )
        if not isinstance(vertical, bool):
            raise DataError(f"vertical must be True or False, not {vertical!r}", location=user_location())
        self.probability, self.vertical = float(probability), vertical

    def __call__(self, images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        chosen = generator.random(len(images)) < self.probability
        result = _images(images, "Flip").copy()
        result[chosen] = result[chosen][:, :, ::-1] if self.vertical else result[chosen][..., ::-1]
        return result


class Crop:
    """Cuts a part of each image out, at a random place.

    Args:
        size: rows and columns of the part, or one number for both.
        pad: zeros that are put around the image first, on all sides.
        center: whether the part is the middle one instead (for evaluation).

    Raises:
        DataError: for a wrong type or value.
    """

    def __init__(self, size: int | tuple[int, int], *, pad: int = 0, center: bool = False):
        both = size if isinstance(size, (tuple, list)) else (size, size)
        if len(both) != 2 or not all(is_integer(extent) and extent >= 1 for extent in both):
            raise DataError(
                f"the size must be one or two whole numbers, at least 1, not {size!r}", location=user_location()
            )
        if not is_integer(pad) or pad < 0:
            raise DataError(f"pad must be a whole number, at least 0, not {pad!r}", location=user_location())
        if not isinstance(center, bool):
            raise DataError(f"center must be True or False, not {center!r}", location=user_location())
        self.size, self.pad, self.center = (int(both[0]), int(both[1])), int(pad), center

    def __call__(self, images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        sides = ((0, 0), (0, 0), (self.pad, self.pad), (self.pad, self.pad))
        padded = np.pad(_images(images, "Crop"), sides)
        room = [have - wanted for have, wanted in zip(padded.shape[2:], self.size, strict=True)]
        if min(room) < 0:
            raise DataError(
                f"Crop: images of {images.shape[2:]} with {self.pad} zeros around are smaller than {self.size}",
                location=user_location(),
            )
        if self.center:
            places = np.tile([extent // 2 for extent in room], (len(images), 1))
        else:
            places = np.stack([generator.integers(extent + 1, size=len(images)) for extent in room], axis=1)
        parts = np.lib.stride_tricks.sliding_window_view(padded, self.size, axis=(2, 3))
        return parts[np.arange(len(images)), :, places[:, 0], places[:, 1]]


class Normalise:
    """``(images - mean) / deviation``, as float32.

    Args:
        mean, deviation: one number, or one for each channel; deviations are greater than 0.

    Raises:
        DataError: for a wrong type or value.
    """

    def __init__(self, mean: Numbers, deviation: Numbers = 1.0):
        self.mean, self.deviation = _by_channel("mean", mean), _by_channel("deviation", deviation)
        if (self.deviation <= 0).any():
            raise DataError(f"deviations must be greater than 0, not {deviation!r}", location=user_location())

    @classmethod
    def of(cls, images: Any) -> Normalise:
        """Means and deviations of a data set's channels (those that do not vary get the deviation 1).

        Raises:
            DataError: these are not images, there are none, or they have NaN or infinity.
        """
        array = _images(check_array(images, None, "Normalise.of"), "Normalise.of")
        if array.size == 0:
            raise DataError(f"Normalise.of needs at least one image, not {array.shape}", location=user_location())
        check_finite({"images": array})
        mean = np.mean(array, axis=(0, 2, 3), dtype=np.float64)
        deviation = np.std(array, axis=(0, 2, 3), dtype=np.float64)
        return cls(np.asarray(mean), np.where(deviation > 0, deviation, 1.0))

    def __call__(self, images: np.ndarray, generator: np.random.Generator | None = None) -> np.ndarray:
        channels = _images(images, "Normalise").shape[1]
        for values in (self.mean, self.deviation):
            if len(values) not in (1, channels):
                raise DataError(
                    f"Normalise has numbers for {len(values)} channels, the images have {channels}",
                    location=user_location(),
                )
        mean, deviation = (values[:, None, None] for values in (self.mean, self.deviation))
        return ((images.astype(np.float32) - mean) / deviation).astype(np.float32)


def _by_channel(name: str, values: Any) -> np.ndarray:
    check_unmasked(**{name: values})
    try:
        given = np.atleast_1d(as_array(values))
    except UNREADABLE:
        given = np.zeros(0)
    # A copy: what the caller does with the array later is not checked.
    array = np.array(converted(given, np.float32) if given.dtype.kind in "fiub" else (), np.float32)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise DataError(f"{name} must be a number, or one for each channel, not {values!r}", location=user_location())
    return array
