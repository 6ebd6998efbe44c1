"""Phases that fill dead memory with NaN (integers: -1) before each kernel and after the last one; but for what nothing
overwrites by then: users may read it."""

from __future__ import annotations

import numpy as np

from latte.planning.memory import PHASES, Timeline
from latte.runtime.executable import Executable


def run_poisoned(executable: Executable, phase: str) -> None:
    """What ``executable.run(phase)`` does, a kernel at a time. To take the method's place."""
    with executable.views.in_storage():
        executable._prepared(phase)
        line = executable.memory.plan.timelines[PHASES[phase]]
        first = line.phases[phase].start
        for number, (step, table) in enumerate(executable.tables(phase), start=first):
            _fill(executable, line, number, phase)
            executable.runner.phase([(step.kernel, table)]).run()
        _fill(executable, line, line.phases[phase].stop, phase)
    executable._ran(phase)


def _fill(executable: Executable, line: Timeline, number: int, phase: str) -> None:
    """Fill what no kernel from that number on needs as it is, and nobody may read when the phase has run."""
    memory = executable.memory
    overwritten = memory.overwritten(phase)
    shown = {id(span) for name, span in memory.spans(phase).items() if name not in overwritten}
    live = [s for s in line.spans if s.first < number and (number <= s.last or id(s) in shown)]
    if memory.own.region.arena is not None:
        everything = memory.own.region.bytes()
        keep = np.zeros(everything.size, bool)
        for span in live:
            if not span.region:
                keep[span.offset : span.offset + span.nbytes] = True
        everything[~keep] = 255  # of each byte: NaN, or -1
    for place in memory.plan.equal.keys() - {span.region for span in live}:
        buffer, _ = memory.plan.equal[place]
        array = memory._own_array(buffer)
        if array is not None:
            filling = np.full(buffer.shape, np.nan if buffer.dtype.startswith("float") else -1, array.dtype)
            array[...] = buffer.layout.pack(filling)
