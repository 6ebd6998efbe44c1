"""Memory shared by liveness: which storage lives when, and where it is while it does.

A pure function from the kernels in their order of execution to places. Storage whose contents nobody needs any more
leaves its memory to others; a *span* is a stretch of kernels from one that sets a storage to the last one that reads
it, and each span has a place of its own.

Source: Pisarchyk, Lee, *Efficient memory management for deep neural net inference*, 2020 (offsets, greedy by size).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np

from latte.model.ensemble_kinds import BatchSumEnsemble, DataEnsemble, LossEnsemble
from latte.model.graph import Graph
from latte.planning.uses import Use
from swirl.ir.buffers import Buffer
from swirl.ir.phases import INFERENCE

LEAST = 4096
"""Bytes: what is smaller has memory of its own, as sharing less than a page gains nothing."""
ALIGNMENT = 64
"""Bytes: of every place."""
TRAINING = "training"
PHASES = {"forward": TRAINING, "backward": TRAINING, "inference": INFERENCE}
"""Phase of a net → the timeline that it is a part of."""
LEARNED = ("param", "state", "constant", "scalar")
"""Roles of what outlives a batch."""


# --- when storage lives -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Span:
    """A stretch of kernels during which the contents of a storage matter, and where it is meanwhile.

    Args:
        storage: its name.
        first, last: numbers of kernels in a timeline, both included.
        nbytes: that it takes.
        region: the shared memory (``""``), or the name of a place that only storage with equal padding shares.
        offset: in bytes, from the beginning of the region.
    """

    storage: str
    first: int
    last: int
    nbytes: int
    region: str = ""
    offset: int = 0

    @property
    def end(self) -> int:
        """The byte after its last one."""
        return self.offset + self.nbytes

    def meets(self, other: Span) -> bool:
        """Whether both live during some kernel."""
        return self.first <= other.last and other.first <= self.last

    def overlaps(self, other: Span) -> bool:
        """Whether they have bytes in common."""
        return self.region == other.region and self.offset < other.end and other.offset < self.end


@dataclass(frozen=True)
class Timeline:
    """The kernels of phases that follow each other, and the spans of the storage that shares memory.

    Args:
        uses: the kernels, in order of execution.
        phases: phase of the net → the numbers of its kernels.
        spans: in the order of their first kernels.
    """

    uses: tuple[Use, ...] = ()
    phases: Mapping[str, range] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()

    @cached_property
    def of(self) -> dict[str, tuple[Span, ...]]:
        """Storage → its spans."""
        found: dict[str, tuple[Span, ...]] = {}
        for span in self.spans:
            found[span.storage] = (*found.get(span.storage, ()), span)
        return found

    def size(self, phases: Iterable[str] | None = None) -> int:
        """Bytes of the shared memory that these phases need; by default all."""
        wanted = [self.phases[phase] for phase in (self.phases if phases is None else phases)]
        starts = [span for span in self.spans if any(span.first in numbers for numbers in wanted) and not span.region]
        return max((span.offset + span.nbytes for span in starts), default=0)

    def at(self, storage: str, number: int) -> Span:
        """Where a storage is while a kernel runs."""
        return next(span for span in self.of[storage] if span.first <= number <= span.last)

    def after(self, phase: str) -> tuple[dict[str, Span], set[str]]:
        """Storage → its span that began last when a phase has run (of one that only later phases set, the first); and
        the storage whose contents have been overwritten by then, if all phases run in turn, again and again."""
        stop, count = self.phases[phase].stop, len(self.uses)
        last: dict[str, Span] = {}
        for storage, spans in self.of.items():
            begun = [span for span in spans if span.first < stop]
            last[storage] = begun[-1] if begun else spans[-1]
        touching = touches(self.uses)
        names = {region: number for number, region in enumerate(dict.fromkeys(span.region for span in self.spans))}
        regions = np.array([names[span.region] for span in self.spans])
        begins, ends = (np.array([end(s) for s in self.spans]) for end in (lambda s: s.offset, lambda s: s.end))
        # When each span began for the last time: before this phase ended, or in the round before.
        first = np.array([span.first if span.first < stop else span.first - count for span in self.spans])
        lost = set()
        for storage, span in last.items():
            before = [number for number in touching[storage] if number < stop]
            when = before[-1] if before else touching[storage][-1] - count
            over = (regions == names[span.region]) & (begins < span.end) & (span.offset < ends) & (first > when)
            if over.any():
                lost.add(storage)
        return last, lost

    def needed(self, phase: str) -> set[str]:
        """The storage whose contents the phase needs, as those before it have left it."""
        first = self.phases[phase].start
        return {span.storage for span in self.spans if span.first < first <= span.last}

    def live(self, number: int) -> int:
        """Bytes that live in the shared memory while a kernel runs."""
        return sum(span.nbytes for span in self.spans if span.first <= number <= span.last)


def touches(uses: Sequence[Use]) -> dict[str, list[int]]:
    """Storage → the numbers of the kernels that touch it."""
    found: dict[str, list[int]] = {}
    for number, use in enumerate(uses):
        for name in use.touched:
            found.setdefault(name, []).append(number)
    return found


def spans_of(uses: Sequence[Use], storage: str, nbytes: int, touching: Sequence[int]) -> list[Span] | None:
    """The spans of a storage; None if its first kernel needs what was there before.

    Args:
        uses: the kernels in order of execution.
        storage: its name.
        nbytes: that it takes.
        touching: the numbers of the kernels that touch it.
    """
    spans: list[Span] = []
    needed, last = False, -1
    for number in reversed(touching):
        last = last if needed else number
        needed = storage in uses[number].read or (needed and storage not in uses[number].whole)
        if not needed:
            spans.append(Span(storage, number, last, nbytes))
    return None if needed else spans[::-1]


def all_spans(uses: Sequence[Use], buffers: Mapping[str, Buffer], own: Collection[str]) -> dict[str, list[Span] | None]:
    """Storage → its spans, of all that shares memory; None for what the first kernel needs as it was."""
    return {
        name: spans_of(uses, name, rounded(buffers[name].nbytes), touching)
        for name, touching in touches(uses).items()
        if name not in own
    }


def placed(spans: Sequence[Span]) -> list[Span]:
    """The spans with offsets: those that live at the same time have no byte in common."""
    orders: tuple[Callable[[Span], tuple[int, ...]], ...] = (
        lambda span: (-span.nbytes, span.first),
        lambda span: (-span.nbytes * (span.last - span.first + 1), span.first),
        lambda span: (span.first - span.last, -span.nbytes),
    )
    tried = [_greedy(sorted(spans, key=order)) for order in orders]
    best = min(tried, key=lambda found: max((span.offset + span.nbytes for span in found), default=0))
    return sorted(best, key=lambda span: (span.first, span.offset))


def _greedy(spans: Sequence[Span]) -> list[Span]:
    """Each span at the lowest place that is free as long as it lives."""
    done: list[Span] = []
    first, last, begin, end = (np.zeros(len(spans), np.int64) for _ in range(4))
    for count, span in enumerate(spans):
        meeting = np.flatnonzero((first[:count] <= span.last) & (last[:count] >= span.first))
        offset = 0
        for other in meeting[np.argsort(begin[meeting], kind="stable")]:
            if offset + span.nbytes <= begin[other]:
                break
            offset = max(offset, int(end[other]))
        done.append(replace(span, offset=offset))
        first[count], last[count], begin[count], end[count] = span.first, span.last, offset, offset + span.nbytes
    return done


# --- the plan -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class MemoryPlan:
    """Where the storage of a net is.

    Args:
        buffers: storage → what it holds, with its layout.
        timelines: ``training`` and ``inference``.
        alone: storage with memory of its own → the first phase that touches it; ``""`` for what is there from the
            beginning, None for what no kernel touches.
        equal: place that storage with equal padding shares → its buffer, and the first phase that touches it.
        remembered: what forward changes and its values depend on as it was before.
    """

    buffers: Mapping[str, Buffer]
    timelines: Mapping[str, Timeline]
    alone: Mapping[str, str | None]
    equal: Mapping[str, tuple[Buffer, str]] = field(default_factory=dict)
    remembered: frozenset[str] = frozenset()

    def shares(self, storage: str) -> bool:
        """Whether others may overwrite it."""
        return storage not in self.alone

    def bytes_alone(self, *phases: str) -> int:
        """Bytes of storage with memory of its own that these phases need, places among equals included."""
        groups = {group for phase in phases for group in self.groups(phase)}
        own = sum(rounded(self.buffers[name].nbytes) for name, group in self.alone.items() if group in groups)
        return own + sum(rounded(buffer.nbytes) for buffer, group in self.equal.values() if group in groups)

    def peak(self, line: str | None = None) -> int:
        """Bytes that exist when all phases of a timeline have run, but for scratch; by default of both."""
        lines = [line] if line is not None else list(self.timelines)
        phases = [phase for phase, of in PHASES.items() if of in lines and self.timelines[of].uses]
        shared = max((self.timelines[each].size() for each in lines), default=0)
        if TRAINING in lines and self.timelines[TRAINING].uses:
            shared = max(each.size() for each in self.timelines.values())
        return self.bytes_alone(*phases) + shared

    def needed(self, phase: str) -> set[str]:
        """The storage whose contents a phase needs, as those before it have left it."""
        line = self.timelines[PHASES[phase]]
        numbers = line.phases[phase]
        before = set().union(*(use.changed for use in line.uses[: numbers.start]))
        after = set().union(*(use.read for use in line.uses[numbers.start : numbers.stop]))
        return line.needed(phase) | (before & after & self.alone.keys())

    def groups(self, phase: str) -> list[str | None]:
        """Which storage of its own must be there when a phase runs, as the values of ``alone``."""
        return ["", *(("forward", "backward")[: 1 + (phase == "backward")] if phase != INFERENCE else (INFERENCE,))]


def rounded(nbytes: int) -> int:
    """Bytes that a storage takes in memory."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def is_padded(buffer: Buffer) -> bool:
    """Whether a buffer has elements that must stay zero: a halo, or ends of blocks."""
    return prod(buffer.physical_shape) != prod(buffer.shape)


def plan_memory(
    graph: Graph,
    buffers: Mapping[str, Buffer],
    order: Mapping[str, Sequence[Use]],
    remembered: Collection[str] = (),
) -> MemoryPlan:
    """Places for the storage of a net.

    Memory of its own has what is learned; data, losses and outputs; what the user wants to keep; what a kernel needs
    that no kernel has set whole; gradients of parameters; and what is smaller than a page.

    Args:
        graph: of the net.
        buffers: all storage, with layouts.
        order: phase of the net → its kernels in order of execution.
        remembered: states that values of forward depend on.
    """
    own = kept(graph, buffers)
    lines = {}
    for line in (TRAINING, INFERENCE):
        uses: list[Use] = []
        phases = {}
        for phase in (phase for phase in PHASES if PHASES[phase] == line):
            phases[phase] = range(len(uses), len(uses) + len(order.get(phase, ())))
            uses += order.get(phase, ())
        lines[line] = Timeline(tuple(uses), phases)
    found: dict[str, list[Span]] = {line: [] for line in lines}
    sharing = {line: all_spans(timeline.uses, buffers, own) for line, timeline in lines.items()}
    for name in sorted(buffers.keys() - own):
        spans = {line: sharing[line].get(name, []) for line in lines}
        if not any(spans.values()) or None in spans.values():
            own.add(name)
            continue
        for line, of in spans.items():
            found[line] += of or ()
    equal: dict[str, tuple[Buffer, str]] = {}
    for line, timeline in lines.items():
        padded = [span for span in found[line] if is_padded(buffers[span.storage])]
        plain = placed([span for span in found[line] if not is_padded(buffers[span.storage])])
        together = [*plain, *_among_equals(padded, buffers, timeline, equal)]
        lines[line] = replace(timeline, spans=tuple(sorted(together, key=lambda span: span.first)))
    touched = {phase: set().union(*(use.touched for use in order.get(phase, ()))) for phase in PHASES}
    alone = {name: _first_phase(name, buffers[name], touched) for name in buffers if name in own}
    before = {*remembered, *carried(order.get("forward", ()), buffers)}
    return MemoryPlan(buffers, lines, alone, equal, frozenset(before))


def carried(forward: Sequence[Use], buffers: Mapping[str, Buffer]) -> set[str]:
    """What forward changes and needs as it was before, though nobody has called it a state."""
    set_first: dict[str, bool] = {}
    for use in forward:
        for name in use.touched:
            set_first.setdefault(name, name not in use.read)
    changed = set().union(*(use.changed for use in forward))
    return {name for name in changed if not set_first[name] and buffers[name].role != "state"}


def kept(graph: Graph, buffers: Mapping[str, Buffer]) -> set[str]:
    """Storage that nobody may overwrite, whatever kernels need."""
    if graph.settings.keeps_all:
        return set(buffers)
    found = {name for name, b in buffers.items() if b.role in (*LEARNED, "param_grad") or b.nbytes < LEAST}
    for ensemble in graph.ensembles:
        sinks = [edge.sink for edge in graph.readers(ensemble)]
        if graph.is_kept(ensemble) or isinstance(ensemble, (BatchSumEnsemble, LossEnsemble)):
            own = {name for name in buffers if name.startswith(f"{ensemble.name}.")}
            found |= {name for name in own if buffers[name].role != "temporary"}
        elif isinstance(ensemble, DataEnsemble):
            found |= {f"{ensemble.name}.value", f"{ensemble.name}.grad"}
        elif not sinks or any(isinstance(sink, LossEnsemble) for sink in sinks):  # what predicts, or Python reads
            found.add(f"{ensemble.name}.value")
    return found & buffers.keys()


def _first_phase(name: str, buffer: Buffer, touched: Mapping[str, Collection[str]]) -> str | None:
    """When storage of its own must be there: see :class:`MemoryPlan`.

    Args:
        name, buffer: of the storage.
        touched: phase of the net → the storage that its kernels touch.
    """
    if buffer.role in LEARNED or buffer.nbytes < LEAST or buffer.role == "value" and name.endswith(".value"):
        return ""
    touching = [phase for phase in PHASES if name in touched[phase]]
    if INFERENCE in touching and len(touching) > 1:
        return ""
    return touching[0] if touching else None


def _among_equals(
    spans: Sequence[Span],
    buffers: Mapping[str, Buffer],
    timeline: Timeline,
    equal: dict[str, tuple[Buffer, str]],
) -> list[Span]:
    """Spans of storage with padding, each in a place that only storage with the same zeros uses.

    Args:
        spans: to be placed.
        buffers: of all storage.
        timeline: of the spans.
        equal: the places so far; new ones are added.
    """
    phases = {number: phase for phase, numbers in timeline.phases.items() for number in numbers}
    busy: dict[str, int] = {}
    done = []
    for span in sorted(spans, key=lambda span: span.first):
        like = replace(buffers[span.storage], name="", role="value", per_item=True)
        free = (place for place, (b, _) in equal.items() if replace(b, name="") == like)
        place = next((place for place in free if busy.get(place, -1) < span.first), None)
        if place is None:
            place = f"equal.{len(equal)}"
            equal[place] = replace(like, name=place), phases[span.first]
        elif equal[place][1] != phases[span.first]:
            equal[place] = equal[place][0], "" if timeline.phases.get(INFERENCE) is not None else equal[place][1]
        busy[place] = span.last
        done.append(replace(span, region=place))
    return done
