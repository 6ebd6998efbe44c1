"""What commands of a recipe do that whoever wrote it will hardly have meant: nothing, little, or harm.

Such a command is legal, and stays; ``explain`` and a warning say what it does. Each kind is a function of the program
before and after the command, in :data:`OF_COMMANDS`, or of all commands for a phase.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from swirl.analysis.accesses import moves
from swirl.analysis.loop_tree import loop_tree, sum_loop
from swirl.analysis.statements import Statement, statements_of
from swirl.analysis.trips import BARRIER, instructions
from swirl.ir.affine import affine, bounds
from swirl.ir.buffers import Buffer
from swirl.ir.hints import Prefetch, prefetch_of
from swirl.ir.nest import Nest, Program
from swirl.ir.paths import Path, at
from swirl.ir.phases import INFERENCE
from swirl.schedule.command_log import Outcome, Recorded, Traced
from swirl.target.targets import Target
from swirl.transforms import COMMANDS, LAYOUT_COMMANDS
from swirl.transforms.command import SELECTED
from swirl.transforms.rewrites.sites import find_loops, loop_names, resolve

LITTLE = 0.05
"""Share of a phase's work."""
MOST = 0.5
"""Share that other commands of the same name cover, so that a little one is meant."""
WHOLE = ("parallelize", "tile_loop", "unroll_and_jam", "vectorize")
"""Commands that are meant for most of a phase's work."""
REGIONS = 16
"""Parallel regions of an execution."""


@dataclass(frozen=True)
class Change:
    """What a command has done to a phase.

    Args:
        command: as it was written.
        phase: whose program it has changed.
        function: the phase of the recipe's function that it stands in; empty where there is none.
        before, after: the program.
        target: what code is made for.
    """

    command: Recorded
    phase: str
    function: str
    before: Program
    after: Program
    target: Target


def with_cautions(
    outcomes: Sequence[Outcome],
    trace: Sequence[Traced],
    programs: Mapping[str, Program],
    target: Target,
    concerns: Callable[[Recorded], bool],
) -> tuple[Outcome, ...]:
    """The outcomes of a recipe, each with what there is to say about its command.

    Args:
        outcomes: of all commands.
        trace: what these have changed, in order.
        programs: phase → program before the first of them.
        target: what code is made for.
        concerns: whether anything is to be said about a command.
    """
    if not any(concerns(outcome.command) for outcome in outcomes):
        return tuple(outcomes)
    said: dict[int, list[str]] = {}
    changes = [change for change in _changes(trace, programs, target) if concerns(change.command)]
    for change in changes:
        for kind in OF_COMMANDS:
            said.setdefault(id(change.command), []).extend(kind(change))
    for command, text in _little(changes):
        said.setdefault(id(command), []).append(text)
    last = {**programs} | {traced.phase: traced.program for traced in trace}
    others = _loops_of_others(trace, programs, concerns)
    made = []
    for outcome in outcomes:
        texts = said.get(id(outcome.command), [])
        if outcome.status == "applied" and concerns(outcome.command):
            texts = [*texts, *_divisions(outcome.command, last, others)]
        made.append(replace(outcome, cautions=tuple(dict.fromkeys(texts))) if texts else outcome)
    return tuple(made)


def _changes(trace: Sequence[Traced], programs: Mapping[str, Program], target: Target) -> Iterator[Change]:
    now = dict(programs)
    for traced in trace:
        before = now.get(traced.phase)
        now[traced.phase] = traced.program
        follows = traced.phase == INFERENCE and traced.command.phase != INFERENCE
        if before is not None and not follows and traced.command.name not in LAYOUT_COMMANDS:
            yield Change(traced.command, traced.phase, traced.function, before, traced.program, target)


def _loops_of_others(
    trace: Sequence[Traced], programs: Mapping[str, Program], concerns: Callable[[Recorded], bool]
) -> dict[str, set[str]]:
    """Phase → the loops that commands have made about which nothing is to be said, as those of the default schedule:
    whoever wrote the recipe has not seen them."""
    now = {phase: set(loop_names(program)) for phase, program in programs.items()}
    found: dict[str, set[str]] = {phase: set() for phase in programs}
    for traced in trace:
        after = set(loop_names(traced.program))
        if not concerns(traced.command):
            found.setdefault(traced.phase, set()).update(after - now.get(traced.phase, set()))
        now[traced.phase] = after
    return found


# --- single commands ----------------------------------------------------------------------------------------
def _of_another_phase(change: Change) -> Iterator[str]:
    """It is for another phase than its function; one for inference may stand beside those for forward, which inference
    follows."""
    if change.function and change.phase not in (change.function, INFERENCE):
        yield f"stands in {change.function}(), and changes {change.phase}"


def _nothing(change: Change) -> Iterator[str]:
    """The program is as it was."""
    if change.before.text == change.after.text and change.command.name != "fuse_layers":  # which joins phases
        yield "changes nothing"


def _one_iteration(change: Change) -> Iterator[str]:
    """Tiles are as long as the loop. (Cuts, and copies of a body, say themselves how many iterations are left.)"""
    if change.command.name != "tile_loop":
        return
    before, after = _extents(change.before), _extents(change.after)
    names = [name for name, extents in after.items() if extents == {1} and before.get(name) != {1}]
    if names:
        yield f"leaves {' and '.join(names)} one iteration"


def _extents(program: Program) -> dict[str, set[int | None]]:
    found: dict[str, set[int | None]] = {}
    for nest in program.nests:
        for each in loop_tree(nest).loops.values():
            found.setdefault(each.var, set()).add(each.loop.extent)
    return found


def _registers(change: Change) -> Iterator[str]:
    """Sums of a register tile, and an operand, need more registers than there are."""
    if change.command.name not in ("unroll", "unroll_and_jam", "vectorize") or not change.target.isa_flags:
        return
    before = max((count for _, count in _sums(change.before, change.target)), default=0)
    loop, most = max(_sums(change.after, change.target), key=lambda found: found[1], default=("", 0))
    if most >= change.target.registers > before:
        yield f"{most} sums in loop {loop} for {change.target.registers} registers: some of them pass through memory"


def _sums(program: Program, target: Target) -> Iterator[tuple[str, int]]:
    """Loops that add to sums, with the vectors and numbers that these are in one iteration."""
    for nest in program.nests:
        counts: dict[tuple[str, Path], dict[str, int]] = {}
        for statement in statements_of(nest):
            added = sum_loop(statement)
            if added is None or not added[2]:
                continue
            path, loop, inside = added
            sums = statement.accesses[0]
            copies = prod(each.extent or 1 for each in inside if each.kind == "unrolled" and moves(sums, each.var))
            lanes = max((each.extent or 1 for each in inside if each.kind == "vector"), default=1)
            counts.setdefault((loop.var, path), {})[sums.text] = copies * -(-lanes // target.simd_width)
        for (variable, _), found in counts.items():
            yield variable, sum(found.values())


def _small_regions(change: Change) -> Iterator[str]:
    """It opens a parallel region again and again, for less than the threads wait for each other."""
    if change.command.name != "parallelize":
        return
    for nest in change.after.nests:
        for loop in loop_tree(nest).regions():
            each = instructions(at(nest.body, loop.path), loop.around.ranges, change.target.simd_width)
            new = _is_new(change.before, nest.label, loop.var)
            if new and loop.entries >= REGIONS and each is not None and each < 2 * BARRIER:
                yield (
                    f"opens {loop.entries} parallel regions of {each} instructions each, {loop.var} inside of "
                    f"{', '.join(one.var for one in loop.around.loops)}: threads wait longer than they work; "
                    "parallelize a loop outside"
                )


def _is_new(before: Program, label: str, variable: str) -> bool:
    """Whether no loop of that name was parallel in a nest."""
    known = [loop for nest in before.nests if nest.label == label for loop in loop_tree(nest).loops.values()]
    return not any(loop.loop.kind == "parallel" and loop.var == variable for loop in known)


def _past_the_end(change: Change) -> Iterator[str]:
    """It fetches nothing that the array has."""
    if change.command.name != "prefetch":
        return
    before = {statement.text for nest in change.before.nests for statement in statements_of(nest)}
    first = [
        (fetched, _first_element(change.after.buffers[fetched.buffer], fetched, statement.ranges))
        for nest in change.after.nests
        for statement in statements_of(nest)
        if (fetched := prefetch_of(statement.node)) is not None and statement.text not in before
    ]
    if first and all(place is not None and place >= prod(change.after.buffers[f.buffer].shape) for f, place in first):
        yield f"fetches what is past the end of {first[0][0].buffer}, in each iteration"


def _first_element(buffer: Buffer, fetched: Prefetch, ranges: Mapping[str, tuple[int, int]]) -> int | None:
    """The least of the elements that are fetched, by its number in the logical array."""
    place: ast.expr = ast.Constant(0)
    for extent, index in zip(buffer.shape, fetched.indices, strict=True):
        place = ast.BinOp(ast.BinOp(place, ast.Mult(), ast.Constant(extent)), ast.Add(), index)
    limits = bounds(place, ranges)
    return None if limits is None else limits[0]


OF_COMMANDS = (_nothing, _of_another_phase, _one_iteration, _registers, _small_regions, _past_the_end)
"""What a command does, by the programs before and after it."""


# --- all commands for a phase -------------------------------------------------------------------------------
def _little(changes: Sequence[Change]) -> Iterator[tuple[Recorded, str]]:
    """Commands that cover little of a phase's work, where others of the same name do not cover most of it. Those that
    name a nest, a path or an occurrence say themselves that they mean a part."""
    shares = [(change, _share(change)) for change in changes]
    for change, share in shares:
        if share is None or share >= LITTLE:
            continue
        alike = [
            other
            for one, other in shares
            if other is not None and one.phase == change.phase and one.command.name == change.command.name
        ]
        if sum(alike) < MOST:
            yield change.command, f"covers {share:.2%} of the work of {change.phase}{_others(change)}"


def _share(change: Change) -> float | None:
    """The share of the work that is in the loops which a command names; None where it names none, or says that it
    means a part of those of a name."""
    names = _selected(change.command)
    if not names:
        return None
    sites = {(site.nest, site.path) for name in names for site in find_loops(change.before, name)}
    inside = [(n, path) for n, path in sites if not any((n, path[:depth]) in sites for depth in range(1, len(path)))]
    works = [_work(change.before.nests[nest], path) for nest, path in inside]
    whole = sum(instructions(statement, {}, 0) or 0 for nest in change.before.nests for statement in nest.body)
    return sum(works) / whole if whole else None


def _selected(command: Recorded) -> list[str]:
    """The loops that a command names; none where it says which of them."""
    if command.name not in WHOLE:
        return []
    arguments, options = command.given
    bound = COMMANDS[command.name].bound(arguments, options).arguments
    given = bound.get(SELECTED, ())
    names = [given] if isinstance(given, str) else list(given)
    return [] if bound.get("nest") is not None or any("/" in name or "[" in name for name in names) else names


def _work(nest: Nest, path: Path) -> int:
    """The instructions of a loop in all its executions, without vectors; 0 where that is not known."""
    loop = loop_tree(nest).loops[path]
    return (instructions(at(nest.body, path), loop.around.ranges, 0) or 0) * loop.entries


def _others(change: Change) -> str:
    """Which loops of a similar name have more of it."""
    names = {name for selected in _selected(change.command) for name in resolve(change.before, selected)}
    stems = {_stem(name) for name in names}
    similar = [name for name in loop_names(change.before) if _stem(name) in stems and name not in names]
    works = {
        name: sum(_work(change.before.nests[site.nest], site.path) for site in find_loops(change.before, name))
        for name in similar
    }
    most = max(works, key=works.__getitem__, default=None)
    return "" if most is None else f"; most of it is in {most}"


def _stem(name: str) -> str:
    """The name that a loop had before it was cut."""
    return re.sub(r"(_outer|_inner|_\d+)+$", "", name)


# --- layouts ------------------------------------------------------------------------------------------------
def _divisions(
    command: Recorded, programs: Mapping[str, Program], others: Mapping[str, Collection[str]]
) -> Iterator[str]:
    """An array is in blocks, and loops over its elements are not cut alike: each place takes a division."""
    if command.name != "tile":
        return
    bound = COMMANDS["tile"].bound(*command.given).arguments
    name, factor = bound["buffer"], bound["factor"]
    for phase, program in programs.items():
        buffer = program.buffers.get(name)
        if buffer is None or (phase == INFERENCE and "forward" in programs):
            continue
        dim = bound["dim"] + buffer.batch_dims
        statements = (statement for nest in program.nests for statement in statements_of(nest))
        whole = {var for statement in statements for var in _uncut(statement, name, dim, factor)}
        if (dim, factor) not in buffer.layout.blocks or not whole:
            continue
        if own := whole - set(others.get(phase, ())):
            loop = min(own)
            yield (
                f"{name} is in blocks of {factor}, and loop {loop} of {phase} is not: each place takes a division; "
                f"tile_loop({phase!r}, {loop!r}, {factor}) cuts it"
            )
        else:
            yield (
                f"{name} is in blocks of {factor}, and a loop over it that the schedule of {phase} has made is not: "
                f"each place takes a division; commands for {phase} in this recipe may cut it"
            )


def _uncut(statement: Statement, name: str, dim: int, factor: int) -> Iterator[str]:
    """The loops of which neighbouring iterations are in one block or in two, as it comes."""
    steps = {loop.var: loop.step for loop in statement.loops}
    for access in statement.accesses:
        form = affine(access.own[dim], statement.ranges) if access.name == name and dim < len(access.own) else None
        if form is None:
            continue
        inside = {var: abs(k) for var, k in form.terms.items() if var in steps and k * steps[var] % factor}
        span = sum(k * (statement.ranges[var][1] - statement.ranges[var][0]) for var, k in inside.items())
        if inside and form.constant % factor + span >= factor:
            yield from inside
