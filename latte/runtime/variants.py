"""The variants of a compiled net: for what is frozen now, and has been before, and for the gradients that are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from latte.model.frozen import Frozen, frozen_now
from latte.model.graph import Graph
from latte.runtime.executable import Executable, write_loss_weights
from latte.runtime.report import CompileReport
from swirl.errors import about
from swirl.ir.phases import INFERENCE

BATCH_ROLES = ("value", "temporary")
"""Roles of what forward computes of a batch."""


class Compile(Protocol):
    """Makes executables of a net; see :func:`latte.compiling.compile_graph`."""

    def __call__(
        self, batch_size: int, *, seeded: frozenset[str], shared: Executable | None, trains: bool, **more: Any
    ) -> tuple[Executable, CompileReport]: ...


class Make(Protocol):
    """Makes executables of a net; see :func:`latte.runtime.executable.bind`."""

    def __call__(
        self,
        batch_size: int,
        shared: Executable | None,
        trains: bool = True,
        *,
        frozen: Frozen,
        variants: Sequence[Executable] = (),
    ) -> Executable: ...


class Variants:
    """The executables of a net, of which one runs at a time: they share what is laid out alike.

    Args:
        graph: of the net.
        make: makes executables.

    Attributes:
        frozen: what does not train in the current ones.
        current: batch size → executable.
    """

    def __init__(self, graph: Graph, make: Make):
        self._graph, self._make = graph, make
        self._freezing, self.frozen = graph.settings.freezing, frozen_now(graph)
        whole = make(graph.settings.batch_size, None, frozen=self.frozen)
        self.current = {whole.batch_size: whole}
        self._known = {self.frozen: self.current}

    def settle(self, running: Executable, whole: Executable) -> Executable:
        """The executable for what is frozen now. What has been frozen before is compiled already.

        Args:
            running: the executable that has run last.
            whole: that for whole batches.
        """
        freezing = self._graph.settings.freezing
        if freezing is self._freezing:
            return running
        frozen = frozen_now(self._graph)
        if frozen != self.frozen:
            with about("with what is frozen now"):
                running = self._go_over(running, whole, frozen, self._known.get(frozen, {}))
            self._known[frozen] = self.current
        self._freezing = freezing
        return running

    def again(self, running: Executable, whole: Executable) -> Executable:
        """The same, compiled again; what there was before is dropped."""
        running = self._go_over(running, whole, self.frozen, {})
        self._known = {self.frozen: self.current}
        return running

    def _go_over(
        self, running: Executable, whole: Executable, frozen: Frozen, known: dict[int, Executable]
    ) -> Executable:
        """Let other executables be current: ``known`` ones, and those that are missing for whole batches, which have
        all of a state for each item, and for the batch that has run last."""
        current, before = dict(known), {whole.batch_size: whole, running.batch_size: running}
        for size, old in before.items():
            if size not in current or (old.trains and not current[size].trains):
                others = [each[size] for each in (self.current, *self._known.values()) if size in each]
                shared = None if old is whole else current[whole.batch_size]
                current[size] = self._make(size, shared, old.trains, frozen=frozen, variants=others)
        for size, old in before.items():
            go_over(old, current[size])
        self.frozen, self.current = frozen, current
        return current[running.batch_size]


def go_over(old: Executable, new: Executable) -> None:
    """Let one variant of a net go on where another one of the same batch size was. What is laid out alike is memory of
    both; what else has memory of its own is copied; what is in memory shared by liveness is lost. Views that users hold
    show the new storage from then on.

    What the other one has not stored, or this one has in shared memory, is missing here. No phase counts as run.

    Args:
        old: that has run last.
        new: that runs next; it may have run before.
    """
    new.set_items(old.items)
    for name in old.memory.pinned & new.buffers.keys():
        new.memory.pin(name, holds=False)
    both = [name for name in old.buffers if name in new.buffers and old.memory.is_own(name) and new.memory.is_own(name)]
    places = {}
    for name in both:
        array = old.memory.known(name)
        if array is not None:
            places[id(array)] = new.arrays[name], new.buffers[name]
            if new.arrays[name] is not array and name not in old.missing:
                new.write(name, old.read_whole(name))
    away = {name for step in new.compiled if step.phase != INFERENCE for name in step.fused_away}
    shared = {name for name in new.buffers if not new.memory.is_own(name)}
    unknown = {name for name, b in new.buffers.items() if name not in old.buffers and b.role in BATCH_ROLES}
    new.missing = away | old.missing.intersection(new.buffers) | shared | unknown
    new.memory.recall(old.memory)
    new.has_run.clear()
    new.views.follow(old.views, places)
    write_loss_weights(new)
