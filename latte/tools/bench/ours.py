"""This project's side of ``latte bench``: a case as a net, compiled, on data that it is given."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from latte import (
    BatchNormLayer,
    ConvLayer,
    ConvLayerNoBias,
    FullyConnectedLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
)
from latte.ensemble import Ensemble
from latte.planning.recipes import Recipes
from latte.tools.bench.cases import Case
from latte.tools.bench.levels import up_to
from latte.tools.bench.nets import BATCH_NORM_IN_BLOCKS, CHAIN_IN_BLOCKS, CONV_IN_BLOCKS
from latte.tools.bench.whole_nets import RUNS, Digits, PublishedNet, WholeNet, work
from latte.tools.library.entries import VOCABULARY, Arrays
from swirl.errors import CommandError
from swirl.measure.rates import Limits
from swirl.run.runner import Seen

IN_BLOCKS = {"bn": BATCH_NORM_IN_BLOCKS, "conv": CONV_IN_BLOCKS, "cbr": CHAIN_IN_BLOCKS}
"""Recipes for data in blocks of channels, as the layer before leaves them in a net."""


def declared(case: Case) -> tuple[Net, Ensemble, list[Ensemble]]:
    """A net of the layers of a case after a data layer, with gradients of their source."""
    net = Net(case.batch, seed=1)
    net.force_backward = True
    words: dict[str, Any] = {"dtype": "int32", "below": VOCABULARY} if case.reads_words else {}
    data = MemoryDataLayer(net, case.source, **words)
    return net, data, _members(net, data, case)


def has_recipe(case: Case) -> bool:
    """Whether one of the layers of a case has a recipe."""
    net, _, members = declared(case)
    return any(Recipes(net.graph).path(member) is not None for member in members)


class Layers:
    """The layers of a case after a data layer, with gradients of their source.

    Args:
        case: what to declare.
        threads: of OpenMP.
        target: by default the best that runs here.
        blocks: whether the source is blocked by channels, as it is inside of a net.
        level: which commands of the recipe of a layer, see :func:`latte.tools.bench.levels.up_to`; all by default.
        recipes: whether the layers have their recipes; otherwise they get the default schedule.

    Raises:
        CommandError: there is no recipe for blocks of this kind.
    """

    def __init__(
        self,
        case: Case,
        threads: int,
        target: str | None,
        blocks: bool,
        level: int | None = None,
        recipes: bool = True,
    ):
        if blocks and case.kind not in IN_BLOCKS:
            raise CommandError(f"{case.kind} has no source in blocks here", way_out="--layout plain")
        self.case, self.recipes = case, recipes
        self._declare(case, IN_BLOCKS[case.kind] if blocks else None)
        self.net.compile(threads=threads, target=target)
        if level is not None:
            with TemporaryDirectory() as folder:
                path = Path(folder) / f"level_{level}.py"
                path.write_text(up_to(self.net.explain(self.members[0]), level), encoding="utf-8")
                self._declare(case, path)
                self.net.compile(threads=threads, target=target)
        self.net.executable.pin_all()  # phases are timed by themselves
        self.limits = Limits(self.net.executable.plan.target, self.net.session.runner)

    def _declare(self, case: Case, recipe: Path | None) -> None:
        self.net, self.data, self.members = declared(case)
        for member in () if self.recipes else self.members:
            self.net.use_recipe(member, None)
        if recipe is not None:
            self.net.use_recipe(self.members if len(self.members) > 1 else self.members[0], recipe)

    @property
    def target(self) -> str:
        return self.net.executable.plan.target.name

    @property
    def seen(self) -> Seen:
        """What the threads have met so far."""
        return self.net.session.runner.seen

    @property
    def phases(self) -> list[str]:
        """Those that have kernels of their own, in order of execution."""
        order = self.net.executable.order
        return list(dict.fromkeys(kernel.phase for run in RUNS["step"] for kernel in order[run]))

    def parameters(self) -> Arrays:
        """By field: ``weights``, ``bias``, ``gamma``, ``beta``."""
        found = {}
        for layer in self.members:
            for name, spec in layer.fields().items():
                if spec.role == "param":
                    found[name] = getattr(layer, f"get_{name}")()
        return found

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Of the last value."""
        last = self.members[-1]
        return last.fields()["value"].shape

    def load(self, inputs: np.ndarray, gradient: np.ndarray) -> None:
        """Set the source, and the gradient of the value."""
        self.data.set_value(inputs)
        self.net.forward()
        self.members[-1].set_grad(gradient)
        self.given = inputs, gradient

    def results(self) -> Arrays:
        """Of one step: the value, the gradients of the source and of each parameter."""
        self._step()
        found = {"value": self.members[-1].get_value()}
        if not self.case.reads_words:
            found["gradient of the source"] = self.data.get_grad()
        for layer in self.members:
            for name, spec in layer.fields().items():
                if spec.role == "param":
                    found[f"gradient of {name}"] = getattr(layer, f"get_grad_{name}")()
        return self.case.compared(*self.given, found)

    def work(self, phase: str) -> tuple[int, int]:
        """Floating-point operations of a phase, and bytes that its kernels touch at the least."""
        return work(self.net, phase)

    def seconds(self, phase: str, runs: int) -> list[float]:
        """Of so many runs of a phase.

        Raises:
            CommandError: the phase is a part of another one, or has nothing to compute.
        """
        executable = self.net.executable
        kernels = {kernel.phase for run in RUNS[phase] for kernel in executable.order[run]}
        if phase != "step" and phase not in kernels:
            raise CommandError(f"{phase} is a part of another phase here, or empty", way_out="--phase step")
        found = []
        for _ in range(runs):
            start = perf_counter()
            if phase == "step":
                self._step()
                found.append(perf_counter() - start)
            elif {kernel.phase for kernel in executable.order[RUNS[phase][0]]} == {phase}:
                executable.run(RUNS[phase][0])
                found.append(perf_counter() - start)
            else:
                parts = executable.run_timed(RUNS[phase][0])
                found.append(sum(seconds for _, part, seconds in parts if part == phase))
        return found

    def _step(self) -> None:
        self.net.forward()
        self.net.clear_grad()
        self.net.backward()


def _members(net: Net, source: Ensemble, case: Case) -> list[Ensemble]:
    window: dict[str, Any] = {"kernel": case.kernel, "stride": case.stride, "pad": case.kernel // 2}
    if case.tried is not None:
        return [case.tried.declare(net, source)]
    match case.kind:
        case "bn":
            return [BatchNormLayer(net, source)]
        case "bn-relu":
            norm = BatchNormLayer(net, source)
            return [norm, ReLULayer(net, norm)]
        case "relu":
            return [ReLULayer(net, source)]
        case "pool":
            window["pad"] = (case.kernel - 1) // 2
            return [MaxPoolingLayer(net, source, **window, ceil_mode=False, clamp=False)]
        case "conv":
            return [ConvLayer(net, source, num_filters=case.filters, **window)]
        case "cbr":
            conv = ConvLayerNoBias(net, source, num_filters=case.filters, **window)
            norm = BatchNormLayer(net, conv)
            return [conv, norm, ReLULayer(net, norm)]
        case "fc":
            return [FullyConnectedLayer(net, source, case.filters)]
    raise AssertionError(case.kind)


Ours = Layers | WholeNet


def our_side(
    case: Case, threads: int, target: str | None, blocks: bool, level: int | None = None, recipes: bool = True
) -> Ours:
    """The side of a case; see :class:`Layers`."""
    if case.published is not None:
        return PublishedNet(case, threads, target)
    if case.kind == "net":
        return Digits(case, threads, target)
    return Layers(case, threads, target, blocks, level, recipes)
