"""Ensembles: arrays of the same neuron, and layers with explicit loops."""

from __future__ import annotations

from typing import Any

from latte.model.calls import answer_wrong_calls
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import (
    AccuracyEnsemble,
    ActivationEnsemble,
    BatchSumEnsemble,
    DataEnsemble,
    LossEnsemble,
)
from latte.model.source_location import user_location
from swirl.errors import DeclarationError

__all__ = [
    "AccuracyEnsemble",
    "ActivationEnsemble",
    "BatchSumEnsemble",
    "DataEnsemble",
    "Ensemble",
    "EnsembleGroup",
    "LossEnsemble",
]


class EnsembleGroup:
    """Ensembles that stand for one layer: questions and commands go to the last. (A layer of ours is one ensemble.)

    Args:
        ensembles: one or more, those that are read first.
    """

    def __init__(self, *ensembles: Ensemble):
        if not ensembles or not all(isinstance(ensemble, Ensemble) for ensemble in ensembles):
            raise DeclarationError(f"a group needs ensembles, not {ensembles!r}", location=user_location())
        self.ensembles = list(ensembles)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("ensembles", "name"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.ensembles[-1], name)

    def __len__(self) -> int:
        return len(self.ensembles[-1])


answer_wrong_calls(globals(), __all__)
