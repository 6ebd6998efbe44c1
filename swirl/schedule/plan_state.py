"""The state of a plan while it is scheduled: the layouts of storage, and the nests of each region.

A state is a value: a command makes a new one; keeping the old one undoes the command. Programs in a region carry no
layouts. :func:`resolve` fills them in from the one table, and :func:`stored` takes them out again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Program
from swirl.ir.phases import INFERENCE
from swirl.schedule.command_log import Recorded
from swirl.schedule.declared import Declared
from swirl.transforms.relayout import Copy
from swirl.transforms.rewrites.joined_programs import follow
from swirl.transforms.rewrites.storage.contraction import OWN

PLAIN = Layout()


@dataclass(frozen=True)
class PhaseNests:
    """One phase of a region.

    Args:
        program: its nests and bindings (local name → storage, shape as seen, declared role); without layouts.
        internal: storage that only these nests need.
        copies: the region's own storage that stands for another layer's, with another layout.
    """

    program: Program
    internal: frozenset[str] = frozenset()
    copies: tuple[Copy, ...] = ()


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


@dataclass(frozen=True)
class Given:
    """A command on a layout that a region has given.

    Args:
        asked: the command.
        before: the storage that it has reached → the layout that it found.
    """

    asked: LayoutCommand
    before: Mapping[str, Layout]


@dataclass(frozen=True)
class Region:
    """Programs that are scheduled together: a layer's, or those of neighbouring layers, joined.

    Args:
        name: ``conv1``, or ``conv1_relu1``.
        layers: the names of its layers, sources first.
        phases: phase → nests.
        internal: phase → storage that no other region needs.
        lays_out: prefixes of the storage whose layout this region chooses (``"conv1."``).
        parameters: storage of parameters, and of their gradients → whether this region chooses the layout, as the first
            one that uses them; others may share them.
        names: kind of layer → local name → buffer, for layouts that a recipe for that kind of layer chooses; ``""`` has
            the region's own names, also for storage that none of its nests touches.
        follows: whether inference follows the commands for forward.
        keeps_layouts: whether commands may not change the layouts of its storage.
        given: the commands on layouts so far: they reach the loops of phases of its layers that are scheduled apart.
    """

    name: str
    layers: tuple[str, ...]
    phases: Mapping[str, PhaseNests]
    internal: Mapping[str, frozenset[str]] = field(default_factory=dict)
    lays_out: tuple[str, ...] = ()
    parameters: Mapping[str, bool] = field(default_factory=dict)
    names: Mapping[str, Mapping[str, Buffer]] = field(default_factory=dict)
    follows: bool = True
    keeps_layouts: bool = False
    given: tuple[Given, ...] = ()

    @property
    def joined(self) -> bool:
        """Whether these are the programs of several layers."""
        return len(self.layers) > 1

    def bindings(self) -> Iterator[tuple[str, str, Buffer]]:
        """Phase, local name and buffer of everything that the nests touch."""
        for phase, nests in self.phases.items():
            for local, buffer in nests.program.buffers.items():
                yield phase, local, buffer

    def with_given(self, given: Given) -> Region:
        return replace(self, given=(*self.given, given))

    def owns(self, storage: str) -> bool:
        """Whether a storage belongs to the layers: not to those that they read, nor to data."""
        return storage.partition(".")[0] in self.layers

    def chooses(self, storage: str) -> bool:
        """Whether this region chooses the layout of a storage: its layers', or its own copy."""
        prefixes = (*self.lays_out, f"{self.name}.copy.")
        return self.parameters.get(storage, storage.startswith(prefixes))


@dataclass(frozen=True)
class PlanState:
    """The result of scheduling a net so far.

    Args:
        layouts: storage → layout.
        shapes: storage → extents as declared; nests may see dimensions joined.
        joined: storage that a region's nests see with dimensions joined → its name there, and the phase.
        regions: name → region.
    """

    layouts: Mapping[str, Layout] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    regions: Mapping[str, Region] = field(default_factory=dict)

    def layout(self, storage: str) -> Layout:
        return self.layouts.get(storage, PLAIN)

    def with_new_region(self, region: Region) -> PlanState:
        """The state with a region that has not been scheduled; storage without a chosen layout is plain."""
        buffers = [b for nests in region.phases.values() for b in nests.program.buffers.values()]
        layouts = {buffer.name: PLAIN for buffer in buffers} | dict(self.layouts)
        shapes = {buffer.name: buffer.shape for buffer in buffers} | dict(self.shapes)
        return replace(self, layouts=layouts, shapes=shapes).with_region(region)

    def with_region(self, region: Region) -> PlanState:
        return replace(self, regions={**self.regions, region.name: region})

    def with_nests(self, region: str, phase: str, nests: PhaseNests) -> PlanState:
        known = self.regions[region]
        return self.with_region(replace(known, phases={**known.phases, phase: nests}))

    def with_storage(self, storage: str, layout: Layout) -> PlanState:
        """The state with another layout of a storage, wherever it is touched."""
        return replace(self, layouts={**self.layouts, storage: layout})


def seen_by(state: PlanState, declared: Declared) -> PlanState:
    """The part of a state that scheduling a region looks at: layouts of what its programs and names stand for, and, for
    phases of a layer that are in no chain, what chains with that layer have asked of layouts.

    Args:
        state: of the plan.
        declared: the region's programs.
    """
    storage = dict.fromkeys((*(buffer.name for buffer in declared.buffers()), *declared.parameters))
    chains = {
        name: replace(
            chain,
            phases={},
            internal={},
            names={},
            parameters={s: c for s, c in chain.parameters.items() if s in storage},
        )
        for name, chain in state.regions.items()
        if chain.given and chain.joined and not declared.joined and declared.layers[0] in chain.layers
    }
    return PlanState(
        {name: state.layouts[name] for name in storage if name in state.layouts},
        {name: state.shapes[name] for name in storage if name in state.shapes},
        {name: state.joined[name] for name in storage if name in state.joined and declared.chooses(name)},
        chains,
    )


def merged(state: PlanState, region: str, after: PlanState) -> PlanState:
    """The state of a plan with what scheduling a region has come to.

    Args:
        state: before it.
        region: its name.
        after: the part that the region sees, after its recipe.
    """
    return PlanState(
        {**state.layouts, **after.layouts},
        {**state.shapes, **after.shapes},
        {**state.joined, **after.joined},
        {**state.regions, region: after.regions[region]},
    )


def joined_in(state: PlanState, region: str) -> dict[str, tuple[str, str]]:
    """The storage that a region's nests see with dimensions joined → its name there, and the phase."""
    return {
        buffer.name: (local, phase)
        for phase, local, buffer in state.regions[region].bindings()
        if buffer.shape != state.shapes.get(buffer.name, buffer.shape)
    }


def region_of(declared: Declared, programs: Mapping[str, Program]) -> Region:
    """The region of canonical programs without layouts.

    Args:
        declared: what they have been lowered or derived as.
        programs: phase → program.
    """
    phases = {phase: PhaseNests(program) for phase, program in programs.items()}
    known = declared.internal, declared.lays_out, declared.parameters, declared.names
    return _marked(Region(declared.name, declared.layers, phases, *known))


def lone_region(programs: Mapping[str, Program], lays_out: str | Sequence[str] = ()) -> tuple[PlanState, str]:
    """A state with only these programs, which may have layouts, and the name of their region.

    Args:
        programs: phase → program.
        lays_out: see :class:`Region`.
    """
    name = next((program.name.rpartition(".")[0] for program in programs.values()), "")
    layouts = {b.name: b.layout for p in programs.values() for b in p.buffers.values() if b.layout != PLAIN}
    prefixes = (lays_out,) if isinstance(lays_out, str) else lays_out
    bare = {phase: without_layouts(program) for phase, program in programs.items()}
    declared = Declared(name, (name,), {}, lays_out=tuple(prefixes))
    return PlanState(layouts).with_new_region(region_of(declared, bare)), name


def without_layouts(program: Program) -> Program:
    """The program with all buffers plain."""
    return program.with_buffers(**{key: buffer.with_layout(PLAIN) for key, buffer in program.buffers.items()})


def resolve(state: PlanState, region: str, phase: str) -> Program:
    """The program of a phase as commands see it: with layouts, and with a special role for buffers that no other
    program needs."""
    nests = state.regions[region].phases[phase]
    buffers = {
        local: replace(b, layout=state.layout(b.name), role=OWN if b.name in nests.internal else b.role)
        for local, b in nests.program.buffers.items()
    }
    return nests.program.with_buffers(**buffers)


def stored(state: PlanState, region: str, phase: str, program: Program) -> PlanState:
    """The state with a phase after a command. New storage brings its layout."""
    nests = state.regions[region].phases[phase]
    roles = {buffer.name: buffer.role for buffer in nests.program.buffers.values()}
    buffers = program.buffers.items()
    bare = {local: replace(b, layout=PLAIN, role=roles.get(b.name, b.role)) for local, b in buffers}
    new = {b.name: b.layout for _, b in buffers if b.name not in roles}
    state = replace(state, layouts={**state.layouts, **new}) if new else state
    return state.with_nests(region, phase, replace(nests, program=program.with_buffers(**bare)))


def with_copy(state: PlanState, region: str, phase: str, copy: Copy, layout: Layout) -> PlanState:
    """The state with a region's own storage instead of another layer's in one phase; every phase of the region that
    needs a copy of the same storage shares it."""
    nests = state.regions[region].phases[phase]
    program = nests.program.with_buffers(**rebound(nests.program, copy.source.name, copy.storage))
    state = state.with_storage(copy.storage, layout)
    return state.with_nests(region, phase, replace(nests, program=program, copies=(*nests.copies, copy)))


def rebound(program: Program, storage: str, other: str) -> dict[str, Buffer]:
    """The buffers of a program that are one storage, as another one."""
    return {local: replace(b, name=other) for local, b in program.buffers.items() if b.name == storage}


def appended(state: PlanState, region: str, phase: str, other: str) -> PlanState:
    """The state with the nests of a phase at the end of those of another one: ``update`` as a part of ``backward``."""
    known = state.regions[region]
    if phase not in known.phases or other not in known.phases:
        return state
    first, second = known.phases[phase], known.phases[other]
    copied = {copy.storage for copy in first.copies}
    written_back = {copy.storage for copy in second.copies if copy.writing}
    copies = [replace(copy, writing=copy.writing or copy.storage in written_back) for copy in first.copies]
    copies += [copy for copy in second.copies if copy.storage not in copied]
    joined = replace(first, program=follow(first.program, second.program), copies=tuple(copies))
    phases = {name: joined if name == phase else nests for name, nests in known.phases.items() if name != other}
    return state.with_region(_marked(replace(known, phases=phases)))


def _marked(region: Region) -> Region:
    """The region with the storage marked that only one phase needs; only inference reads what inference computes."""
    training = [nests.program for phase, nests in region.phases.items() if phase != INFERENCE]
    touched = Counter(buffer.name for program in training for buffer in program.buffers.values())
    phases = {
        phase: replace(
            nests,
            internal=nests.internal
            | {
                buffer.name
                for buffer in nests.program.buffers.values()
                if buffer.name in region.internal.get(phase, ()) and (phase == INFERENCE or touched[buffer.name] == 1)
            },
        )
        for phase, nests in region.phases.items()
    }
    return replace(region, phases=phases)
