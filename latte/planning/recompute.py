"""Less memory: forward's values are kept where every path crosses, and what lies between is computed again in backward.

Source: Chen, Xu, Zhang, Guestrin, *Training deep nets with sublinear memory cost*, 2016 (segments of a budget).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from latte.planning.memory import all_spans, carried
from latte.planning.uses import Use
from swirl.ir.buffers import Buffer

BUDGETS = 12
"""How many sizes of segments are tried."""


@dataclass(frozen=True)
class Step:
    """A kernel of backward, or one of forward that runs again.

    Args:
        number: of the kernel in its phase.
        again: whether it is one of forward.
    """

    number: int
    again: bool


def backward_steps(
    forward: Sequence[Use],
    backward: Sequence[Use],
    buffers: Mapping[str, Buffer],
    own: Collection[str],
    remembered: Collection[str],
) -> list[Step]:
    """The kernels of backward with those of forward that run again, so that the most that lives at one time is least.

    Args:
        forward, backward: the kernels in order of execution.
        buffers: all storage.
        own: storage that does not share memory.
        remembered: states that values of forward depend on, and sums over the items of several processes; who touches
            them does not run again.
    """
    fixed = {*remembered, *carried(forward, buffers)}
    crossings = _crossings(forward, own)
    tried = [[Step(number, False) for number in range(len(backward))]]
    for cuts in _choices(forward, backward, buffers, own, crossings):
        tried.append(_steps(forward, backward, own, fixed, cuts))
    return min(tried, key=lambda steps: (_peak(forward, backward, buffers, own, steps), len(steps)))


def uses_of(steps: Sequence[Step], forward: Sequence[Use], backward: Sequence[Use]) -> list[Use]:
    """The kernels of such steps."""
    return [replace(forward[s.number], again=True) if s.again else backward[s.number] for s in steps]


def _crossings(forward: Sequence[Use], own: Collection[str]) -> list[int]:
    """The numbers of the kernels before which at most one value is needed of all that has been computed until then."""
    last = {name: number for number, use in enumerate(forward) for name in use.read}
    alive: set[str] = set()
    found = []
    for number, use in enumerate(forward):
        alive = {name for name in alive if last.get(name, -1) >= number}
        if number and len(alive) <= 1:
            found.append(number)
        alive |= use.changed - set(own)
    return found


def _choices(
    forward: Sequence[Use],
    backward: Sequence[Use],
    buffers: Mapping[str, Buffer],
    own: Collection[str],
    crossings: Sequence[int],
) -> list[tuple[int, ...]]:
    """Some of the crossings, so that segments between them are of about one size: several sizes."""
    needed = set().union(*(use.read for use in backward))
    weights = [sum(buffers[n].nbytes for n in use.changed - set(own) if n in needed) for use in forward]
    total = sum(weights)
    found = [tuple(crossings)]
    for part in range(1, BUDGETS + 1):
        budget, held, cuts = total / 1.6**part, 0, []
        for number, weight in enumerate(weights):
            if number in crossings and held >= budget:
                cuts.append(number)
                held = 0
            held += weight
        found.append(tuple(cuts))
    return [cuts for cuts in dict.fromkeys(found) if cuts]


def _steps(
    forward: Sequence[Use],
    backward: Sequence[Use],
    own: Collection[str],
    fixed: Collection[str],
    cuts: Sequence[int],
) -> list[Step]:
    """Backward, where each segment but the last one is computed again before the first kernel that needs it."""
    bounds = list(zip((0, *cuts), (*cuts, len(forward)), strict=True))
    segment_of: dict[str, int] = {}
    for segment, (first, stop) in enumerate(bounds[:-1]):
        if not any(use.touched & set(fixed) for use in forward[first:stop]):
            later = set().union(*(use.read for use in forward[stop:]))
            changed = set().union(*(use.changed for use in forward[first:stop])) - set(own)
            segment_of |= dict.fromkeys(changed - later, segment)
    needed: dict[int, set[str]] = {}
    for use in backward:
        for name in use.read & segment_of.keys():
            needed.setdefault(segment_of[name], set()).add(name)
    steps: list[Step] = []
    done: set[int] = set()
    for number, use in enumerate(backward):
        for segment in sorted({segment_of[name] for name in use.read & segment_of.keys()} - done, reverse=True):
            steps += [Step(again, True) for again in _recomputed(forward, bounds[segment], needed[segment], own)]
            done.add(segment)
        steps.append(Step(number, False))
    return steps


def _recomputed(
    forward: Sequence[Use], bounds: tuple[int, int], needed: Collection[str], own: Collection[str]
) -> list[int]:
    """The kernels of a segment that compute what is needed of it."""
    wanted, found = set(needed), []
    inside = set().union(*(use.changed for use in forward[slice(*bounds)])) - set(own)
    for number in reversed(range(*bounds)):
        if forward[number].changed & wanted:
            found.append(number)
            wanted |= forward[number].read & inside
    return found[::-1]


def _peak(
    forward: Sequence[Use],
    backward: Sequence[Use],
    buffers: Mapping[str, Buffer],
    own: Collection[str],
    steps: Sequence[Step],
) -> int:
    """The most bytes of shared memory that live at one time."""
    uses = [*forward, *uses_of(steps, forward, backward)]
    change = [0] * (len(uses) + 1)
    for span in (span for spans in all_spans(uses, buffers, own).values() for span in spans or ()):
        change[span.first] += span.nbytes
        change[span.last + 1] -= span.nbytes
    most = live = 0
    for each in change:
        live += each
        most = max(most, live)
    return most
