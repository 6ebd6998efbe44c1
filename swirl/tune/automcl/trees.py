"""Boosted trees with NumPy: read, evaluated, and fitted to few hundred measurements (Friedman, *Greedy function
approximation: a gradient boosting machine*, 2001; with the gains of Chen and Guestrin, *XGBoost*, 2016)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

ROUNDS, DEPTH, RATE = 40, 4, 0.2
"""Trees of a fit, their depth, and what each adds."""
LEAST = 2
"""Rows of a leaf."""
RIDGE = 1.0
"""λ: what large values of leaves cost."""
PLACES = 32
"""Thresholds of a feature that are tried at the most: between as many quantiles."""

Gradients = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""First and second derivatives of a loss by the predictions."""


@dataclass(frozen=True)
class Tree:
    """A tree, whose node 0 is the root.

    Args:
        feature: of each node; -1 for a leaf.
        threshold: rows with at the most so much go left.
        left, right: numbers of the nodes below.
        value: of a leaf.
    """

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray


_FIELDS = ("feature", "threshold", "left", "right", "value")


@dataclass(frozen=True)
class Trees:
    """A sum of trees.

    Args:
        base: what is added.
        trees: the trees.
    """

    base: float
    trees: tuple[Tree, ...]

    @cached_property
    def _stacked(self) -> tuple[np.ndarray, ...]:
        """Features, thresholds, numbers of nodes below and values of all trees: (trees, nodes)."""
        nodes = max(len(tree.value) for tree in self.trees)

        def stacked(name: str) -> np.ndarray:
            return np.array([np.pad(getattr(tree, name), (0, nodes - len(tree.value))) for tree in self.trees])

        return tuple(map(stacked, _FIELDS))

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """The values of rows.

        Args:
            rows: (rows, features).
        """
        if not self.trees:
            return np.full(len(rows), self.base)
        feature, threshold, left, right, value = self._stacked
        tree, row = np.arange(len(self.trees))[:, None], np.arange(len(rows))[None, :]
        at = np.zeros((len(self.trees), len(rows)), dtype=int)
        while np.any((tested := feature[tree, at]) >= 0):
            below = rows[row, np.maximum(tested, 0)] <= threshold[tree, at]
            at = np.where(tested >= 0, np.where(below, left[tree, at], right[tree, at]), at)
        return np.asarray(self.base + value[tree, at].sum(axis=0))

    def written(self) -> dict[str, Any]:
        """As a value of JSON; :meth:`read` has it back."""
        return {"base": self.base, "trees": [{f: getattr(tree, f).tolist() for f in _FIELDS} for tree in self.trees]}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Trees:
        """What :meth:`written` was.

        Raises:
            KeyError, TypeError, ValueError: it is damaged.
        """
        return cls(float(values["base"]), tuple(_tree(each) for each in values["trees"]))


def _tree(values: Mapping[str, Sequence[float]]) -> Tree:
    whole = [np.array(values[name], dtype=int) for name in ("feature", "left", "right")]
    numbers = [np.array(values[name], dtype=float) for name in ("threshold", "value")]
    count = len(whole[0])
    if not count or {each.shape for each in (*whole, *numbers)} != {(count,)}:
        raise ValueError("the nodes of a tree have several lengths")
    inner = whole[0] >= 0
    for below in whole[1:]:  # each node is below one that comes before it: evaluating ends
        if np.any(below[inner] <= np.flatnonzero(inner)) or np.any(below >= count):
            raise ValueError("the nodes of a tree are not in order")
    return Tree(whole[0], numbers[0], whole[1], whole[2], numbers[1])


# --- fitting ------------------------------------------------------------------------------------------------
def fitted(rows: np.ndarray, values: np.ndarray) -> Trees:
    """Regression: trees that come near to values.

    Args:
        rows: (rows, features); at least one.
        values: of the rows.
    """
    base = float(np.mean(values))

    def gradients(predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return predicted - values, np.ones(len(values))

    return _boosted(rows, base, gradients)


def ranked(rows: np.ndarray, values: np.ndarray) -> Trees:
    """Ranking: trees whose order is that of values; what they predict means nothing else. The loss is the logistic one
    of all pairs (Burges, *From RankNet to LambdaRank to LambdaMART*, 2010), which AutoTVM has XGBoost minimise.

    Args:
        rows: (rows, features); at least one.
        values: of the rows.
    """
    larger = (values[:, None] > values[None, :]).astype(float)  # [i, j]: i must be above j
    pairs = max(1.0, float(larger.sum()) / len(values))

    def gradients(predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wrong = 1 / (1 + np.exp(np.clip(predicted[:, None] - predicted[None, :], -30, 30)))
        push, curve = larger * wrong, (larger + larger.T) * wrong * (1 - wrong)
        return (push.sum(axis=0) - push.sum(axis=1)) / pairs, curve.sum(axis=1) / pairs

    return _boosted(rows, 0.0, gradients)


def _boosted(rows: np.ndarray, base: float, gradients: Gradients) -> Trees:
    predicted, trees = np.full(len(rows), base), []
    for _ in range(ROUNDS):
        first, second = gradients(predicted)
        tree = _grown(rows, first, second)
        trees.append(tree)
        predicted = predicted + Trees(0.0, (tree,)).predict(rows)
    return Trees(base, tuple(trees))


def _grown(rows: np.ndarray, first: np.ndarray, second: np.ndarray) -> Tree:
    """A tree that takes a step against the gradients."""
    nodes: list[list[float]] = []

    def grow(chosen: np.ndarray, depth: int) -> int:
        number = len(nodes)
        total = first[chosen].sum(), second[chosen].sum()
        nodes.append([-1, 0.0, 0, 0, float(-RATE * total[0] / (total[1] + RIDGE))])
        found = _split(rows[chosen], first[chosen], second[chosen]) if depth else None
        if found is not None:
            feature, threshold = found
            below = rows[chosen, feature] <= threshold
            left = grow(chosen[below], depth - 1)
            nodes[number] = [feature, threshold, left, grow(chosen[~below], depth - 1), 0.0]
        return number

    grow(np.arange(len(rows)), DEPTH)
    feature, threshold, left, right, value = np.array(nodes).T
    return Tree(feature.astype(int), threshold, left.astype(int), right.astype(int), value)


def _split(rows: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[int, float] | None:
    """The feature and the threshold that gain most; None where none gains."""
    total = first.sum() ** 2 / (second.sum() + RIDGE)
    best, found = 1e-9, None
    for feature in range(rows.shape[1]):
        order = np.argsort(rows[:, feature], kind="stable")
        ordered = rows[order, feature]
        ends = np.flatnonzero(np.diff(ordered) > 0) + 1  # rows before each threshold
        ends = ends[(ends >= LEAST) & (ends <= len(rows) - LEAST)]
        if not len(ends):
            continue
        if len(ends) > PLACES:
            ends = ends[np.linspace(0, len(ends) - 1, PLACES).astype(int)]
        low, curve = np.cumsum(first[order])[ends - 1], np.cumsum(second[order])[ends - 1]
        high, rest = first.sum() - low, second.sum() - curve
        gains = low**2 / (curve + RIDGE) + high**2 / (rest + RIDGE) - total
        place = int(np.argmax(gains))
        if gains[place] > best:
            end = ends[place]
            best, found = float(gains[place]), (feature, float((ordered[end - 1] + ordered[end]) / 2))
    return found
