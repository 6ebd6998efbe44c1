"""Commands that are refused where they stand, and would be accepted before one of those above them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swirl.errors import LatteError
from swirl.ir.nest import Program
from swirl.schedule.command_log import Recorded, Traced, run_command
from swirl.schedule.memo import Memo
from swirl.transforms import LAYOUT_COMMANDS

MOST = 8
"""Commands above a refused one that it is tried before."""


def accepted_before(
    command: Recorded, phase: str, trace: Sequence[Traced], begun: Mapping[str, Program], memo: Memo
) -> Recorded | None:
    """The nearest command above before which a refused one applies, and all others after it; None where there is none.

    Args:
        command: that has been refused.
        phase: that it is for.
        trace: what commands have made of the phases so far.
        begun: phase → program before the first of them.
        memo: where results of commands are kept.
    """
    own = [traced for traced in trace if traced.phase == phase]
    for place in range(len(own) - 1, max(-1, len(own) - 1 - MOST), -1):
        if own[place].command.name in LAYOUT_COMMANDS:  # which change other phases, too
            return None
        program = own[place - 1].program if place else begun[phase]
        try:
            for each in (command, *(traced.command for traced in own[place:])):
                arguments, options = each.given
                program = run_command(memo, each.name, program, arguments, options)
                if program.remarks:
                    break
            else:
                return own[place].command
        except LatteError:
            continue
    return None
