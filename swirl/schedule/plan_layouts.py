"""Commands on layouts, from a plan state to a plan state: the table, and the loops of the region; those of phases that
are scheduled apart follow when their region is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from swirl.errors import CommandError, LayoutError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program
from swirl.schedule.command_log import Recorded, run_command
from swirl.schedule.memo import Memo
from swirl.schedule.plan_state import (
    Given,
    LayoutCommand,
    PlanState,
    Region,
    joined_in,
    rebound,
    resolve,
    stored,
    with_copy,
)
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
class Followed:
    """A chain's command on a layout that has copied a buffer in a region of a layer of the chain.

    Args:
        command: as it was written.
        chain: whose recipe gave it.
        notes: what is copied.
    """

    command: Recorded
    chain: str
    notes: tuple[str, ...]


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
    named = _buffers_named(own, asked)
    laying = _Laying(state, own, asked, memo)
    after, notes = state, []
    for phase, local, buffer in own.bindings():
        if buffer.name in named:
            after, note = laying.done(after, phase, local)
            notes += note
    seen = {buffer.name for *_, buffer in own.bindings()}
    for storage in named:
        if storage not in seen and own.chooses(storage) and not own.keeps_layouts:
            program = Program(storage, (), {asked.buffer: named[storage].with_layout(state.layout(storage))})
            layout = _after(asked, program, asked.buffer, memo).buffers[asked.buffer].layout
            after = after.with_storage(storage, layout)
    given = Given(asked, {storage: state.layout(storage) for storage in named})
    return LaidOut(after.with_region(after.regions[region].with_given(given)), bool(named), tuple(notes))


def with_layer_region(state: PlanState, region: Region, memo: Memo) -> tuple[PlanState, tuple[Followed, ...]]:
    """The state with a new region, and what chains have asked of it that is copied. Where it has those phases of a
    layer that are in no chain, the commands on layouts of chains with that layer reach its loops, too, unless the
    layer's own recipe gives the same command.

    Args:
        state: so far.
        region: that has not been scheduled.
        memo: where the commands' results are kept.
    """
    state = state.with_new_region(region)
    followed: list[Followed] = []
    for chain in state.regions.values():
        if region.joined or not chain.joined or region.layers[0] not in chain.layers:
            continue
        for given in chain.given:
            if given.asked.phase not in region.phases:
                state, notes = _follow(state, region, chain, given, memo)
                followed += [Followed(given.asked.command, chain.name, tuple(notes))] if notes else []
    return state, tuple(followed)


def _follow(state: PlanState, region: Region, chain: Region, given: Given, memo: Memo) -> tuple[PlanState, list[str]]:
    """The state with the loops of a region as a command of a chain wants them, and what that copies. The loops stay as
    they are where the command does not apply."""
    notes: list[str] = []
    for phase, local, buffer in state.regions[region.name].bindings():
        if buffer.name not in given.before:
            continue
        foreign = not chain.chooses(buffer.name) and not region.chooses(buffer.name)
        known = given.before[buffer.name]
        found = resolve(state, region.name, phase)
        bound = found.buffers[local].with_layout(known)
        found = found.with_buffers(**{local: bound})
        try:
            made = _applied(given.asked, found, local, foreign, memo)
        except (CommandError, LayoutError):
            continue
        layout = made.buffers[local].layout
        if layout != known and foreign:
            state, made, new_notes = _copied(state, region.name, phase, found, made, local)
            notes += new_notes
        state = stored(state, region.name, phase, made)
    return state, notes


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


def _buffers_named(region: Region, asked: LayoutCommand) -> dict[str, Buffer]:
    """Storage → buffer, for the name that a region's recipe uses."""
    known = [nests.program.buffers for nests in region.phases.values()]
    known += [region.names.get(kind, {}) for kind in dict.fromkeys(("", asked.kind)) if region.joined]
    return {names[asked.buffer].name: names[asked.buffer] for names in known if asked.buffer in names}


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

    def done(self, state: PlanState, phase: str, local: str) -> tuple[PlanState, list[str]]:
        """The state after the command has been applied in one more phase, and what that copies.

        Args:
            state: after it has been applied in other phases.
            phase: to change.
            local: its name for the buffer.
        """
        region = self.own.name
        bound = state.regions[region].phases[phase].program.buffers[local]
        known = self.before.layouts.get(bound.name, state.layout(bound.name))  # as if no other phase had changed
        found = resolve(state, region, phase).with_buffers(**{local: bound.with_layout(known)})
        foreign = not self.own.chooses(bound.name)
        made = _applied(self.asked, found, local, foreign, self.memo)
        layout = made.buffers[local].layout
        if layout == known:
            return stored(state, region, phase, made), []
        if foreign and not self.asked.copies:
            raise _not_its_own(self.asked.command.name, local, bound.name)
        if not foreign and self.own.keeps_layouts:
            raise LayoutError(f"{local} has the layout that forward has chosen")
        joined = {**({} if foreign else state.joined), **joined_in(state, region)}
        _check_whole(bound.name, joined)
        if not foreign:
            return stored(state.with_storage(bound.name, layout), region, phase, made), []
        state, made, notes = _copied(state, region, phase, found, made, local)
        return stored(state, region, phase, made), notes


def _after(asked: LayoutCommand, program: Program, local: str, memo: Memo) -> Program:
    """A program after a command on a layout, applied to the buffer of this name.

    Raises:
        CommandError, LayoutError: as the command does.
    """
    arguments = asked.command.arguments
    by_position = (local, *arguments[1:]) if arguments else ()
    options = dict(asked.options) if arguments else {**asked.options, "buffer": local}
    return run_command(memo, asked.command.name, program, by_position, options)


def _applied(asked: LayoutCommand, found: Program, local: str, foreign: bool, memo: Memo) -> Program:
    """The program after the command; the blocks that another layer has chosen do not hinder tiles.

    Raises:
        CommandError, LayoutError: as the command does.
    """
    program = found
    if foreign and asked.command.name == "tile":
        given = dict(zip(("buffer", "dim", "factor"), asked.command.arguments, strict=False))
        given |= dict(asked.options)
        program = unblocked(found, local, given.get("dim"), given.get("factor"))
    return replace(_after(asked, program, local, memo), commands=(*found.commands, asked.command.text))


def _copied(
    state: PlanState, region: str, phase: str, found: Program, made: Program, local: str
) -> tuple[PlanState, Program, list[str]]:
    """The state with a region's own storage for a buffer that another layer has laid out differently, the program
    that uses it, and what that copies.

    Args:
        state: so far.
        region: that has the phase.
        phase: of the program.
        found: the program before the command, with the layout that the owner has chosen.
        made: after it.
        local: name of the buffer in the program.
    """
    bound = found.buffers[local]
    layout = made.buffers[local].layout
    source = state.regions[region].phases[phase].program.buffers[local]
    copy = replace(copied(found, local, f"{region}.copy.{bound.name}"), source=source)
    state = with_copy(state, region, phase, copy, layout)
    made = made.with_buffers(**rebound(made, bound.name, copy.storage))
    return state, made, [copy.cost_text(made.name.rpartition(".")[2], bound.layout, layout)]


def _check_whole(storage: str, joined: Mapping[str, tuple[str, str]]) -> None:
    """Raises LayoutError where nests see the storage with dimensions joined."""
    if storage in joined:
        local, phase = joined[storage]
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
