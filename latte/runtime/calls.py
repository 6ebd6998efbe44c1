"""A net as a function: each call brings the memory of its inputs, outputs, parameters and states with it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from latte.model.graph import Graph
from latte.planning.call_memory import OWN, SAVED, plan_call_memory
from latte.planning.plan import Plan
from latte.planning.uses import Uses
from latte.runtime.arranging import execution_order, uses_in
from latte.runtime.kernels import CompiledPhase
from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.item_numbers import value_of
from swirl.run.memory import Arena, allocate
from swirl.run.runner import Brought, Phase, Runner


class Calls:
    """The kernels of a net, to be called as a function of memory.

    What belongs to a call is in memory that the call brings: a net may be called again before the backward of an
    earlier call. Several threads may call; those of one runner wait for each other.

    Args:
        graph: of the net; its setting ``given`` says what calls bring.
        plan: that its kernels were made by.
        batch_size: the most items of a call.
        compiled: the kernels.
        runner: whose threads run them.
        brought: phase of the net → the storage whose addresses a call gives, in this order. For ``forward`` and
            ``backward`` the address of what is saved follows.

    Attributes:
        saved: bytes that a call of ``forward`` leaves for its ``backward``.
        touched: phase of the net → the storage that its kernels touch.
        fixed: why only calls of ``batch_size`` items are right, or "".

    Raises:
        DeclarationError: a layer goes on from what another call has left in a field that is no ``State``.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        batch_size: int,
        compiled: Sequence[CompiledPhase],
        runner: Runner,
        brought: Mapping[str, Sequence[str]],
    ):
        self._runner, self._brought = runner, brought
        self.fixed = next((step.fixed for step in compiled if step.fixed), "")
        self._buffers = _buffers(compiled, plan)
        self._order = execution_order(compiled)
        self.touched = {phase: {n for s in steps for n in _table(s)} for phase, steps in self._order.items()}
        self._items = 0
        self._own = self._constants(graph, batch_size)
        known = {*chain.from_iterable(brought.values()), *self._own}
        self._memory = plan_call_memory(self._buffers, uses_in(self._order, Uses(plan.programs)), known)
        self.saved = self._memory.saved
        self._scratch = Arena(self._memory.scratch, runner)
        self._copies = self._allocated(self._memory.changed)
        self._phases = {phase: self._phase(phase) for phase in self._order if phase in brought}

    def run(self, phase: str, addresses: Sequence[int], items: int, seed: int = 0) -> None:
        """Run a phase of the net.

        Args:
            phase: ``forward``, ``inference`` or ``backward``.
            addresses: of what is brought, each a multiple of 64; of ``forward`` and ``backward`` the last one is that
                of what is saved.
            items: of the call, at most ``batch_size``.
            seed: of its random numbers: the same for its ``backward``.
        """
        with self._runner.lock:
            if items != self._items:
                self._set_items(items)
            if "net.seed" in self._own:
                self._own["net.seed"][0] = seed
            if phase == "forward":
                for offset, count in self._memory.cleared:
                    ctypes.memset(addresses[-1] + offset, 0, count)
            elif phase == "backward":
                for storage, offset in self._memory.changed.items():
                    copy = self._copies[storage]
                    ctypes.memmove(copy.ctypes.data, addresses[-1] + offset, copy.nbytes)
            self._phases[phase].run_at(addresses)

    def _set_items(self, items: int) -> None:
        self._items = items
        for name, array in self._own.items():
            if self._buffers[name].formula:
                array[0] = value_of(self._buffers[name].formula, items)

    # --- memory ---------------------------------------------------------------------------------------------
    def _constants(self, graph: Graph, batch_size: int) -> dict[str, np.ndarray]:
        """What is the same in all calls, and the numbers of the one that runs."""
        found = self._allocated(name for name, b in self._buffers.items() if b.role in ("constant", "scalar"))
        for ensemble in graph.ensembles:
            for name, spec in ensemble.fields(batch_size).items():
                if spec.storage in found and spec.owner == ensemble.name:
                    values = np.asarray(ensemble.initial(name), found[spec.storage].dtype)
                    found[spec.storage][...] = self._buffers[spec.storage].layout.pack(values)
        return found

    def _allocated(self, storage: Iterator[str] | Mapping[str, int]) -> dict[str, np.ndarray]:
        buffers = {name: self._buffers[name] for name in storage}
        return allocate({n: (b.physical_shape, DTYPES[b.dtype]) for n, b in buffers.items()}, self._runner)

    def _phase(self, phase: str) -> Phase:
        bases = {name: number for number, name in enumerate(self._brought[phase])}
        steps = enumerate(self._order[phase])
        return self._runner.phase(
            [(step.kernel, [self._entry(phase, number, n, bases) for n in _table(step)]) for number, step in steps]
        )

    def _entry(self, phase: str, number: int, storage: str, bases: Mapping[str, int]) -> np.ndarray | Brought:
        """What the pointer table of a kernel has for a storage."""
        if storage in bases:
            return Brought(bases[storage])
        if storage in self._own:
            return self._own[storage]
        span, buffer = self._memory.at(phase, number, storage), self._buffers[storage]
        if span.region == SAVED:
            changed = phase == "backward" and storage in self._copies
            return self._copies[storage] if changed else Brought(len(bases), span.offset)
        if span.region == OWN:
            self._own |= self._allocated(iter((storage,)))
            return self._own[storage]
        return self._scratch.at(span.offset, buffer.physical_shape, DTYPES[buffer.dtype])


def _table(step: CompiledPhase) -> Iterator[str]:
    """The storage of a kernel's pointer table."""
    return (step.bound[name] for name in step.source.buffers)


def _buffers(compiled: Sequence[CompiledPhase], plan: Plan) -> dict[str, Buffer]:
    """Storage → what it holds, with its layout."""
    found = {name: step.declared[name] for step in compiled for name in sorted(step.storage)}
    return {name: b.with_layout(plan.layouts.get(name, b.layout)) for name, b in found.items()}
