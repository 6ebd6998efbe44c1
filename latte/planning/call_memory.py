"""The memory of a net that is called as a function: what a call saves for its backward, and what is scratch.

A pure function from the kernels in their order of execution to places, as :mod:`latte.planning.memory` is for a net
that runs by itself. There, training is one line of time, and backward may overwrite what forward has left. Here
another call may come between the two, and backward may run twice: what crosses from forward to backward is in memory
that belongs to the call, and backward leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from latte.planning.memory import INFERENCE, TRAINING, Span, carried, is_padded, placed, rounded, spans_of, touches
from latte.planning.uses import Use
from swirl.errors import DeclarationError
from swirl.ir.buffers import Buffer

SAVED, SCRATCH, OWN = "saved", "scratch", "own"


@dataclass(frozen=True)
class CallMemory:
    """Where storage is that calls do not bring.

    Args:
        spans: phase of the net → storage → its spans, by the numbers of the phase's kernels. Their region is ``saved``
            (of the call), ``scratch``, or ``own``: memory that nothing else uses, as zeros in it must stay.
        saved: bytes that a call of forward saves.
        scratch: bytes.
        cleared: places of what is saved, and their bytes, that must be zero before forward: padding, and the gaps
            between storage, so that equal calls save equal bytes.
        changed: storage that is saved, and that backward changes: it works on a copy.
    """

    spans: Mapping[str, Mapping[str, tuple[Span, ...]]]
    saved: int
    scratch: int
    cleared: tuple[tuple[int, int], ...]
    changed: Mapping[str, int]

    def at(self, phase: str, number: int, storage: str) -> Span:
        """Where a storage is while a kernel of a phase runs."""
        return next(span for span in self.spans[phase][storage] if span.first <= number <= span.last)


def plan_call_memory(
    buffers: Mapping[str, Buffer], order: Mapping[str, Sequence[Use]], brought: Collection[str]
) -> CallMemory:
    """Places for what calls do not bring.

    Args:
        buffers: all storage, with layouts.
        order: phase of the net → its kernels in order of execution.
        brought: storage whose memory a call brings, or that is the same in all of them.

    Raises:
        DeclarationError: a layer goes on from what another call has left in a field that is no ``State``.
    """
    forward, backward = (order.get(phase, ()) for phase in ("forward", "backward"))
    kept = carried(forward, buffers) - set(brought)
    if kept:
        raise DeclarationError(
            f"{min(kept)} goes on from what the last call has left",
            way_out="declare it as State: then it belongs to the module",
        )
    lines = {TRAINING: [*forward, *backward], INFERENCE: list(order.get(INFERENCE, ()))}
    spans = {line: _spans(uses, buffers, brought) for line, uses in lines.items()}
    boundary = len(forward)
    crossing = [span for span in spans[TRAINING] if span.first < boundary <= span.last]
    saved, cleared, end = [], [], 0
    for span in crossing:
        used = 0 if span.region == OWN else buffers[span.storage].nbytes
        if used < span.nbytes:
            cleared.append((end + used, span.nbytes - used))
        saved.append(replace(span, region=SAVED, offset=end))
        end += span.nbytes
    done: dict[str, list[Span]] = {TRAINING: list(saved), INFERENCE: []}
    for line, found in spans.items():
        within = [span for span in found if span not in crossing]
        done[line] += placed([span for span in within if span.region == SCRATCH])
        done[line] += [span for span in within if span.region == OWN]
    changed = {
        span.storage: span.offset
        for span in saved
        if any(span.storage in use.changed for use in lines[TRAINING][boundary : span.last + 1])
    }
    scratch = max((span.end for found in done.values() for span in found if span.region == SCRATCH), default=0)
    phases = {
        "forward": _of_phase(done[TRAINING], 0),
        "backward": _of_phase(done[TRAINING], boundary),
        INFERENCE: _of_phase(done[INFERENCE], 0),
    }
    return CallMemory(phases, end, scratch, tuple(cleared), changed)


def _spans(uses: Sequence[Use], buffers: Mapping[str, Buffer], brought: Collection[str]) -> list[Span]:
    """The spans of all storage that is not brought; its region says whether it may share memory."""
    found = []
    for name, touching in touches(uses).items():
        if name in brought:
            continue
        nbytes = rounded(buffers[name].nbytes)
        spans = spans_of(uses, name, nbytes, touching)
        if spans is None or is_padded(buffers[name]):
            found.append(Span(name, touching[0], touching[-1], nbytes, region=OWN))
        else:
            found += [replace(span, region=SCRATCH) for span in spans]
    return found


def _of_phase(spans: Sequence[Span], first: int) -> dict[str, tuple[Span, ...]]:
    """Storage → its spans, as a phase counts its kernels whose first one has this number."""
    found: dict[str, tuple[Span, ...]] = {}
    for span in spans:
        own = replace(span, first=span.first - first, last=span.last - first)
        found[span.storage] = (*found.get(span.storage, ()), own)
    return found
