"""Searches of listed configurations: AutoMCL's (algorithm 2), and AutoTVM's, which it is compared with.

Both predict all configurations, or many, without making their programs; only those that are measured are made. A source
that lists none (:class:`swirl.tune.spaces.Listed`) is searched by regression on its draws.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from math import log2
from random import Random
from typing import Any

import numpy as np

from swirl.tune.automcl.trees import Trees, fitted, ranked
from swirl.tune.candidates import TRIES
from swirl.tune.searches import BATCH, Batch, Search, Source, Times, regression_search
from swirl.tune.spaces import Draw, Listed

CONFIGURATIONS, ANNEALING = "configurations", "annealing"
FEW = 4
"""Measurements below which nothing is fitted."""
CHAINS, STEPS = 64, 60
"""Of simulated annealing. AutoTVM has 128 chains of 500 steps, in spaces a hundred times as large."""
AUTOTVM = 64
"""Measurements from one fit of AutoTVM's to the next one."""
EXPLORED = 0.05
"""Of what AutoTVM measures, the share that is drawn at random."""
TRIED = 20
"""Random values that a step of a chain tries, of which some are of no configuration."""

Configuration = Mapping[str, Any]
Key = tuple[tuple[str, Any], ...]
Known = list[tuple[Configuration, float]]


def configuration_search(pool: Source, random: Random, batch: int | None = None) -> Search:
    """AutoMCL's algorithm 2: the first configurations at random; then, again and again, a regression on all that was
    measured, and those of all that are left which it takes for the fastest.

    Args:
        pool: what is drawn from.
        random: of the draws.
        batch: n of the algorithm: measurements from one fit to the next one; by default those that are compiled
            together.
    """
    if not isinstance(pool, Listed) or not pool.configurations():
        yield from regression_search(pool, random)
        return
    count, left, known = batch or BATCH, _Left(pool), Known()
    while True:
        chosen = left.some(count, random) if len(known) < FEW else left.fastest(_fit(left, known, fitted), count)
        if not chosen:
            return
        yield from _measured(chosen, known)


def annealing_search(pool: Source, random: Random, batch: int | None = None) -> Search:
    """AutoTVM's: simulated annealing on a model that ranks, and a few at random (T. Chen et al., *Learning to optimize
    tensor programs*, 2018, section 4). Arguments as of :func:`configuration_search`; AutoTVM's batch is
    :data:`AUTOTVM`."""
    if not isinstance(pool, Listed) or not pool.configurations():
        yield from regression_search(pool, random)
        return
    count, left, known = batch or BATCH, _Left(pool), Known()
    while True:
        chosen: list[Draw] = []
        if len(known) >= FEW:
            explored = sum(random.random() < EXPLORED for _ in range(count))
            chosen = left.annealed(_fit(left, known, ranked), count - explored, random)
        chosen += left.some(count - len(chosen), random)
        if not chosen:
            return
        yield from _measured(chosen, known)


def _fit(left: _Left, known: Known, fit: Callable[[np.ndarray, np.ndarray], Trees]) -> Trees:
    """A model of the logarithms of seconds."""
    return fit(left.encoder.rows(each for each, _ in known), np.log([seconds for _, seconds in known]))


def _measured(chosen: Sequence[Draw], known: Known) -> Generator[Batch, Times, None]:
    """Yield what was chosen, in batches that are compiled together; what is sent back is known then."""
    for start in range(0, len(chosen), BATCH):
        some = chosen[start : start + BATCH]
        times = yield some
        known += [(d.point.knobs, s) for d, s in zip(some, times, strict=True) if s is not None]


class Encoder:
    """Configurations as rows of numbers: logarithms of sizes, and one place for each word.

    Args:
        configurations: all that there are.
    """

    def __init__(self, configurations: Iterable[Configuration]):
        self.values: dict[str, dict[Any, None]] = {}
        for each in configurations:
            for name, value in each.items():
                self.values.setdefault(name, {})[value] = None

    def row(self, configuration: Configuration) -> list[float]:
        """One of them; a knob that it does not have is 0."""
        found: list[float] = []
        for name, values in self.values.items():
            value = configuration.get(name)
            if any(isinstance(each, str) for each in values):
                found += [float(value == each) for each in values]
            else:
                found.append(log2(1 + value) if value is not None else 0.0)
        return found

    def rows(self, configurations: Iterable[Configuration]) -> np.ndarray:
        """(configurations, features)."""
        return np.array([self.row(each) for each in configurations])


class _Left:
    """What is left of a source's configurations.

    Args:
        pool: the source.
    """

    def __init__(self, pool: Listed):
        self._pool = pool
        self._every: dict[Key, Configuration] = {_key(each): each for each in pool.configurations()}
        self._keys = list(self._every)
        self._left = dict.fromkeys(self._keys)
        self.encoder = Encoder(self._every.values())
        self._rows = {key: self.encoder.row(each) for key, each in self._every.items()}

    def some(self, count: int, random: Random) -> list[Draw]:
        """So many at random, or all that are left."""
        keys = list(self._left)
        random.shuffle(keys)
        return self._taken(keys, count)

    def fastest(self, model: Trees, count: int) -> list[Draw]:
        """Those for which a model predicts least."""
        keys = list(self._left)
        return self._taken([keys[place] for place in np.argsort(self._predicted(model, keys), kind="stable")], count)

    def annealed(self, model: Trees, count: int, random: Random) -> list[Draw]:
        """Those with the least prediction that chains of simulated annealing have come by."""
        if not self._left or count < 1:
            return []
        chains = [random.choice(self._keys) for _ in range(CHAINS)]
        values = self._predicted(model, chains)
        spread = float(np.ptp(values)) or 1.0  # what a model that ranks predicts has no unit
        seen: dict[Key, float] = {}
        for step in range(STEPS):
            seen.update((key, value) for key, value in zip(chains, values, strict=True) if key in self._left)
            heat = spread * (1 - step / STEPS) + 1e-9
            moved = [self._near(key, random) for key in chains]
            others = self._predicted(model, moved)
            accepted = np.array([random.random() for _ in chains]) < np.exp(np.minimum(0.0, (values - others) / heat))
            chains = [new if taken else old for old, new, taken in zip(chains, moved, accepted, strict=True)]
            values = np.where(accepted, others, values)
        return self._taken(sorted(seen, key=lambda key: seen[key]), count)

    def _near(self, key: Key, random: Random) -> Key:
        """A configuration with another value of one knob; the same one where none was found."""
        for _ in range(TRIED):
            place = random.randrange(len(key))
            name, _value = key[place]
            other = (*key[:place], (name, random.choice(list(self.encoder.values[name]))), *key[place + 1 :])
            if other != key and other in self._every:
                return other
        return key

    def _predicted(self, model: Trees, keys: Sequence[Key]) -> np.ndarray:
        return model.predict(np.array([self._rows[key] for key in keys])) if keys else np.zeros(0)

    def _taken(self, keys: Iterable[Key], count: int) -> list[Draw]:
        """The points of the first so many that are legal; those that are not are left out, for good. Fewer where many
        in a row are not."""
        found: list[Draw] = []
        refused = 0
        for key in keys:
            if len(found) >= count or refused >= TRIES:
                break
            del self._left[key]
            draw = self._pool.at(self._every[key])
            refused = 0 if draw is not None else refused + 1
            if draw is not None:
                found.append(draw)
        return found


def _key(configuration: Configuration) -> Key:
    return tuple(configuration.items())
