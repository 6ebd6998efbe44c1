"""Commands on layouts, from a plan state to a plan state: the table, and the loops of every region that is not
finished."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from swirl.errors import LayoutError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program
from swirl.memo import Memo
from swirl.plan_state import PlanState, Region, rebound, resolve, stored, with_copy
from swirl.recorded import Recorded, run_command
from swirl.transforms.relayout import copied, unblocked, with_copies


@dataclass(frozen=True)
class LaidOut:
    """The outcome of a command on a layout.

    Args:
        state: after it.
        found: whether there is such a buffer.
        notes: the copies that it has led to.
    """

    state: PlanState
    found: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayoutCommand:
    """A command on the layout of a buffer, by whatever name a nest knows it.

    Args:
        command: as it was written.
        options: of the command itself.
        buffer: that it names.
        copies: whether another layer's buffer may be copied.
        kind: of the layer, and
        phase: whose recipe the command comes from, where a chain's recipe builds on that; else "".
    """

    command: Recorded
    options: Mapping[str, Any]
    buffer: str
    copies: bool
    kind: str = ""
    phase: str = ""

    def on(self, program: Program, local: str, memo: Memo) -> Program:
        """The program after the command, applied to the buffer of this name.

        Raises:
            CommandError, LayoutError: as the command does.
        """
        arguments = self.command.arguments
        by_position = (local, *arguments[1:]) if arguments else ()
        options = dict(self.options) if arguments else {**self.options, "buffer": local}
        return run_command(memo, self.command.name, program, by_position, options)


def lay_out(state: PlanState, region: str, asked: LayoutCommand, memo: Memo) -> LaidOut:
    """A buffer with the layout that a region's recipe wants, and the loops over it in all nests that touch it.

    Where another layer chooses the layout, the region gets a copy in its own storage instead.

    Args:
        state: so far.
        region: whose recipe it is.
        asked: the command.
        memo: where the command's results are kept.

    Raises:
        CommandError, LayoutError: as the command does; or the buffer is another layer's and must not be copied.
    """
    own = state.regions[region]
    meant = _meant(own, asked)
    laying = _Laying(state, own, asked, memo)
    after, notes = state, []
    for at, phase, local, buffer in _within_reach(state, own, asked):
        if buffer.name in meant:
            after, note = laying.done(after, at, phase, local)
            notes += note
    seen = {buffer.name for region, *_, buffer in state.bindings() if not region.finished}
    for storage in meant:
        if storage not in seen and own.chooses(storage):
            gone = Program(storage, (), {asked.buffer: meant[storage].with_layout(state.layout(storage))})
            after = after.with_storage(storage, asked.on(gone, asked.buffer, memo).buffers[asked.buffer].layout)
    return LaidOut(after, bool(meant), tuple(notes))


def finished(state: PlanState, region: str, phase: str, lanes: int) -> Program:
    """The program of a phase with the nests that copy what other layers have laid out differently.

    Args:
        state: of the plan.
        region: that has the phase.
        phase: to be compiled.
        lanes: of the vector loops that copy.
    """
    program = resolve(state, region, phase)
    for copy in state.regions[region].phases[phase].copies:
        program = with_copies(program, copy, state.layout(copy.source.name), lanes)
    return program


def _meant(region: Region, asked: LayoutCommand) -> dict[str, Buffer]:
    """Storage → buffer, for the name that a region's recipe uses."""
    known = [nests.program.buffers for nests in region.phases.values()]
    known += [region.names.get(kind, {}) for kind in dict.fromkeys(("", asked.kind)) if region.joined]
    return {names[asked.buffer].name: names[asked.buffer] for names in known if asked.buffer in names}


def _within_reach(state: PlanState, own: Region, asked: LayoutCommand) -> Iterator[tuple[str, str, str, Buffer]]:
    """Region, phase, local name and buffer of what a command reaches: the region's own nests, and for a chain also
    those of its layers that are scheduled separately, later; unless the layer's own recipe gives the same command."""
    apart = {name for name in own.layers if own.joined and name in state.regions}
    later = {name for name in apart if not (known := state.regions[name]).finished and asked.phase not in known.phases}
    for region, phase, local, buffer in state.bindings():
        if region.name == own.name or region.name in later:
            yield region.name, phase, local, buffer


@dataclass(frozen=True)
class _Laying:
    """A command on a layout, phase by phase.

    Args:
        before: the state that the command found.
        own: the region whose recipe it is.
        asked: the command.
        memo: see :func:`lay_out`.
    """

    before: PlanState
    own: Region
    asked: LayoutCommand
    memo: Memo

    def done(self, state: PlanState, region: str, phase: str, local: str) -> tuple[PlanState, list[str]]:
        """The state after the command has been applied in one more phase, and what that copies.

        Args:
            state: after it has been applied in other phases.
            region: that has the phase.
            phase: to change.
            local: its name for the buffer.
        """
        bound = state.regions[region].phases[phase].program.buffers[local]
        known = self.before.layouts.get(bound.name, state.layout(bound.name))  # as if no other phase had changed
        found = resolve(state, region, phase).with_buffers(**{local: bound.with_layout(known)})
        foreign = not self.own.chooses(bound.name) and not state.regions[region].chooses(bound.name)
        made = self.asked.on(self._unblocked(found, local) if foreign else found, local, self.memo)
        made = replace(made, commands=(*found.commands, self.asked.command.text))
        layout = made.buffers[local].layout
        if layout == known:
            return stored(state, region, phase, made), []
        if foreign and not self.asked.copies:
            raise _not_its_own(self.asked.command.name, local, bound.name)
        for other in [state.regions[region]] if foreign else state.regions.values():
            _check_whole(state, other, bound.name)
        if not foreign:
            return stored(state.with_storage(bound.name, layout), region, phase, made), []
        copy = replace(copied(found, local, f"{region}.copy.{bound.name}"), source=bound)
        state = with_copy(state, region, phase, copy, layout)
        made = made.with_buffers(**rebound(made, bound.name, copy.storage))
        return stored(state, region, phase, made), [copy.told(made.name.rpartition(".")[2], known, layout)]

    def _unblocked(self, program: Program, local: str) -> Program:
        """The program as it may be tiled: the owner's blocks do not hinder others."""
        if self.asked.command.name != "tile":
            return program
        given = dict(zip(("buffer", "dim", "factor"), self.asked.command.arguments, strict=False))
        given |= dict(self.asked.options)
        return unblocked(program, local, given.get("dim"), given.get("factor"))


def _check_whole(state: PlanState, region: Region, storage: str) -> None:
    """Raises LayoutError where a region sees the storage with dimensions joined."""
    for phase, nests in region.phases.items():
        for local, buffer in nests.program.buffers.items():
            if buffer.name == storage and buffer.shape != state.shapes.get(storage, buffer.shape):
                raise LayoutError(
                    f"{local} is seen flattened in the {phase} phase: it is laid out already",
                    way_out="give commands on layouts before flatten",
                )


def _not_its_own(command: str, local: str, storage: str) -> LayoutError:
    owner, name = storage.split(".", 1)
    return LayoutError(
        f"{local} is {storage}, whose layout {owner} chooses",
        way_out=f"{command} {name!r} in {owner}'s recipe, or leave reorder=False out: then it is copied",
    )
