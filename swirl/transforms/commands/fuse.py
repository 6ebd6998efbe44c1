"""fuse: two loops joined to one."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from swirl.errors import Refused
from swirl.ir.nest import Nest, Program, constant, loop_of, substitute, variable_of
from swirl.ir.trees import declared_in
from swirl.transforms.arguments import Iterations, LoopName, NestName, Selection
from swirl.transforms.command import command
from swirl.transforms.rewrites.blocks import block_at
from swirl.transforms.rewrites.checks.dependence_order import check_order, tagged
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.checks.ways_out import Trial, either, step, tried
from swirl.transforms.rewrites.loops.fusion import NOTE, fuse_at, next_position
from swirl.transforms.rewrites.loops.nesting import nest_each, vars_below
from swirl.transforms.rewrites.sites import Site, find_loops, loop_at, loop_names


@command()
def fuse(
    program: Program,
    first: LoopName,
    second: LoopName | None = None,
    *,
    shift: Iterations = 0,
    guard: bool = False,
    nest: NestName | None = None,
) -> Program:
    """Join a loop with the next one of equal bounds: the first two neighbours, in one body or two nests, that can be.

    rewrite:
        for c in range(C): s                for c in range(C):
        for d in range(C): t        →           s
                                                t   (c for d)

    Assignments between the two loops move before the first one, or after the second one. Where no two neighbours can be
    joined, each of the nests between two outermost ones does so.

    Where the second loop reads what a later iteration of the first one makes, ``shift=1`` delays it by one: iteration
    ``c`` of the joined loop runs the first body for ``c`` and the second one for ``c - 1``. The first body's first
    iteration and the second one's last become separate loops, before and after it.

    Args:
        first: name of the first loop.
        second: name of the second loop; by default the same name.
        shift: iterations that the second loop is delayed by; the rest of the two becomes separate loops,
            ``<first>_before`` and ``<first>_after``.
        guard: the bounds, constants, may differ: the joined loop has the iterations of both, and their statements have
            conditions.
        nest: only where the first loop is in this nest (index or label).

    Raises:
        CommandError: bad shift.
        Refused: a dependence would be violated (the message names the least shift that would do), the bounds differ, or
            the loops to be shifted, or guarded, have another step than 1.

    Source: Lake, section 3.2; Wolfe, *High Performance Compilers for Parallel Computing*, chapter 9 (loop fusion).
    """
    following = find_loops(program, second or Selection.of(first).name)
    refused: Refused | None = None

    def offer(least: Callable[[], int | None]) -> str | None:
        return _ways_out(program, first, second, nest, least)

    sites = sorted(find_loops(program, first, nest), key=lambda s: (s.nest, s.path))
    for site in sites:
        neighbour = _next_loop(program, site)
        if neighbour is not None and any(neighbour is loop_at(program, other) for other in following):
            try:
                return fuse_at(program, site, shift, offer, guard=guard)
            except Refused as refusal:
                refused = refused or refusal
    try:
        joined = _fuse_past_nests(program, sites, following, shift, guard)
    except Refused as refusal:
        refused = refused or refusal
    else:
        if joined is not None:
            return joined
    if refused is not None:
        raise refused
    site = sites[0]
    raise refuse(
        f"no loop {second or first!r} follows directly",
        program.nests[site.nest],
        site.path,
        NOTE,
        way_out=lambda: _brought_next(program, first, second),
    )


def _next_loop(program: Program, site: Site) -> ast.For | None:
    nest = program.nests[site.nest]
    position = next_position(nest, site.path)
    following: ast.stmt | None = None
    if position is not None:
        following = block_at(nest, site.path)[position]
    elif len(site.path) == 1 and site.path[0][1] + 1 == len(nest.body) and site.nest + 1 < len(program.nests):
        following = program.nests[site.nest + 1].body[0]
    return following if isinstance(following, ast.For) else None


def _fuse_past_nests(
    program: Program, firsts: Sequence[Site], seconds: Sequence[Site], shift: int, guard: bool
) -> Program | None:
    """The program with the first two outermost loops joined that can be; None if no two are meant.

    Args:
        firsts, seconds: the loops that are meant.
        shift: iterations that the second one is delayed by.
        guard: whether bounds may differ.

    Raises:
        Refused: a dependence would be violated, or the bounds differ.
    """
    outermost = [
        (index, position)
        for index, nest in enumerate(program.nests)
        for position, statement in enumerate(nest.body)
        if isinstance(statement, ast.For)
    ]
    refused: Refused | None = None
    pairs = [(one, other) for number, one in enumerate(outermost) for other in outermost[number + 1 :]]
    for (index, position), later in pairs:
        if _outermost(index, position) not in firsts or _outermost(*later) not in seconds:
            continue
        places = {place: program.nests[place] for place in {index, later[0]}}
        split = {place: nest_each(program, found, found.body) for place, found in places.items()}
        if any(len(parts) < len(program.nests[place].body) for place, parts in split.items()):
            continue  # locals connect the statements
        nests = [part for place, nest in enumerate(program.nests) for part in split.get(place, [nest])]
        start = index + position
        end = later[0] + later[1] + (len(split[index]) - 1 if later[0] > index else 0)
        try:
            return fuse_at(*_brought_together(program.with_nests(nests), _outermost(start, 0), end), shift, guard=guard)
        except Refused as refusal:
            refused = refused or refusal
    if refused is not None:
        raise refused
    return None


def _outermost(nest: int, position: int) -> Site:
    return Site(nest, (("body", position),))


def _brought_together(program: Program, site: Site, partner: int) -> tuple[Program, Site]:
    """The program with the nests between two others moved before the first one, or where that is not possible after the
    second one; and the new place of the first one's loop.

    Raises:
        Refused: one of them can be in neither place.
    """
    start, end = site.nest, partner + 1
    bodies = [_own_names(nest, number) for number, nest in enumerate(program.nests[start:end])]
    body = tagged([statement for own in bodies for statement in own])
    rest = iter(body)
    pieces = [[next(rest) for _ in own] for own in bodies]
    first, *between, second = range(len(bodies))

    def check(order: list[int]) -> None:
        arranged = [statement for number in order for statement in pieces[number]]
        check_order(
            body,
            arranged,
            program.nests[start],
            site.path,
            NOTE,
            f"what is between it and {program.nests[partner].label} is needed there",
        )

    front: list[int] = []
    back: list[int] = []
    for number in between:
        try:
            later = [other for other in between if other > number]
            check([*front, number, first, *back, *later, second])
            front.append(number)
        except Refused:
            back.append(number)
    order = [*front, first, second, *back]
    check(order)
    nests = [*program.nests[:start], *(program.nests[start + number] for number in order), *program.nests[end:]]
    return program.with_nests(nests), Site(start + len(front), site.path)


def _own_names(nest: Nest, number: int) -> list[ast.stmt]:
    """The body with names for its locals that no other nest has, so that they stay different."""
    mapping: dict[str, ast.expr] = {
        name: ast.Name(f"{name}_of_{number}", ast.Load()) for name in declared_in(nest.function)
    }
    return [substitute(statement, mapping) for statement in nest.body]


# --- ways out -------------------------------------------------------------------------------------------
def _brought_next(program: Program, first: str, second: str | None) -> str | None:
    """The command that makes the loops neighbours: an interchange, or a distribution of a loop around."""
    both = step("fuse", first, second) if second else step("fuse", first)
    outer = [name for name in loop_names(program) if name not in (first, second)]
    inner = dict.fromkeys((first, second or first))
    swaps = [(step("interchange", [name, loop]), both) for name in outer for loop in inner]
    return tried(program, *swaps, *((step("distribute", name), both) for name in outer))()


def _ways_out(
    program: Program, first: str, second: str | None, nest: int | str | None, least: Callable[[], int | None]
) -> str | None:
    """Other ways to join the loops: a delay, another loop outermost, or a part of the longer one."""
    trial = Trial(program)
    ways = [_delayed(trial, first, second, nest, least())]
    sites = sorted(find_loops(program, first, nest), key=lambda s: (s.nest, s.path))
    site = next((s for s in sites if _next_loop(program, s) is not None), None)
    following = _next_loop(program, site) if site is not None else None
    if site is not None and following is not None:
        ways.append(_by_another_loop(trial, first, second, loop_at(program, site), following))
        ways.append(_by_a_part(trial, first, second, site, following))
    return either(ways)


def _delayed(trial: Trial, first: str, second: str | None, nest: int | str | None, shift: int | None) -> str | None:
    if not shift:
        return None
    names = [first, second] if second else [first]
    delayed = step("fuse", *names, shift=shift, nest=nest)
    if not trial.works(delayed):
        return None
    return f"{delayed.text} delays the second loop by {shift} iteration{'s' if shift > 1 else ''}"


def _by_another_loop(trial: Trial, first: str, second: str | None, node: ast.For, following: ast.For) -> str | None:
    """A loop inside both that can be fused once it is outermost."""
    for inner in sorted(vars_below(node) & {*vars_below(following), variable_of(following)}):
        names = dict.fromkeys(name for name in (first, second or first) if name != inner)
        steps = (*(step("interchange", [name, inner]) for name in names), step("fuse", inner))
        if trial.works(*steps):
            return ", then ".join(one.text for one in steps)
    return None


def _by_a_part(trial: Trial, first: str, second: str | None, site: Site, following: ast.For) -> str | None:
    """The longer loop split where the shorter one ends."""
    one, two = loop_of(loop_at(trial.program, site)), loop_of(following)
    starts, sizes = (constant(one.start), constant(two.start)), (one.extent, two.extent)
    if starts[0] is None or starts[0] != starts[1] or not sizes[0] or not sizes[1] or sizes[0] == sizes[1]:
        return None
    longer = first if sizes[0] > sizes[1] else second or first
    at_nest = site.nest if sizes[0] > sizes[1] or len(site.path) > 1 else site.nest + 1
    several = len(find_loops(trial.program, longer)) > 1
    cut = step("split", longer, [starts[0] + min(sizes[0], sizes[1])], nest=at_nest if several else None)
    both = step("fuse", first, second) if second else step("fuse", first)
    return f"{cut.text}, then {both.text}" if trial.works(cut, both) else None
