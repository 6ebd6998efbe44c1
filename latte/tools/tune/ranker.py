"""The tournament ranker of PolyDL (section 4.2.2), declared in Latte and trained from the logs of searches.

What it learns is which of two variants is faster, from the bytes of working sets that each level of the memory
hierarchy serves. :mod:`swirl.tune.polydl.ranker` computes it where variants are ranked. Here it is also compared, net
by net, with what it has not seen: a net's layers are alike, so that layers of one net in both halves would say little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean

import numpy as np

from latte import FullyConnectedLayer, MemoryDataLayer, Net, ReLULayer, SoftmaxLossLayer
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.layers.arguments import one_to_one
from latte.neuron import Neuron
from latte.solver import Adam
from swirl.errors import LatteError
from swirl.tune.log import CandidateLine, SubjectLine, read_log
from swirl.tune.polydl.caches import LEVELS, Statistics
from swirl.tune.polydl.ranker import INPUTS, LAYERS, THRESHOLD, Ranker, pair

ALIKE = 1.1
"""Layers whose slowest variant takes less than so many times as long as the fastest are left out: any pick is right."""
NOISE = 1.02
"""Pairs whose times differ by less are not trained on."""
MOST_PAIRS = 2000
"""Of a layer: a product with hundreds of variants would outweigh all convolutions."""
BATCH, RATE = 200, 1e-3
"""Pairs of a step, and the learning rate of Adam; neither is in the paper."""


# --- logs ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Tried:
    """A variant that was measured.

    Args:
        statistics: see :data:`swirl.tune.polydl.caches.LEVELS`.
        cost: by equation 1.
        time: beside that of the known schedule of the layer.
        default: whether it has the default order of loops.
    """

    statistics: Statistics
    cost: float
    time: float
    default: bool


@dataclass(frozen=True)
class Layer:
    """The variants of a layer.

    Args:
        net: that it is of.
        name: of it, in the net.
        measured_on: target, threads and processor.
        tried: at least two.
    """

    net: str
    name: str
    measured_on: str
    tried: tuple[Tried, ...]

    @property
    def spread(self) -> float:
        """How many times as long as the fastest one the slowest one takes."""
        times = [each.time for each in self.tried]
        return max(times) / min(times)


def read_layers(path: Path) -> list[Layer]:
    """The layers of a log, or of a folder with one, that have variants of PolyDL. A layer that is called ``net/name``
    in the log is of that net, another one of a net of its own."""
    subjects: dict[str, SubjectLine] = {}
    found: dict[str, dict[str, Tried]] = {}
    for line in read_log(path):
        if isinstance(line, SubjectLine):
            subjects[line.subject] = line
        elif isinstance(line, CandidateLine) and line.ratio is not None and "statistics" in line.knobs:
            statistics = tuple(float(each) for each in line.knobs["statistics"])
            if len(statistics) == len(LEVELS):
                default = bool(line.knobs.get("default", False))
                made = Tried(statistics, float(line.knobs.get("cost", 0.0)), line.ratio, default)
                found.setdefault(line.subject, {})[line.key] = made
    layers = []
    for key, tried in found.items():
        subject = subjects.get(key)
        if subject is not None and len(tried) > 1:
            net, _, name = subject.layer.rpartition("/")
            measured_on = f"{subject.target}, {subject.threads} threads, {subject.machine}"
            layers.append(Layer(net or subject.layer, name, measured_on, tuple(tried.values())))
    return layers


def layers_of(layers: Iterable[Layer]) -> list[Layer]:
    """Those whose variants differ enough to tell good picks from bad ones."""
    return [each for each in layers if each.spread >= ALIKE]


# --- training -----------------------------------------------------------------------------------------------
class SoftsignNeuron(Neuron):
    """``x / (1 + |x|)``."""

    def forward(self) -> None:
        self.value = self.input / (1.0 + abs(self.input))


def _softsign(net: Net, source: Ensemble) -> Ensemble:
    return one_to_one(net, source, ActivationEnsemble(SoftsignNeuron, source.shape, ("k",), kind="softsign"))


@dataclass(frozen=True)
class RankerNet:
    """The net of figure 6, to be trained.

    Args:
        net: of :data:`BATCH` pairs.
        dense: its fully connected layers.
    """

    net: Net
    dense: tuple[Ensemble, ...]

    @classmethod
    def declared(cls, seed: int) -> RankerNet:
        """The net, compiled."""
        net = Net(BATCH, seed=seed)
        layer, label = MemoryDataLayer(net, (INPUTS,)), MemoryDataLayer(net, (1,))
        dense = []
        for count, activation in LAYERS:
            layer = FullyConnectedLayer(net, layer, count)
            dense.append(layer)
            if activation == "relu":
                layer = ReLULayer(net, layer)
            elif activation == "softsign":
                layer = _softsign(net, layer)
        SoftmaxLossLayer(net, layer, label)
        net.compile()
        return cls(net, tuple(dense))

    def ranker(self, card: Mapping[str, object]) -> Ranker:
        """What it has learned."""
        weights = tuple(np.array(each.get_weights(), np.float32) for each in self.dense)
        biases = tuple(np.array(each.get_bias(), np.float32).reshape(-1) for each in self.dense)
        return Ranker(weights, biases, card)


def trained(layers: Sequence[Layer], epochs: int, seed: int, tell: Callable[[str], None]) -> Ranker:
    """The ranker for these layers, with a card that says how rankers trained without a net rank its layers.

    Args:
        layers: of logs; those that are alike are left out.
        epochs: of the training.
        seed: of weights, and of the draw and the order of pairs.
        tell: is told of what the user should know.

    Raises:
        LatteError: there is no layer with variants that differ; or they were measured on several machines.
    """
    chosen = layers_of(layers)
    if not chosen:
        raise LatteError(
            f"the logs have no layer whose variants differ by {ALIKE} times",
            way_out="python benchmarks/polydl.py convolutions --out FOLDER makes a log",
        )
    measured_on = sorted({each.measured_on for each in chosen})
    if len(measured_on) > 1:
        raise LatteError(f"the logs are of {'; '.join(measured_on)}", way_out="train a ranker for each")
    held_out = {}
    nets = sorted({each.net for each in chosen})
    for name in nets if len(nets) > 1 else ():
        rest = [each for each in chosen if each.net != name]
        own = [each for each in chosen if each.net == name]
        ranker = _trained(rest, epochs, seed, {})
        held_out[name] = {**compared(own, ranker)[name].values, "pairs right": round(pairs_right(own, ranker), 3)}
        tell(f"without {name}: {held_out[name]}")
    card: dict[str, object] = {
        "what": "which of two variants of a schedule is faster (PolyDL, section 4.2.2)",
        "measured on": measured_on[0],
        "trained on": {name: sum(each.net == name for each in chosen) for name in nets},
        "left out as alike": len(layers) - len(chosen),
        "variants": sum(len(each.tried) for each in chosen),
        "pairs": sum(len(_pairs(each, np.random.default_rng(seed))[1]) for each in chosen),
        "threshold": THRESHOLD,
        "training": f"Adam, {RATE}, {epochs} epochs of pairs in batches of {BATCH}, seed {seed}",
        "nets that rankers had not seen": held_out or "there is one net: nothing was held out",
    }
    return _trained(chosen, epochs, seed, card)


def _trained(layers: Sequence[Layer], epochs: int, seed: int, card: Mapping[str, object]) -> Ranker:
    generator = np.random.default_rng(seed)
    found = [_pairs(each, generator) for each in layers]
    inputs = np.concatenate([pairs for pairs, _ in found])
    labels = np.concatenate([first for _, first in found])
    if not len(labels):
        raise LatteError(f"no two variants differ by {NOISE} times", way_out="measure them on a machine that is idle")
    # Whole batches: each pair is drawn at least once an epoch.
    order = np.concatenate(
        [generator.permutation(len(labels)), generator.integers(0, len(labels), -len(labels) % BATCH)]
    )
    made = RankerNet.declared(seed)
    solver = Adam(made.net, learning_rate=RATE)
    made.net.fit(inputs[order], labels[order], solver=solver, epochs=epochs, progress=False)
    return made.ranker(card)


def _pairs(layer: Layer, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of shape (pairs, 8), and labels: 0 where the first variant is faster, 1 where the second one is."""
    places = [
        (a, b)
        for a in range(len(layer.tried))
        for b in range(len(layer.tried))
        if max(layer.tried[a].time, layer.tried[b].time) >= NOISE * min(layer.tried[a].time, layer.tried[b].time)
    ]
    if len(places) > MOST_PAIRS:
        places = [places[number] for number in generator.choice(len(places), MOST_PAIRS, replace=False)]
    tried = layer.tried
    inputs = [pair(tried[a].statistics, tried[b].statistics) for a, b in places]
    labels = [int(tried[a].time > tried[b].time) for a, b in places]
    return np.array(inputs, np.float32).reshape(-1, INPUTS), np.array(labels, np.int64)


# --- comparing ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Compared:
    """Speeds of what is picked first, beside the fastest variant; geometric means over layers.

    Args:
        layers: how many.
        chance: of a random variant, in the mean.
        default: the default order; 0 where no log has it.
        equation: of equation 1.
        ranker: of the ranker; 0 where there is none.
    """

    layers: int
    chance: float
    default: float
    equation: float
    ranker: float

    @property
    def values(self) -> dict[str, float]:
        """For a card."""
        found = {"chance": self.chance, "default order": self.default, "equation 1": self.equation}
        return {name: round(value, 3) for name, value in {**found, "ranker": self.ranker}.items()}


def compared(layers: Sequence[Layer], ranker: Ranker | None) -> dict[str, Compared]:
    """By net; layers that are alike should not be among them."""
    found = {}
    for name in sorted({each.net for each in layers}):
        own = [each for each in layers if each.net == name]
        shares = [_picks(each, ranker) for each in own]
        means = []
        for column in zip(*shares, strict=True):
            known = [each for each in column if each]
            means.append(geometric_mean(known) if known else 0.0)
        found[name] = Compared(len(own), *means)
    return found


def _picks(layer: Layer, ranker: Ranker | None) -> tuple[float, float, float, float]:
    """The speeds of :class:`Compared`."""
    tried = sorted(layer.tried, key=lambda each: each.cost)
    best = min(each.time for each in tried)
    default = next((best / each.time for each in tried if each.default), 0.0)
    picked = 0.0
    if ranker is not None:
        picked = best / tried[ranker.order([each.statistics for each in tried])[0]].time
    return fmean(best / each.time for each in tried), default, best / tried[0].time, picked


def pairs_right(layers: Sequence[Layer], ranker: Ranker) -> float:
    """Of the pairs of layers whose times differ, the share of which the ranker's larger output is right."""
    right = every = 0
    for layer in layers:
        inputs, labels = _pairs(layer, np.random.default_rng(0))
        if len(labels):
            right += int((ranker.outputs(inputs).argmax(axis=1) == labels).sum())
            every += len(labels)
    return right / every if every else 0.0
