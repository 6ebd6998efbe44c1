"""The tournament ranker: a small net that says which of two variants is faster (PolyDL, section 4.2.2).

It is trained by ``latte.tools.tune.ranker``; here its weights are read, and it is computed with NumPy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from swirl.errors import LatteError
from swirl.target.targets import Target
from swirl.tune.polydl.caches import LEVELS, Statistics
from swirl.tune.stored import stored

LAYERS = ((64, "relu"), (32, "relu"), (16, "softsign"), (8, "relu"), (2, "softmax"))
"""Neurons and activation of each layer (figure 6)."""
THRESHOLD = 0.6
"""The output from which on a variant has won; neither has where both are below."""
INPUTS = 2 * len(LEVELS)


@dataclass(frozen=True)
class Ranker:
    """A trained ranker.

    Args:
        weights: of each layer, of shape (outputs, inputs); float32.
        biases: of each layer.
        card: what it was trained on, by whom it may be used, and how well it ranks what it has not seen.
    """

    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]
    card: Mapping[str, Any]

    def __post_init__(self) -> None:
        wanted = layer_shapes()
        found = [weights.shape for weights in self.weights]
        if found != wanted or [biases.shape for biases in self.biases] != [shape[:1] for shape in wanted]:
            raise LatteError(f"the weights of a ranker have the shapes {wanted}, not {found}")

    def outputs(self, pairs: np.ndarray) -> np.ndarray:
        """What the net says of pairs: how sure it is that the first, and the second one is faster.

        Args:
            pairs: of shape (pairs, 8), see :func:`pair`.

        Returns:
            of shape (pairs, 2); the sum of each row is 1.
        """
        values = np.asarray(pairs, np.float32)
        for weights, biases, (_, name) in zip(self.weights, self.biases, LAYERS, strict=True):
            values = ACTIVATIONS[name](values @ weights.T + biases)
        return values

    def wins(self, statistics: Sequence[Statistics]) -> list[int]:
        """How many of the others each variant wins against, each pair played in both orders."""
        count = len(statistics)
        if count < 2:
            return [0] * count
        places = [(a, b) for a in range(count) for b in range(count) if a != b]
        found = self.outputs(np.array([pair(statistics[a], statistics[b]) for a, b in places]))
        wins = [0] * count
        for (a, b), (first, second) in zip(places, found > THRESHOLD, strict=True):
            wins[a] += bool(first)
            wins[b] += bool(second)
        return wins

    def order(self, statistics: Sequence[Statistics]) -> list[int]:
        """The variants by wins, most first; among equals the one that comes first."""
        wins = self.wins(statistics)
        return sorted(range(len(wins)), key=lambda number: -wins[number])

    # --- files
    def written(self) -> str:
        """As JSON."""
        values = {
            "card": dict(self.card),
            "layers": [
                {
                    "weights": np.asarray(w, np.float64).round(7).tolist(),
                    "biases": np.asarray(b, np.float64).round(7).tolist(),
                }
                for w, b in zip(self.weights, self.biases, strict=True)
            ],
        }
        return json.dumps(values) + "\n"

    @classmethod
    def read(cls, text: str, location: str) -> Ranker:
        """A ranker from JSON.

        Raises:
            LatteError: it is damaged.
        """
        try:
            values = json.loads(text)
            weights = tuple(np.array(each["weights"], np.float32) for each in values["layers"])
            biases = tuple(np.array(each["biases"], np.float32) for each in values["layers"])
            return cls(weights, biases, dict(values["card"]))
        except (LatteError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise LatteError(
                f"the weights of the ranker are damaged: {error}",
                location=location,
                way_out="remove it, or train it again",
            ) from error


def layer_shapes() -> list[tuple[int, int]]:
    """Outputs and inputs of each layer."""
    inputs = [INPUTS, *(count for count, _ in LAYERS)]
    return [(count, before) for (count, _), before in zip(LAYERS, inputs, strict=False)]


def pair(first: Statistics, second: Statistics) -> list[float]:
    """The input of the net: the statistics of two variants, divided by their common sum."""
    total = sum(first) + sum(second)
    return [each / total if total else 0.0 for each in (*first, *second)]


def _softmax(values: np.ndarray) -> np.ndarray:
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    found: np.ndarray = raised / raised.sum(axis=-1, keepdims=True)
    return found


ACTIVATIONS = {
    "relu": lambda values: np.maximum(values, 0),
    "softsign": lambda values: values / (1 + np.abs(values)),
    "softmax": _softmax,
}


def weights_file(folder: Path, target: str) -> Path:
    """Where a folder has the ranker of a target."""
    return folder / f"polydl_ranker_{target}.json"


def load_ranker(target: Target, folders: Sequence[Path]) -> Ranker | None:
    """The ranker of a target: that in the first of the folders that has one, else the one that ships; None where none
    was trained.

    Args:
        target: what code is made for.
        folders: the first one first.

    Raises:
        LatteError: it is damaged.
    """
    paths = (weights_file(folder, target.name) for folder in folders)
    every = stored(paths, "swirl.tune.polydl", f"rankers/{target.name}.json")
    return next((Ranker.read(*each) for each in every), None)
