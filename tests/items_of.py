"""Nets without kernels on fewer items than a whole batch: what their finished programs compute, run as Python, beside
what is lowered for just so many items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from latte.autodiff.differentiated import differentiate, layer_programs
from latte.frontend.lowered import lower_layers
from latte.model.ensemble_kinds import is_loss
from latte.model.graph import Graph
from latte.net import Net
from latte.planning.plan import make_plan
from latte.planning.units import Unit
from latte.runtime.executable import execution_order
from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.execute import execute
from swirl.ir.item_numbers import value_of
from swirl.ir.nest import Program
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.schedule.pipeline import AFTER_RECIPE
from swirl.target.targets import get_target

BEFORE_PHYSICAL = len(AFTER_RECIPE) - [name for name, _ in AFTER_RECIPE].index("items") - 1
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Step:
    """A phase of a unit after the pass that bounds loops over items: references are still logical."""

    unit: Unit
    phase: str
    program: Program


def finished(net: Net, target: str) -> list[Step]:
    """The programs of a net as they are scheduled for a target, in the order of the units."""
    graph = net.graph
    with Memos() as memos, KeptSchedules(memos, get_target(target)) as kept:
        found = differentiate(graph, lower_layers(graph, net.batch_size))
        plan = make_plan(graph, found, kept)
        return [
            Step(item.unit, phase, item.stages(phase, plan.state, plan.target)[-1 - BEFORE_PHYSICAL].program)
            for item in plan.scheduled
            for phase in item.result.stages
        ]


def fixed(steps: Sequence[Step]) -> dict[tuple[str, str], str]:
    """Why phases are right for whole batches alone, by unit and phase."""
    return {(step.unit.name, step.phase): step.program.fixed for step in steps if step.program.fixed}


def run(
    programs: Sequence[Program], arrays: Arrays, items: int, *, checking: bool = False, double: bool = False
) -> None:
    """Run programs one after the other on arrays by storage; those that are missing are made."""
    for program in programs:
        own = {}
        for name, buffer in program.buffers.items():
            if buffer.formula:
                own[name] = np.array([value_of(buffer.formula, items)]).astype(DTYPES[buffer.dtype])
            elif buffer.role != "temporary":
                array = arrays.setdefault(buffer.name, as_double(_unknown(buffer)) if double else _unknown(buffer))
                own[name] = array.reshape(buffer.shape)
                assert np.shares_memory(own[name], array)
        execute(program, own, checking=checking, **({"arithmetic": "float64"} if double else {}))


def as_double(array: np.ndarray) -> np.ndarray:
    """Floats in double precision; others as they are."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _unknown(buffer: Buffer) -> np.ndarray:
    """What memory holds before anything is computed: for floats NaN, for others a number that is no subscript."""
    dtype = np.dtype(DTYPES[buffer.dtype])
    return np.full(buffer.shape, np.nan if dtype.kind == "f" else 1 if dtype.kind == "b" else 2**30, dtype)


def given(graph: Graph, items: int, rows: int, seed: int = 0) -> Arrays:
    """Data, parameters and statistics: of ``rows`` items, of which those after the first ``items`` are unknown."""
    generator = np.random.default_rng(seed)
    arrays: Arrays = {}
    for ensemble in graph.ensembles:
        for name, spec in ensemble.fields(rows).items():
            if spec.role in ("param", "state", "constant"):
                arrays[spec.storage] = ensemble.initial(name, rows)
                if spec.role == "param":
                    arrays[spec.storage] += generator.normal(size=spec.shape, scale=0.1).astype(np.float32)
        if not ensemble.has_body and ensemble.kind == "data":
            spec = ensemble.fields(rows)["value"]
            arrays[spec.storage] = _unknown(spec.buffer)
            arrays[spec.storage][:items] = _data(graph, ensemble, (items, *spec.shape[1:]), spec.below, generator)
    for ensemble in graph.ensembles:  # what backward starts from
        top = not graph.has_gradient_reader(ensemble) and ensemble.has_body
        spec = ensemble.fields(rows)["grad"]
        if top and is_loss(ensemble):
            arrays[spec.storage] = np.full(1, ensemble.loss_weight, np.float32)
        elif top and ensemble.batched:
            arrays[spec.storage] = _unknown(spec.buffer)
            arrays[spec.storage][:items] = generator.normal(size=(items, *spec.shape[1:]))
    arrays |= {name: np.array([7], np.int32) for name in ("net.seed", "net.step")}
    arrays["net.accumulate"] = np.zeros(1, np.int32)
    return arrays


def _data(
    graph: Graph, layer: object, shape: tuple[int, ...], below: int | None, generator: np.random.Generator
) -> np.ndarray:
    labels = any(edge.is_label and edge.sink.class_labels for edge in graph.readers(layer))  # type: ignore[arg-type]
    if below is not None or labels:
        return generator.integers(0, below or 4, shape).astype(np.int32 if below is not None else np.float32)
    return generator.normal(size=shape).astype(np.float32)


def check(whole: Net, steps: Sequence[Step], exact: Net, phases: Sequence[str]) -> None:
    """Compare the phases of a net, run on fewer items, with those of one for just so many.

    Args:
        whole: the net for more items.
        steps: its programs.
        exact: the same net for as many as there are.
        phases: of the net: ``inference``, or ``forward`` and ``backward``.
    """
    items = exact.batch_size
    order = execution_order(steps)  # type: ignore[arg-type]
    got, wanted = given(whole.graph, items, whole.batch_size), given(exact.graph, items, items)
    for name, array in wanted.items():  # the same numbers
        if array.shape != got[name].shape:
            got[name][:items] = array
        else:
            got[name][...] = array
    layers = layer_programs(exact.graph, items)
    for phase in phases:
        run([step.program for step in order[phase]], got, items, checking=True)
        run(in_order(layers, phase), wanted, items)
    assert _compared(got, wanted) > len(exact.ensembles)


def in_order(layers: Sequence[object], phase: str) -> list[Program]:
    """The programs of a phase of a net, as its layers have them."""
    if phase != "backward":
        return [layer.programs[phase] for layer in layers if phase in layer.programs]  # type: ignore[attr-defined]
    parts = ("backward", "update")
    return [layer.programs[p] for layer in layers[::-1] for p in parts if p in layer.programs]  # type: ignore[attr-defined]


def _compared(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> int:
    """How many arrays have been found equal, but for rounding; of those with elements for each item, the first ones."""
    count = 0
    largest = max(
        float(np.abs(a).max(initial=0.0)) for name, a in wanted.items() if ".grad" in name or ".value" in name
    )
    for name, expected in wanted.items():
        if name not in got or name.startswith("net."):
            continue
        per_item = got[name].size * len(expected) // expected.size if got[name].size != expected.size else 0
        mine = got[name].reshape(per_item, -1)[: len(expected)] if per_item else got[name]
        mine, expected = mine.reshape(-1), expected.reshape(-1)
        if mine.dtype.kind != "f":
            assert np.array_equal(mine, expected), name
        else:
            # Terms of a sum may cancel: a bias of keys, by which attention does not change.
            scale = max(float(np.abs(expected).max(initial=0.0)), 0.01 * largest)
            worst = float(np.abs(mine - expected).max(initial=0.0))
            assert worst <= 2e-5 * scale, f"{name}: {worst / scale} of the largest value"  # a few thousand roundings
        count += 1
    return count


def poison(net: Net) -> None:
    """Let what memory holds of items that the current batch does not have be what no result may come from."""
    executable = net.executable
    for name, buffer in executable.buffers.items():
        array = None if name in executable.missing else executable.memory.known(name)
        if array is not None and buffer.items and array.shape[0] == buffer.items and array.dtype.kind == "f":
            array[executable.items :] = np.nan
