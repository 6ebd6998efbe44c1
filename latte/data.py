"""Loading and augmenting data: ``DataLoader(images, labels, batch_size=64, transforms=[Flip(), Crop(32, pad=4)])``."""

from latte.model.calls import answer_wrong_calls
from latte.runtime.augmenting import Crop, Flip, Normalise
from latte.runtime.loading import DataLoader

__all__ = ["Crop", "DataLoader", "Flip", "Normalise"]

answer_wrong_calls(globals(), __all__)
