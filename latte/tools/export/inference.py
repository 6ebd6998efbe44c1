"""Inference of a net for one batch size on one target, as an exported program has it: its kernels in order, and a place
for each of their arrays, in the file of weights or in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from latte.compiling import planned_inference
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import DataEnsemble
from latte.planning.memory import ALIGNMENT, LEARNED, MemoryPlan, rounded
from latte.planning.uses import Use, Uses
from latte.runtime.arranging import arranged
from latte.runtime.executable import net_buffers
from latte.runtime.kernels import GeneratedPhase
from latte.tools.export.learned import Learned
from swirl.build.jit import Progress
from swirl.build.translation_unit import TranslationUnit
from swirl.config import settings
from swirl.errors import DataError, LatteError
from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.item_numbers import value_of
from swirl.ir.phases import INFERENCE
from swirl.run.runner import Section, sections
from swirl.target.targets import Target


@dataclass(frozen=True)
class Place:
    """Where an array begins.

    Args:
        region: the weights of the target, which nobody changes, or the memory of whoever runs it.
        offset: in bytes, from the beginning of the region.
    """

    region: Literal["weights", "memory"]
    offset: int


@dataclass(frozen=True)
class Dimension:
    """One dimension of the caller's arrays, or several that follow each other in memory; element ``i`` is at ``j = i +
    before``: ``j * stride``, or ``j // block * stride + j % block * inner`` if it is blocked.

    Args:
        extent: of the caller's array.
        before: elements of the halo.
        stride: in elements, of a block if it is blocked.
        block: elements in a block; 0: it is not blocked.
        inner: in elements, within a block.
    """

    extent: int
    before: int
    stride: int
    block: int = 0
    inner: int = 0


@dataclass(frozen=True)
class Tensor:
    """An array that a caller gives or gets.

    Args:
        name: of its layer.
        dtype: of its elements.
        shape: of an item.
        below: integers are from 0 to the one before; None: any.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    below: int | None = None


@dataclass(frozen=True)
class Step:
    """A kernel, and the arrays of its pointer table."""

    kernel: TranslationUnit
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Number:
    """A number that depends on how many items there are.

    Args:
        place: in memory.
        values: where its values for 1, 2, … items follow each other in the weights.
        nbytes: of each.
    """

    place: Place
    values: Place
    nbytes: int


@dataclass(frozen=True)
class Inference:
    """Inference for one batch size.

    Args:
        batch_size: the most items at a time.
        whole: why it is right for as many items alone, or "".
        steps: the kernels in order.
        sections: which of them all threads run together.
        inputs, outputs: where the caller's arrays are meanwhile, with their dimensions, items first.
        numbers: of items.
    """

    batch_size: int
    whole: str
    steps: Sequence[Step]
    sections: Sequence[Section]
    inputs: Sequence[tuple[Place, Sequence[Dimension]]]
    outputs: Sequence[tuple[Place, Sequence[Dimension]]]
    numbers: Sequence[Number]


@dataclass
class Arrays:
    """The weights of a target, and the memory that its programs need. Equal arrays are there once.

    Args:
        weights: in the order of the file.
        weight_bytes: all of them, each rounded up to 64.
        memory_bytes: the same of memory.
        begun: what programs change in the place of weights: (in the weights, in memory, bytes).
    """

    weights: list[np.ndarray] = field(default_factory=list)
    weight_bytes: int = 0
    memory_bytes: int = 0
    begun: list[tuple[Place, Place, int]] = field(default_factory=list)
    _known: dict[object, Place] = field(default_factory=dict)

    def weight(self, key: object, make: Callable[[], np.ndarray]) -> Place:
        """The place of an array in the weights.

        Args:
            key: equal for equal arrays.
            make: makes it, as it is in memory.
        """
        if key not in self._known:
            array = make()
            self._known[key] = Place("weights", self.weight_bytes)
            self.weights.append(array)
            self.weight_bytes += rounded(array.nbytes)
        return self._known[key]

    def memory(self, nbytes: int) -> Place:
        """A new place in memory, which is zero at the beginning."""
        place = Place("memory", self.memory_bytes)
        self.memory_bytes += rounded(nbytes)
        return place

    def state(self, key: object, weight: Place, nbytes: int) -> Place:
        """The place in memory of what begins as a weight, the same for all programs of a target."""
        if (key, "state") not in self._known:
            self._known[key, "state"] = place = self.memory(nbytes)
            self.begun.append((weight, place, nbytes))
        return self._known[key, "state"]

    def section(self) -> bytes:
        """The weights as bytes, little-endian, each array at its place."""
        found = bytearray(self.weight_bytes)
        at = 0
        for array in self.weights:
            found[at : at + array.nbytes] = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            at += rounded(array.nbytes)
        return bytes(found)


def inference_of(
    what: Learned,
    batch_size: int,
    target: Target,
    inputs: Sequence[DataEnsemble],
    outputs: Sequence[Ensemble],
    arrays: Arrays,
    on_stage: Progress | None = None,
) -> Inference:
    """Inference of a net for one batch size.

    Args:
        what: the net.
        batch_size: the most items at a time.
        target: what code is made for.
        inputs: the data layers that the outputs depend on.
        outputs: the layers that are asked for.
        arrays: of the target; those of this program are added.
        on_stage: told of every layer or chain that is scheduled.

    Raises:
        DataError: an output is fused away.  LatteError: the net cannot be compiled.
    """
    graph = what.net.graph
    plan, every = planned_inference(graph, batch_size, target, on_stage)
    wanted = [f"{layer.name}.value" for layer in outputs]
    _check_stored(every, wanted)
    uses = Uses(plan.programs)
    steps = needed(every, [_use(uses, step) for step in every], wanted)
    buffers = net_buffers(graph, batch_size, steps, plan.layouts)
    order, memory = arranged(graph, plan, buffers, {"forward": [], INFERENCE: steps, "backward": []})
    changed = set().union(*(_use(uses, step).changed for step in steps))
    given = [f"{layer.name}.value" for layer in inputs]
    places = _Places(what, batch_size, buffers, memory, arrays, changed, {*given, *wanted})
    numbered = enumerate(order[INFERENCE], start=memory.timelines[INFERENCE].phases[INFERENCE].start)
    return Inference(
        batch_size,
        next((f"{step.unit.name}: {step.fixed}" for step in steps if step.fixed), "") if batch_size > 1 else "",
        [
            Step(step.source, tuple(places.of(step.bound[name], number) for name in step.source.buffers))
            for number, step in numbered
        ],
        sections([step.source.work for step in order[INFERENCE]], settings().shared_from),
        [(places.of(storage), dimensions(buffers[storage])) for storage in given],
        [(places.of(storage), dimensions(buffers[storage])) for storage in wanted],
        list(places.numbers.values()),
    )


def needed(steps: Sequence[GeneratedPhase], uses: Sequence[Use], wanted: Sequence[str]) -> list[GeneratedPhase]:
    """The kernels that some storage depends on; also through what one run leaves to the next.

    Args:
        steps: in order of execution.
        uses: of each.
        wanted: the storage.
    """
    storage, found = set(wanted), set[int]()
    while True:
        more = {i for i, use in enumerate(uses) if i not in found and not storage.isdisjoint(use.changed)}
        if not more:
            return [step for i, step in enumerate(steps) if i in found]
        found |= more
        storage |= set().union(*(uses[i].read for i in more))


def _use(uses: Uses, step: GeneratedPhase) -> Use:
    layers = [member.name for member in step.unit.members]
    return uses.of(step.unit.name, layers, step.phase, step.storage, alone=True)


def _check_stored(steps: Sequence[GeneratedPhase], wanted: Sequence[str]) -> None:
    """DataError where a layer's values are only inside of a chain's loops."""
    stored = set().union(*(step.storage for step in steps))
    for storage in wanted:
        away = next((step for step in steps if storage in step.fused_away), None)
        if away is not None and storage not in stored:
            name = storage.partition(".")[0]
            raise DataError(
                f"{storage} has been fused away into {away.unit.name}: it is never stored",
                way_out=f"net.keep({name}) in the net's file keeps it",
            )


def dimensions(buffer: Buffer) -> list[Dimension]:
    """How a caller's array of a buffer's logical shape is laid out; dimensions that follow each other in memory are
    one, but for the items."""
    layout, rank = buffer.layout, len(buffer.shape)
    strides = _strides(buffer.physical_shape)
    order = layout.order or tuple(range(rank))
    found = []
    for dim, extent in enumerate(buffer.shape):
        before, _ = layout.halo[dim] if layout.halo else (0, 0)
        stride = strides[order.index(dim)]
        number = next((n for n, (blocked, _) in enumerate(layout.blocks) if blocked == dim), None)
        if number is None:
            found.append(Dimension(extent, before, stride))
        else:
            found.append(Dimension(extent, before, stride, layout.blocks[number][1], strides[rank + number]))
    items, *rest = found
    merged: list[Dimension] = []
    for dimension in rest:
        if merged and _follow(merged[-1], dimension):
            outer = merged.pop()
            dimension = Dimension(outer.extent * dimension.extent, outer.before * dimension.extent, dimension.stride)
        merged.append(dimension)
    return [items, *merged]


def _follow(outer: Dimension, inner: Dimension) -> bool:
    """Whether two dimensions are one in memory."""
    plain = outer.block == 0 and inner.block == 0 and inner.before == 0
    return plain and outer.stride == inner.extent * inner.stride


def _strides(shape: Sequence[int]) -> list[int]:
    """In elements, of an array in C order."""
    found, stride = [], 1
    for extent in reversed(shape):
        found.append(stride)
        stride *= extent
    return found[::-1]


class _Places:
    """Where the storage of a program is.

    Args:
        what, batch_size: the net, and the most items.
        buffers, memory: its storage, with layouts, and what shares memory.
        arrays: of the target.
        changed: storage that kernels change.
        pinned: storage that nothing else may overwrite.
    """

    def __init__(
        self,
        what: Learned,
        batch_size: int,
        buffers: Mapping[str, Buffer],
        memory: MemoryPlan,
        arrays: Arrays,
        changed: set[str],
        pinned: set[str],
    ):
        self._what, self._batch_size = what, batch_size
        self._buffers, self._memory, self._arrays = buffers, memory, arrays
        self._changed, self._pinned = changed, pinned
        self._line = memory.timelines[INFERENCE]
        self._shared = arrays.memory(self._line.size())
        self._own: dict[str, Place] = {}
        self.numbers: dict[str, Number] = {}

    def of(self, storage: str, number: int | None = None) -> Place:
        """Where a storage is while a kernel runs.

        Args:
            storage: its name.
            number: of the kernel; None: it has a place of its own.
        """
        buffer = self._buffers[storage]
        if buffer.formula:
            return self._number(buffer).place
        if buffer.role in LEARNED:
            return self._learned(buffer)
        if number is None or storage in self._pinned or not self._memory.shares(storage):
            return self._alone(storage, buffer)
        span = self._line.at(storage, number)
        if span.region:  # only storage with the same padding is there, too
            return self._alone(span.region, self._memory.equal[span.region][0])
        return Place("memory", self._shared.offset + span.offset)

    def _alone(self, name: str, buffer: Buffer) -> Place:
        if name not in self._own:
            self._own[name] = self._arrays.memory(buffer.nbytes)
        return self._own[name]

    def _learned(self, buffer: Buffer) -> Place:
        key = buffer.name, buffer.layout, buffer.dtype, buffer.shape

        def packed() -> np.ndarray:
            return buffer.layout.pack(self._what.of(buffer, self._batch_size))

        weight = self._arrays.weight(key, packed)
        return self._arrays.state(key, weight, buffer.nbytes) if buffer.name in self._changed else weight

    def _number(self, buffer: Buffer) -> Number:
        if buffer.name not in self.numbers:
            key = buffer.formula, buffer.dtype, self._batch_size
            values = self._arrays.weight(key, lambda: _of_items(buffer, self._batch_size))
            place = self._arrays.memory(ALIGNMENT)
            self.numbers[buffer.name] = Number(place, values, buffer.itemsize)
        return self.numbers[buffer.name]


def _of_items(buffer: Buffer, batch_size: int) -> np.ndarray:
    """The values of a number for 1, 2, … items.

    Raises:
        LatteError: there is none for some number of items.
    """
    found: np.ndarray = np.zeros(batch_size, DTYPES[buffer.dtype])
    for items in range(1, batch_size + 1):
        try:
            found[items - 1] = value_of(buffer.formula, items)
        except (ZeroDivisionError, ValueError, OverflowError) as error:
            raise LatteError(f"{buffer.formula} has no value for {items} items: {error}") from error
    return found
