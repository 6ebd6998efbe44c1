"""What commands refuse, the whole message; and that the two instances a message names do touch that
element."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from inspect import cleandoc
from typing import Any

import pytest

from swirl.errors import CommandError, LayoutError, Refused
from swirl.ir.nest import Program
from swirl.schedule.command_log import pasted
from swirl.schedule.recipe import Schedule
from swirl.target.targets import TARGETS
from swirl.transforms import COMMANDS
from swirl.transforms.command import Command
from swirl.transforms.rewrites.sites import find_loops
from swirl.transforms.rewrites.storage.contraction import OWN
from tests.support import assert_same, program
from tests.transforms.witness import assert_witness

COLUMNS = program("for i in range(4):\n for j in range(6):\n  y[j, i] = x[j, i]", y=(6, 4), x=(6, 4))
SUMS = program("for i in range(4):\n for j in range(6):\n  s[i] += x[i, j]", s=(4,), x=(4, 6))
SCATTER = program(
    """
for n in range(2):
    for y in range(5):
        for k in range(3):
            grad_inputs[n, y + k] += grad[n, y] * weights[k]
""",
    grad_inputs=(2, 7),
    grad=(2, 5),
    weights=(3,),
)
SHIFT = program("for i in range(5):\n for j in range(4):\n  x[i + 1, j] = x[i, j + 1]", x=(6, 5))
TRIANGLE = program("for i in range(5):\n for j in range(0, i + 1):\n  x[i, j] = 1.0", x=(5, 5))
BLUR = program("for i in range(6):\n y[i] = x[i]\nfor i in range(6):\n z[i] = y[i + 1]", x=(6,), y=(7,), z=(6,))
PREFIX = program("for i in range(8):\n s[0] += x[i]\n y[i] = s[0]", s=(1,), x=(8,), y=(8,))
LOCAL = program("for i in range(4):\n t: float32 = x[i]\n y[i] = t", x=(4,), y=(4,))
JAM = program("for i in range(4):\n for j in range(3):\n  x[i + 1] = x[i] + y[j]", x=(5,), y=(3,))


def private(program: Program, *names: str) -> Program:
    """The program with buffers that nothing else reads."""
    return program.with_buffers(**{name: replace(program.buffers[name], role=OWN) for name in names})


def command(name: str, *arguments: Any, **options: Any) -> Callable[[Program], Program]:
    return lambda program: COMMANDS[name](program, *arguments, **options)


REFUSALS: dict[str, tuple[Program, Callable[[Program], Program], str]] = {
    "race": (
        SCATTER,
        command("parallelize", "y"),
        """
        two iterations would update the same element
            for n in range(2):
                for y in range(5):    ← asked to run in parallel
                    for k in range(3):
                        grad_inputs[n, y + k] += grad[n, y] * weights[k]
          y=0, k=1 and y=1, k=0 both update grad_inputs[n, 1]
          parallelize('n') (or 'k')""",
    ),
    "order of a reindexed loop": (
        SHIFT,
        command("reindex", back="4 - i"),
        """
        a dependence would be reversed
            for i in range(5):    ← asked to be reindexed
                for j in range(4):
                    x[i + 1, j] = x[i, j + 1]
          i=0, j=1 writes x[1, 1], which i=1, j=0 reads""",
    ),
    "sum in parallel": (
        SUMS,
        command("parallelize", "j"),
        """
        two iterations would update the same element
            for i in range(4):
                for j in range(6):    ← asked to run in parallel
                    s[i] += x[i, j]
          j=0 and j=1 both update s[i]
          parallelize('i')""",
    ),
    "read and written in parallel": (
        SHIFT,
        command("parallelize", "i"),
        """
        two iterations would touch the same element, one of them writing
            for i in range(5):    ← asked to run in parallel
                for j in range(4):
                    x[i + 1, j] = x[i, j + 1]
          i=0, j=1 writes x[1, 1], which i=1, j=0 reads
          parallelize('j')""",
    ),
    "parallel around parallel": (
        program("for i in range(4):\n y[i, 0] = 1.0\n for j in range(6):\n  y[i, j] = x[i, j]", y=(4, 6), x=(4, 6)),
        lambda p: COMMANDS["parallelize"](COMMANDS["parallelize"](p, "j"), "i"),
        """
        i holds the parallel loop j, not directly
            for i in range(4):    ← asked to run in parallel
                y[i, 0] = 1.0
                for j in parallel(6):
                    y[i, j] = x[i, j]
          parallelize one of them""",
    ),
    "parallel in parallel": (
        program("for i in range(4):\n y[i, 0] = 1.0\n for j in range(6):\n  y[i, j] = x[i, j]", y=(4, 6), x=(4, 6)),
        lambda p: COMMANDS["parallelize"](COMMANDS["parallelize"](p, "i"), "j"),
        """
        j is inside the parallel loop i, not directly
            for i in parallel(4):
                y[i, 0] = 1.0
                for j in range(6):    ← asked to run in parallel
                    y[i, j] = x[i, j]
          parallelize one of them""",
    ),
    "columns": (
        COLUMNS,
        command("vectorize", "j", 4),
        """
        y[j, i] is not contiguous in j
            for i in range(4):
                for j in range(6):    ← asked to become lanes
                    y[j, i] = x[j, i]
          neighbouring j are 4 elements apart in y
          vectorize('i', 4); vectorize('j', 4, strided='gather') takes the elements one by one""",
    ),
    "columns of another layout": (
        program("for n in range(2):\n for c in range(8):\n  y[n, c, 0] = x[n, c + 1, 0]", y=(2, 8, 3), x=(2, 9, 3)),
        lambda p: COMMANDS["vectorize"](COMMANDS["tile"](p, "y", 0, 4), "c_inner", 4),
        """
        x[n, c_outer * 4 + c_inner + 1, 0] is not contiguous in c_inner
            for n in range(2):
                for c_outer in range(2):
                    for c_inner in range(4):    ← asked to become lanes
                        y[n, c_outer * 4 + c_inner, 0] = x[n, c_outer * 4 + c_inner + 1, 0]
          neighbouring c_inner are 3 elements apart in x
          vectorize('c_inner', 4, strided='gather') takes the elements one by one""",
    ),
    "prefix sum": (
        PREFIX,
        command("vectorize", "i", 4),
        """
        a dependence would be reversed
            for i in range(8):    ← asked to become lanes
                s[0] += x[i]
                y[i] = s[0]
          i=0 reads s[0], which i=1 updates""",
    ),
    "a local for all iterations": (
        program(
            "for n in range(4):\n t: float32 = 0.0\n for k in range(1):\n  t += x[n, k]\n y[n] = t", x=(4, 1), y=(4,)
        ),
        command("parallelize", "k"),
        """
        t is declared outside of the loop, and one thread does not see what another one assigns
            for n in range(4):
                t: float32 = 0.0
                for k in range(1):    ← asked to run in parallel
                    t += x[n, k]
                y[n] = t
          declared as t: float32 = 0.0
          parallelize('n')""",
    ),
    "an array for all iterations": (
        program(
            "for n in range(4):\n t: float32[3] = empty(3)\n for k in range(3):\n  t[k] = x[n, k]\n y[n] = t[0] + t[2]",
            x=(4, 3),
            y=(4,),
        ),
        command("parallelize", "k"),
        """
        t is declared outside of the loop, and one thread does not see what another one assigns
            for n in range(4):
                t: float32[3] = empty(3)
                for k in range(3):    ← asked to run in parallel
                    t[k] = x[n, k]
                y[n] = t[0] + t[2]
          declared as t: float32[3] = empty(3)
          parallelize('n')""",
    ),
    "lanes of one element": (
        program("for i in range(8):\n s[i // 2] += x[i]", s=(4,), x=(8,)),
        command("vectorize", "i", 4, strided="gather"),
        """
        one iteration needs what another one makes
            for i in range(8):    ← asked to become lanes
                s[i // 2] += x[i]
          i=0 and i=1 both update s[0]""",
    ),
    "lanes that all write one element": (
        program("for i in range(8):\n if i == 3:\n  s[0] = x[i]", s=(1,), x=(8,)),
        command("vectorize", "i", 4),
        """
        s[0] is one element for all lanes, and these do not agree on it
            for i in range(8):    ← asked to become lanes
                if i == 3:
                    s[0] = x[i]""",
    ),
    "one lane writes what all have in common": (
        program("for i in range(8):\n y[i] = x[i]\n if i == 3:\n  s[0] = x[i]", s=(1,), x=(8,), y=(8,)),
        command("vectorize", "i", 4),
        """
        s[0] is one element for all lanes, and these do not agree on it
            for i in range(8):    ← asked to become lanes
                y[i] = x[i]
                if i == 3:
                    s[0] = x[i]
          split('i', [3, 4]), then vectorize('i', 4)""",
    ),
    "a recurrence with an outer loop": (
        program("for i in range(8):\n for j in range(6):\n  x[j + 1, i] = x[j, i] * 0.5", x=(7, 8)),
        command("vectorize", "j", 4, strided="gather"),
        """
        one iteration needs what another one makes
            for i in range(8):
                for j in range(6):    ← asked to become lanes
                    x[j + 1, i] = x[j, i] * 0.5
          j=0 writes x[1, i], which j=1 reads
          vectorize('i', 4, strided='gather')""",
    ),
    "a recurrence in a triangle": (
        program("for i in range(8):\n for j in range(i + 1):\n  x[j + 1, i] = x[j, i] * 0.5", x=(9, 8)),
        command("vectorize", "j", 4, strided="gather"),
        """
        one iteration needs what another one makes
            for i in range(8):
                for j in range(i + 1):    ← asked to become lanes
                    x[j + 1, i] = x[j, i] * 0.5
          j=0 writes x[1, i], which j=1 reads
          interchange(['i', 'j']), then vectorize('i', 4, strided='gather')""",
    ),
    "columns in blocks": (
        program("for i in range(4):\n for j in range(8):\n  y[i, j, i] = x[i, j, i] * 2.0", y=(4, 8, 4), x=(4, 8, 4)),
        command("vectorize", "j", 4),
        """
        y[i, j, i] is not contiguous in j
            for i in range(4):
                for j in range(8):    ← asked to become lanes
                    y[i, j, i] = x[i, j, i] * 2.0
          neighbouring j are 4 elements apart in y
          tile('y', dim=0, factor=4) and tile('x', dim=0, factor=4) make j_inner innermost in memory: """
        """vectorize('j_inner', 4); vectorize('j', 4, strided='gather') takes the elements one by one""",
    ),
    "a race in loops of one name": (
        program(
            "for i in range(4):\n for k in range(3):\n  s[i] += x[i, k]\n for k in range(3):\n  y[i, k] = s[i]",
            s=(4,),
            x=(4, 3),
            y=(4, 3),
        ),
        command("parallelize", "k", occurrence=0),
        """
        two iterations would update the same element
            for i in range(4):
                for k in range(3):    ← asked to run in parallel
                    s[i] += x[i, k]
                for k in range(3):
                    y[i, k] = s[i]
          k=0 and k=1 both update s[i]
          parallelize('i')""",
    ),
    "other loops of one name": (
        program(
            "for i in range(4):\n t[0] += x[i, 0]\n for k in range(3):\n  s[0] += x[i, k]\n"
            " for k in range(3):\n  y[i, k] = t[0]",
            s=(1,),
            t=(1,),
            x=(4, 3),
            y=(4, 3),
        ),
        command("parallelize", "i"),
        """
        two iterations would update the same element
            for i in range(4):    ← asked to run in parallel
                t[0] += x[i, 0]
                for k in range(3):
                    s[0] += x[i, k]
                for k in range(3):
                    y[i, k] = t[0]
          i=0 and i=1 both update t[0]
          parallelize('k', occurrence=1)""",
    ),
    "what is offered is run": (  # j and k carry nothing, but are not directly in n
        program(
            "for n in parallel(4):\n y[n, 0] = 1.0\n for j in range(6):\n  for k in range(2):\n"
            "   y[n, j] += x[n, j, k]",
            y=(4, 6),
            x=(4, 6, 2),
        ),
        command("parallelize", "k"),
        """
        k is inside the parallel loop n, not directly
            for n in parallel(4):
                y[n, 0] = 1.0
                for j in range(6):
                    for k in range(2):    ← asked to run in parallel
                        y[n, j] += x[n, j, k]
          parallelize one of them""",
    ),
    "lanes in the wrong order": (
        program("for i in range(8):\n x[i] = y[i]\n t[i] = x[i + 1]", x=(9,), y=(8,), t=(8,)),
        command("vectorize", "i", 4),
        """
        a dependence would be reversed
            for i in range(8):    ← asked to become lanes
                x[i] = y[i]
                t[i] = x[i + 1]
          i=0 reads x[1], which i=1 writes""",
    ),
    "interchange": (
        SHIFT,
        command("interchange", ["i", "j"]),
        """
        a dependence would be reversed
            for i in range(5):    ← asked to move
                for j in range(4):
                    x[i + 1, j] = x[i, j + 1]
          i=0, j=1 writes x[1, 1], which i=1, j=0 reads""",
    ),
    "a bound that moves": (
        program("for i in range(5):\n for j in range(0, i + 1, 2):\n  x[i, j] = 1.0", x=(5, 5)),
        command("interchange", ["i", "j"]),
        """
        the bounds of j move with i, and no bounds say the same in the other order
            for i in range(5):    ← asked to move
                for j in range(0, i + 1, 2):
                    x[i, j] = 1.0""",
    ),
    "fuse": (
        BLUR,
        command("fuse", "i"),
        """
        a dependence would be reversed
            for i in range(6):    ← asked to fuse
                y[i] = x[i]
            for i in range(6):
                z[i] = y[i + 1]
          i=1 writes y[1], which i=0 reads
          fuse('i', shift=1) delays the second loop by 1 iteration""",
    ),
    "fuse loops of other steps": (
        program("for i in range(4):\n y[i] = 1.0\nfor i in range(0, 4, 2):\n y[i] += 1.0", y=(4,)),
        command("fuse", "i", guard=True),
        """
        the bounds of the loops are not constants, or their steps are not 1
            for i in range(4):    ← asked to fuse
                y[i] = 1.0
            for i in range(0, 4, 2):
                y[i] += 1.0""",
    ),
    "fuse loops of other bounds against a dependence": (
        program("for i in range(5):\n y[i] = x[i]\nfor i in range(1, 4):\n x[i] = y[i + 1]", x=(5,), y=(5,)),
        command("fuse", "i", guard=True),
        """
        a dependence would be reversed""",
    ),
    "fuse across rows": (
        program(
            "for i in range(6):\n for j in range(4):\n  y[i, j] = x[i, j]\n"
            "for i in range(6):\n for j in range(4):\n  z[i, j] = y[5 - i, j]",
            x=(6, 4),
            y=(6, 4),
            z=(6, 4),
        ),
        command("fuse", "i"),
        """
        a dependence would be reversed
            for i in range(6):    ← asked to fuse
                for j in range(4):
                    y[i, j] = x[i, j]
            for i in range(6):
                for j in range(4):
                    z[i, j] = y[5 - i, j]
          i=3 writes y[3, j], which i=2 reads
          fuse('i', shift=5) delays the second loop by 5 iterations; interchange(['i', 'j']), then fuse('j')""",
    ),
    "fuse with too small a shift": (
        program("for i in range(6):\n y[i] = x[i]\nfor i in range(6):\n z[i] = y[i + 2]", x=(6,), y=(8,), z=(6,)),
        command("fuse", "i", shift=1),
        """
        a dependence would be reversed
            for i in range(6):    ← asked to fuse
                y[i] = x[i]
            for i in range(6):
                z[i] = y[i + 2]
          i=2 writes y[2], which i=0 reads
          fuse('i', shift=2) delays the second loop by 2 iterations""",
    ),
    "fuse with a shift of everything": (
        program("for i in range(4):\n y[i] = x[i]\nfor i in range(4):\n z[i] = y[3 - i]", x=(4,), y=(4,), z=(4,)),
        command("fuse", "i", shift=4),
        """
        i has 4 iterations, and a shift of 4 leaves none to join
            for i in range(4):    ← asked to fuse
                y[i] = x[i]
            for i in range(4):
                z[i] = y[3 - i]
          fuse('i', shift=3) delays the second loop by 3 iterations""",
    ),
    "fuse without a neighbour": (
        SUMS,
        command("fuse", "i"),
        """
        no loop 'i' follows directly
            for i in range(4):    ← asked to fuse
                for j in range(6):
                    s[i] += x[i, j]""",
    ),
    "fuse what an interchange brings next": (
        program(
            "for n in range(3):\n for c in range(2):\n  t[c] += x[n, c]\nfor c in range(2):\n m[c] = t[c]",
            t=(2,),
            m=(2,),
            x=(3, 2),
        ),
        command("fuse", "c"),
        """
        no loop 'c' follows directly
            for n in range(3):
                for c in range(2):    ← asked to fuse
                    t[c] += x[n, c]
          interchange(['n', 'c']), then fuse('c')""",
    ),
    "fuse unequal": (
        program("for i in range(4):\n x[i] = 1.0\nfor i in range(3):\n y[i] = 2.0", x=(4,), y=(3,)),
        command("fuse", "i"),
        """
        the loops do not have the same bounds
            for i in range(4):    ← asked to fuse
                x[i] = 1.0
            for i in range(3):
                y[i] = 2.0
          split('i', [3], nest=0), then fuse('i')""",
    ),
    "distribute": (
        program("for i in range(4):\n x[i + 1] = y[i]\n y[i + 1] = x[i]", x=(5,), y=(5,)),
        command("distribute", "i"),
        """
        a dependence would be reversed
            for i in range(4):    ← asked to distribute
                x[i + 1] = y[i]
                y[i + 1] = x[i]
          i=0 writes y[1], which i=1 reads""",
    ),
    "distribute a local": (
        LOCAL,
        command("distribute", "i"),
        """
        a local connects the statements of the body
            for i in range(4):    ← asked to distribute
                t: float32 = x[i]
                y[i] = t
          scalar_expand('t', 'i'), then distribute('i')""",
    ),
    "unroll": (
        TRIANGLE,
        command("unroll", "j", 2),
        """
        the bounds of j are not constant
            for i in range(5):
                for j in range(0, i + 1):    ← asked to be unrolled
                    x[i, j] = 1.0
          tile_loop('j', 2, tail='peel'), then unroll('j_inner', 2)""",
    ),
    "jam": (
        JAM,
        command("unroll_and_jam", "i", 2),
        """
        a dependence would be reversed
            for i in range(4):    ← asked to be unrolled
                for j in range(3):
                    x[i + 1] = x[i] + y[j]""",
    ),
    "jam a bound": (
        TRIANGLE,
        command("unroll_and_jam", "i", 2),
        """
        the bounds of j move with i_unrolled
            for i in range(5):    ← asked to be unrolled
                for j in range(0, i + 1):
                    x[i, j] = 1.0
          unroll('i', 2)""",
    ),
    "jam between the borders": (
        program(
            "for y in range(9):\n for k in range(max(0, 1 - y), min(3, 10 - y)):\n  z[y] += x[y + k - 1] * w[k]",
            z=(9,),
            x=(9,),
            w=(3,),
        ),
        command("unroll_and_jam", "y", 3),
        """
        the bounds of k move with y_unrolled
            for y in range(9):    ← asked to be unrolled
                for k in range(max(0, 1 - y), min(3, 10 - y)):
                    z[y] += x[y + k - 1] * w[k]
          split('y', [1, 8]), then unroll_and_jam('y_1', 3); unroll('y', 3)""",
    ),
    "tile a parallel loop": (
        COMMANDS["parallelize"](SUMS, "i"),
        command("tile_loop", "i", 2),
        """
        i is a parallel loop
            for i in parallel(4):    ← asked to be tiled
                for j in range(6):
                    s[i] += x[i, j]
          give this command before the one that made it so""",
    ),
    "split": (
        TRIANGLE,
        command("split", "j", [1]),
        """
        the bounds of j are not constant
            for i in range(5):
                for j in range(0, i + 1):    ← asked to be split
                    x[i, j] = 1.0
          interchange(['i', 'j']), then split('j', [1])""",
    ),
    "reverse": (
        program("for j in range(3):\n for i in range(5):\n  x[i + 1, j] = x[i, j]", x=(6, 3)),
        command("reverse", "i"),
        """
        a dependence would be reversed
            for j in range(3):
                for i in range(5):    ← asked to run backwards
                    x[i + 1, j] = x[i, j]
          i=0 writes x[1, j], which i=1 reads""",
    ),
    "reverse one of two statements": (
        program("for i in range(5):\n x[i + 1] = y[i] * 2.0\n z[i] = x[i]", x=(6,), y=(5,), z=(5,)),
        command("reverse", "i"),
        """
        a dependence would be reversed
            for i in range(5):    ← asked to run backwards
                x[i + 1] = y[i] * 2.0
                z[i] = x[i]
          i=0 writes x[1], which i=1 reads
          distribute('i'), then reverse('i')""",
    ),
    "reverse what overwrites": (
        program("for i in range(6):\n y[i // 2] = x[i]", y=(3,), x=(6,)),
        command("reverse", "i"),
        """
        a dependence would be reversed
            for i in range(6):    ← asked to run backwards
                y[i // 2] = x[i]
          i=0 and i=1 both write y[0]""",
    ),
    "reverse a parallel loop": (
        COMMANDS["parallelize"](SUMS, "i"),
        command("reverse", "i"),
        """
        i is a parallel loop
            for i in parallel(4):    ← asked to run backwards
                for j in range(6):
                    s[i] += x[i, j]
          give this command before the one that made it so""",
    ),
    "reverse a stride": (
        program("for i in range(5):\n for j in range(0, i + 2, 2):\n  x[i, j] = 1.0", x=(5, 6)),
        command("reverse", "j"),
        """
        j has a step of 2 and bounds that are not constant""",
    ),
    "scalar_expand a sum": (
        program(
            "for j in range(3):\n t: float32 = 0.0\n for i in range(4):\n  t += x[j, i]\n y[j] = t", x=(3, 4), y=(3,)
        ),
        command("scalar_expand", "t", "i"),
        """
        t is read before it is assigned: its value is carried between iterations
            for j in range(3):
                t: float32 = 0.0
                for i in range(4):    ← asked for one element an iteration
                    t += x[j, i]
                y[j] = t
          i=0 and i=1 both update t
          unroll('i', 4); vectorize('i')""",
    ),
    "scalar_expand what the next iteration reads": (
        program(
            "for j in range(3):\n t: float32 = 0.0\n for i in range(4):\n  y[j, i] = t\n  t = x[j, i]",
            x=(3, 4),
            y=(3, 4),
        ),
        command("scalar_expand", "t", "i"),
        """
        t is read before it is assigned: its value is carried between iterations
            for j in range(3):
                t: float32 = 0.0
                for i in range(4):    ← asked for one element an iteration
                    y[j, i] = t
                    t = x[j, i]
          i=0 writes t, which i=1 reads""",
    ),
    "scalar_expand what is read behind": (
        program(
            "for j in range(3):\n t: float32 = 0.0\n for i in range(4):\n  t = x[j, i]\n  y[j, i] = t\n z[j] = t",
            x=(3, 4),
            y=(3, 4),
            z=(3,),
        ),
        command("scalar_expand", "t", "i"),
        """
        t is used outside of the loop too
            for j in range(3):
                t: float32 = 0.0
                for i in range(4):
                    t = x[j, i]
                    y[j, i] = t
                z[j] = t    ← uses t""",
    ),
    "scalar_expand a moving bound": (
        program("for i in range(5):\n for j in range(0, i + 1):\n  t: float32 = x[j]\n  y[i, j] = t", x=(5,), y=(5, 5)),
        command("scalar_expand", ["t"]),
        """
        the bounds of j are not constant
            for i in range(5):
                for j in range(0, i + 1):    ← asked for one element an iteration
                    t: float32 = x[j]
                    y[i, j] = t""",
    ),
    "scalar_expand in parallel": (
        COMMANDS["parallelize"](LOCAL, "i"),
        command("scalar_expand", "t"),
        """
        i is a parallel loop: what it declares is private to an iteration already
            for i in parallel(4):    ← asked for one element an iteration
                t: float32 = x[i]
                y[i] = t
          give this command before the one that made it so""",
    ),
    "scalar_expand over too much": (
        program("for i in range(200000):\n t: float32 = x[i]\n y[i] = t", x=(200000,), y=(200000,)),
        command("scalar_expand", "t"),
        """
        an array of 200000 elements would not fit on the stack
            for i in range(200000):    ← asked for one element an iteration
                t: float32 = x[i]
                y[i] = t
          tile_loop('i', 16), then scalar_expand('t', 'i_inner')""",
    ),
    "tiles of a moving bound": (
        TRIANGLE,
        command("unroll_and_jam", "j", [2, 1]),
        """
        the bounds of j are not constant
            for i in range(5):
                for j in range(0, i + 1):    ← asked to be unrolled
                    x[i, j] = 1.0
          a combination of tiles needs a plain loop of constant extent""",
    ),
    "scalar_replace beside another element": (
        program("for i in range(4):\n for j in range(3):\n  x[i] += x[j] * y[j]", x=(4,), y=(3,)),
        command("scalar_replace", "x"),
        """
        x[j] may touch the element x[i]
            for i in range(4):    ← asked for scalars
                for j in range(3):
                    x[i] += x[j] * y[j]
          x[i] and x[j] are one element for i=0, j=0""",
    ),
    "scalar_replace what moves": (
        program("for i in range(4):\n for j in range(3):\n  x[j] += y[i, j]", x=(3,), y=(4, 3)),
        command("scalar_replace", "x"),
        """
        x[j] moves with j, and stays the same over no loop
            for i in range(4):
                for j in range(3):    ← asked for scalars
                    x[j] += y[i, j]
          interchange(['i', 'j']), then scalar_replace('x')""",
    ),
    "scalar_replace what may not be there": (
        program("for i in range(4):\n for j in range(3):\n  if y[j] > 0.0:\n   x[i - 1] += y[j]", x=(3,), y=(3,)),
        command("scalar_replace", "x"),
        """
        x[i - 1] is touched under conditions alone, and may be outside of x otherwise
            for i in range(4):    ← asked for scalars
                for j in range(3):
                    if y[j] > 0.0:
                        x[i - 1] += y[j]""",
    ),
    "scalar_replace of one use": (
        program("for i in range(4):\n y[i] = x[0] + x[1]\nz[0] = y[3]", x=(2,), y=(4,), z=(1,)),
        command("scalar_replace", "y"),
        """
        y[i] moves with i, and stays the same over no loop
            for i in range(4):    ← asked for scalars
                y[i] = x[0] + x[1]""",
    ),
    "contract across nests": (
        private(
            program("for i in range(6):\n y[i] = x[i]\nfor i in range(6):\n z[i] = y[i] * 2.0", x=(6,), y=(6,), z=(6,)),
            "y",
        ),
        command("contract", "y"),
        """
        y is touched by another nest too: z[i] = y[i] * 2.0 in program_1 reads it
            for i in range(6):    ← asked to contract y
                y[i] = x[i]
          fuse('i', nest=0), then contract('y')""",
    ),
    "contract what the next iteration reads": (
        private(program("for i in range(6):\n y[i] = x[i]\n z[i] = y[i] + y[i + 1]", x=(6,), y=(7,), z=(6,)), "y"),
        command("contract", "y"),
        """
        a read of y sees what another iteration, or nothing, has written
            for i in range(6):    ← asked to contract y
                y[i] = x[i]
                z[i] = y[i] + y[i + 1]
          in z[i] = y[i] + y[i + 1], i=0 reads y[i + 1], which nothing before it in the same iteration""",
    ),
    "prefetch where another loop of that name moves": (
        program("for i in range(4):\n z[i] = 0.0\nfor i in range(64):\n y[i] = x[i]", x=(64,), y=(64,), z=(4,)),
        command("prefetch", "x", "i"),
        """
        x[i] moves by 4 bytes an iteration of i
            for i in range(64):    ← asked to prefetch
                y[i] = x[i]""",
    ),
    "prefetch by less than a line": (
        program("for n in range(4):\n for i in range(64):\n  y[n, i] = x[n, i]", x=(4, 64), y=(4, 64)),
        command("prefetch", "x", "i", 2),
        """
        x[n, i] moves by 4 bytes an iteration of i
            for n in range(4):
                for i in range(64):    ← asked to prefetch
                    y[n, i] = x[n, i]
          prefetch('x', 'n', 2, 1); tile_loop('i', 16), then prefetch('x', 'i_outer', 2, 1)""",
    ),
    "prefetch what does not move": (
        program("for n in range(4):\n for i in range(64):\n  y[n, i] = x[i]", x=(64,), y=(4, 64)),
        command("prefetch", "x", "n"),
        """
        x[i] does not move with n
            for n in range(4):    ← asked to prefetch
                for i in range(64):
                    y[n, i] = x[i]""",
    ),
    "hoist nothing": (
        program("for i in range(4):\n y[i] = x[i] / sqrt(x[i])", x=(4,), y=(4,)),
        command("hoist", "i"),
        """
        every operation in i needs what changes in it, or may not be evaluated at all
            for i in range(4):    ← asked to move something out of
                y[i] = x[i] / sqrt(x[i])""",
    ),
    "hoist out of threads": (
        COMMANDS["parallelize"](program("for i in range(4):\n y[i] = x[i] * sqrt(w[0])", x=(4,), y=(4,), w=(1,)), "i"),
        command("hoist", "i"),
        """
        i is a parallel loop: its threads would wait for one that computes
            for i in parallel(4):    ← asked to move something out of
                y[i] = x[i] * sqrt(w[0])""",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_message(name: str) -> None:
    before, rewrite, expected = REFUSALS[name]
    with pytest.raises(Refused) as caught:
        rewrite(before)
    assert str(caught.value).startswith(cleandoc(expected))


# --- ways out ---------------------------------------------------------------------------------------------
def offered(way_out: str) -> list[list[str]]:
    """The commands that a way out names, each alternative a list of them in order."""
    found = []
    for alternative in re.split(r"; | or (?=\w+\()", way_out):
        calls = re.findall(r"\w+\((?:'|\[|\w+=|\))[^()]*(?:\([^()]*\)[^()]*)*\)?", alternative)
        found.append(calls)
        if others := re.search(r" \(or (.*)\)", alternative):  # of other loops
            found += [[re.sub(r"'\w+'\)$", f"{name})", calls[0])] for name in others[1].split(", ")]
    return [calls for calls in found if calls]


@pytest.fixture
def refused_on(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs on which commands have been refused."""
    found: list[Program] = []
    call = Command.__call__

    def noted(self: Any, program: Program, *arguments: Any, **options: Any) -> Program:
        try:
            return call(self, program, *arguments, **options)
        except Refused:
            found.append(program)
            raise

    monkeypatch.setattr(Command, "__call__", noted)
    return found


@pytest.mark.parametrize("name", REFUSALS)
def test_ways_out_run(name: str, refused_on: list[Program]) -> None:
    start, rewrite, _ = REFUSALS[name]
    with pytest.raises(Refused) as caught:
        rewrite(start)
    before = refused_on[0]
    for calls in offered(caught.value.way_out or ""):
        after = before
        for call in calls:
            after = eval(f"lambda program: COMMANDS[{call.split('(')[0]!r}](program, {call.split('(', 1)[1]}")(after)
        if set(after.buffers) == set(before.buffers) and after.buffers == before.buffers:
            assert_same(before, after)


@pytest.mark.parametrize("name", REFUSALS)
def test_ways_out_can_be_pasted(name: str, refused_on: list[Program]) -> None:
    """Into a recipe, as they are printed: with ``s.`` and the phase."""
    start, rewrite, _ = REFUSALS[name]
    with pytest.raises(Refused) as caught:
        rewrite(start)
    way_out, before = caught.value.way_out, refused_on[0]
    printed = pasted(way_out, "s.", "backward")
    assert (way_out is None) == (printed is None)
    calls = offered(way_out or "")
    if printed is None or not calls:
        assert printed == way_out
        return
    recipes = [[f"s.{call}" for call in each] for each in offered(re.sub(r"\bs\.(?=\w+\()", "", printed))]
    assert len(recipes) == len(calls)
    for lines in recipes:
        for line in lines:
            if "(or " not in printed:
                assert line in printed
        schedule = Schedule.alone({"backward": before.renamed("program.backward")}, TARGETS["portable"], "net.")
        exec("\n".join(lines), {"s": schedule})
        assert [outcome.status for outcome in schedule.outcomes] == ["applied"] * len(lines)


# --- the witness ----------------------------------------------------------------------------------------
# Locals are not among the arrays that are watched.
COLLIDING = re.compile(r"\d (and|writes|reads) .*\[(?!.*which nothing)")
WITNESSES = [name for name, (_, _, text) in REFUSALS.items() if COLLIDING.search(text)]


@pytest.mark.parametrize("name", WITNESSES)
def test_witness(name: str) -> None:
    before, rewrite, _ = REFUSALS[name]
    with pytest.raises(Refused) as caught:
        rewrite(before)
    assert_witness(before, caught.value)


# --- bad arguments --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rewrite", "message"),
    [
        (command("tile_loop", "i", 0), "factor must be a whole number of at least 1, not 0"),
        (command("tile_loop", "i", 2.5), "factor must be a whole number of at least 1, not 2.5"),
        (command("unroll", "i", True), "factor must be a whole number of at least 1, not True"),
        (command("unroll_and_jam", "i", -1), "factor must be a whole number of at least 1, not -1"),
        (command("unroll", "i", 2, unroll_type=2), "unroll_type must be 0 or 1, not 2"),
        (command("vectorize", "j", 6), "the number of lanes must be a power of two above 1, not 6"),
        (command("vectorize", "j", 1), "the number of lanes must be a power of two above 1, not 1"),
        (command("vectorize", "j", 4, strided="yes"), "strided must be 'gather' or left out, not 'yes'"),
        (command("tile_loop", "i", 2, tail="cut"), "tail must be one of min, mask, peel, not 'cut'"),
        (command("split", "i", [3, 2]), r"cuts must increase and be inside \(0, 4\), not \[3, 2\]"),
        (command("split", "i", [4]), r"cuts must increase and be inside \(0, 4\), not \[4\]"),
        (command("parallelize", "i", schedule="fast"), "schedule must be 'static'"),
        (command("interchange", ["i"]), r"interchange takes two loops, not \['i'\]"),
        (command("interchange", "ij"), "several loops are given as a list of names, not as 'ij'"),
        (command("reorder", "ij"), "several loops are given as a list of names, not as 'ij'"),
        (command("flatten", "ij"), "several loops are given as a list of names, not as 'ij'"),
        (command("reorder", ["i", 1]), r"a list of names, not as \['i', 1\]"),
        (command("parallelize", 0), "a loop is given by its name, not 0"),
        (command("split", "i", 5), "cuts are given as a list of whole numbers, not as 5"),
        (command("split", "i", [1.0]), r"cuts are given as a list of whole numbers, not as \[1.0\]"),
        (command("tile", "values", 0, 4), "no buffer named 'values'"),
        (command("tile", "x", 2, 4), "x has dimensions 0 to 0, not 2"),
        (command("scalar_replace", "t"), "no buffer named 't'"),
        (command("unroll_and_jam", "j", [2, 2, 3]), r"2 \+ 2 \+ 3 = 7 iterations, and j has 6\n  3 \+ 3 = 6"),
        (command("unroll", "j", [7]), r"7 = 7 iterations, and j has 6\n  6 = 6"),
        (command("tile_loop", "j", [4, 4]), r"4 \+ 4 = 8 iterations, and j has 6\n  3 \+ 3 = 6; s.combination\(6, 4\)"),
        (command("tile_loop", "j", []), "a combination of tiles has at least one tile"),
        (command("unroll", "j", [6, 0]), "a tile must be a whole number of at least 1, not 0"),
        (command("unroll", "j", "33"), "factor must be a whole number of at least 1, not '33'"),
        (command("reverse", "k"), "no loop named 'k' in program"),
        (command("reverse", "i", occurrence=1), "there is 1 loop 'i', counted from 0: no 1"),
        (command("scalar_expand", "t"), "no local named 't' in program\n  scalar_replace and hoist make locals"),
        (command("scalar_expand", []), "scalar_expand takes the names of locals, not an empty list"),
        (command("hoist", "k"), "no loop named 'k' in program"),
        (command("parallelize", "ii"), "no loop named 'ii' in program"),
        (command("unroll", "i", 2, nest="other"), "no nest 'other' in program\n  the nests are 0 program_0"),
        (lambda p: find_loops(p, "i", "other"), "no loop 'i' in nest 'other' of program"),
    ],
)
def test_bad_arguments(rewrite: Callable[[Program], Program], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        rewrite(SUMS)


def test_unknown_loops_get_the_nearest_name_and_the_list() -> None:
    with pytest.raises(CommandError) as caught:
        COMMANDS["parallelize"](program("for row in range(3):\n x[row] = 1.0", x=(3,)), "rows")
    assert caught.value.way_out == "did you mean 'row'? the loops are row"


@pytest.mark.parametrize(("name", "more"), [("tile", (0, 2)), ("scalar_replace", ())])
def test_unknown_buffers_get_the_nearest_name_and_the_list(name: str, more: tuple[int, ...]) -> None:
    with pytest.raises(CommandError) as caught:
        COMMANDS[name](program("for i in range(3):\n weights[i] = 1.0", weights=(3,)), "weigths", *more)
    assert caught.value.way_out == "did you mean 'weights'? the buffers are weights"


@pytest.mark.parametrize("rows", [2**15, 2**15 - 1])
def test_a_loop_is_counted_in_an_int(rows: int) -> None:
    large = program(f"for i in range({rows}):\n for j in range({2**16}):\n  x[i, j] = 0.0", x=(rows, 2**16))
    if rows * 2**16 < 2**31:
        assert f"in range({rows * 2**16})" in COMMANDS["flatten"](large, ["i", "j"]).text
        return
    with pytest.raises(Refused, match=r"2,147,483,648 iterations, more than an int counts(.|\n)*leave i out"):
        COMMANDS["flatten"](large, ["i", "j"])


def test_a_buffer_is_not_blocked_twice_in_different_ways() -> None:
    state = program("for i in range(4):\n s[i, 0] = 1.0", s=(4, 1))
    tiled = COMMANDS["tile"](state, "s", 0, 1)
    with pytest.raises(LayoutError, match="blocked"):
        COMMANDS["tile"](tiled, "s", 0, 2)


# --- several loops of one name --------------------------------------------------------------------------
def test_a_loop_that_does_not_qualify_does_not_block_another() -> None:
    before = program(
        "for i in range(8):\n s[0] += x[i]\n y[i] = s[0]\nfor i in range(8):\n z[i] = x[i] * 2.0",
        s=(1,),
        x=(8,),
        y=(8,),
        z=(8,),
    )
    after = assert_same(before, COMMANDS["vectorize"](before, "i", 4))
    assert after.nests[0] == before.nests[0] and "vector(4)" in after.nests[1].text
    assert after.remarks == ("loop i of program_0 stays as it is: a dependence would be reversed",)


@pytest.mark.parametrize("name", ["interchange", "reorder"])
def test_a_nest_that_does_not_qualify_does_not_block_another(name: str) -> None:
    before = program(
        "for i in range(5):\n for j in range(4):\n  x[i + 1, j] = x[i, j + 1]\n"
        "for i in range(5):\n for j in range(4):\n  y[i, j] = x[i, j]",
        x=(6, 5),
        y=(5, 4),
    )
    after = assert_same(before, COMMANDS[name](before, ["i", "j"] if name == "interchange" else ["j", "i"]))
    assert after.nests[0] == before.nests[0] and after.nests[1].body_text.startswith("for j")
    assert after.remarks == ("loop i of program_0 stays as it is: a dependence would be reversed",)


def test_the_first_is_told_about_where_none_qualifies() -> None:
    before = program(
        "for i in range(8):\n s[0] += x[i]\n y[i] = s[0]\nfor i in range(8):\n x[i + 1] = x[i]", s=(1,), x=(9,), y=(8,)
    )
    with pytest.raises(Refused) as caught:
        COMMANDS["vectorize"](before, "i", 4)
    assert "y[i] = s[0]" in str(caught.value)


def test_where_two_references_meet_they_do() -> None:
    with pytest.raises(Refused) as caught:
        COMMANDS["scalar_replace"](
            program("for i in range(6):\n for j in range(3):\n  x[i + 1] += x[2 * j] * y[j]", x=(7,), y=(3,)), "x"
        )
    found = re.fullmatch(r"x\[(.*)\] and x\[(.*)\] are one element for (.*)", str(caught.value.witness))
    assert found
    values = {name: int(value) for name, value in re.findall(r"(\w)=(\d+)", found[3])}
    assert values.keys() == {"i", "j"} and eval(found[1], dict(values)) == eval(found[2], dict(values))
