"""fuse and distribute: loops joined, and bodies split."""

from __future__ import annotations

import ast
from contextlib import suppress

from swirl.errors import Refused
from swirl.ir.nest import (
    Loop,
    Nest,
    Path,
    Program,
    at,
    fresh,
    loop_of,
    make_nest,
    names_in,
    replace_at,
    substitute,
)
from swirl.ir.trees import declared_in
from swirl.transforms.base import (
    Site,
    checked,
    command,
    find_loops,
    refuse,
    resolve,
    rewrite_each,
    taken_names,
)
from swirl.transforms.blocks import block_at
from swirl.transforms.order import check_order, split_body, tagged, vars_below


@command()
def fuse(program: Program, first: str, second: str | None = None, *, nest: int | str | None = None) -> Program:
    """Join a loop with the next one of equal bounds: the first two neighbours, in one body or two nests, that can be.

    rewrite:
        for c in range(C): s                for c in range(C):
        for d in range(C): t        →           s
                                                t   (c for d)

    Assignments between the two loops go in front of the first one, or behind the second one. Where no two neighbours
    can be joined, so does each of the nests between two outermost ones.

    Args:
        first: name of the first loop.
        second: name of the second loop; by default the same name.
        nest: only where the first loop is in this nest (index or label).

    Raises:
        Refused: a dependence would be violated, or the bounds differ.

    Source: Lake, section 3.2; Wolfe, *High Performance Compilers for Parallel Computing*, chapter 9 (loop fusion).
    """
    seconds = set(resolve(program, second or first))
    refused: Refused | None = None
    sites = sorted(find_loops(program, first, nest), key=lambda s: (s.nest, s.path))
    for site in sites:
        neighbour = _next_loop(program, site)
        if neighbour is not None and loop_of(neighbour).var in seconds:
            try:
                return fuse_at(program, site)
            except Refused as refusal:
                refused = refused or refusal
    try:
        joined = _fuse_past_nests(program, set(resolve(program, first)), seconds, {site.nest for site in sites})
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
        "asked to fuse",
        way_out="interchange brings a loop outermost; distribute separates what stands between",
    )


def _next_position(nest: Nest, path: Path) -> int | None:
    """Where the next loop of the block stands, if there are only assignments before it; else None."""
    block = block_at(nest, path)
    for position in range(path[-1][1] + 1, len(block)):
        if isinstance(block[position], ast.For):
            return position
        if isinstance(block[position], ast.If):
            return None
    return None


def _next_loop(program: Program, site: Site) -> ast.For | None:
    nest = program.nests[site.nest]
    position = _next_position(nest, site.path)
    following: ast.stmt | None = None
    if position is not None:
        following = block_at(nest, site.path)[position]
    elif len(site.path) == 1 and site.path[0][1] + 1 == len(nest.body) and site.nest + 1 < len(program.nests):
        following = program.nests[site.nest + 1].body[0]
    return following if isinstance(following, ast.For) else None


def _fuse_past_nests(program: Program, firsts: set[str], seconds: set[str], within: set[int]) -> Program | None:
    """The program with the first two outermost loops joined that can be; None where no two are called so.

    Args:
        firsts, seconds: names of the loops.
        within: the nests in which the first one may be.

    Raises:
        Refused: a dependence would be violated, or the bounds differ.
    """
    outermost = [
        (index, position, loop_of(statement).var)
        for index, nest in enumerate(program.nests)
        for position, statement in enumerate(nest.body)
        if isinstance(statement, ast.For)
    ]
    refused: Refused | None = None
    pairs = [(one, other) for number, one in enumerate(outermost) for other in outermost[number + 1 :]]
    for (index, position, var), later in pairs:
        if index not in within or var not in firsts or later[2] not in seconds:
            continue
        split = {place: _apart(program, program.nests[place], program.nests[place].body) for place in {index, later[0]}}
        if any(len(parts) < len(program.nests[place].body) for place, parts in split.items()):
            continue  # locals connect the statements
        nests = [part for place, nest in enumerate(program.nests) for part in split.get(place, [nest])]
        start = index + position
        end = later[0] + later[1] + (len(split[index]) - 1 if later[0] > index else 0)
        try:
            return fuse_at(*_brought_together(program.with_nests(nests), Site(start, (("body", 0),)), end))
        except Refused as refusal:
            refused = refused or refusal
    if refused is not None:
        raise refused
    return None


def _brought_together(program: Program, site: Site, partner: int) -> tuple[Program, Site]:
    """The program with the nests between two others in front of the first one, or where that is not possible behind the
    second one; and where the first one's loop is then.

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
        check_order(body, arranged, program.nests[start], site.path, "asked to fuse",
                    f"what stands between it and {program.nests[partner].label} is needed there")  # fmt: skip

    front: list[int] = []
    behind: list[int] = []
    for number in between:
        try:
            later = [other for other in between if other > number]
            check([*front, number, first, *behind, *later, second])
            front.append(number)
        except Refused:
            behind.append(number)
    order = [*front, first, second, *behind]
    check(order)
    nests = [*program.nests[:start], *(program.nests[start + number] for number in order), *program.nests[end:]]
    return program.with_nests(nests), Site(start + len(front), site.path)


def _own_names(nest: Nest, number: int) -> list[ast.stmt]:
    """The body with names for its locals that no other nest has, so that they are not taken for the same."""
    mapping: dict[str, ast.expr] = {
        name: ast.Name(f"{name}_of_{number}", ast.Load()) for name in declared_in(nest.function)
    }
    return [substitute(statement, mapping) for statement in nest.body]


def fuse_at(program: Program, site: Site) -> Program:
    """``program`` with the loop at ``site`` and the one that follows it joined."""
    nest = program.nests[site.nest]
    if len(site.path) == 1 and site.path[0][1] + 1 == len(nest.body):  # the neighbour is the next nest
        merged = [*nest.body, *program.nests[site.nest + 1].body]
        joined = make_nest(nest.label, merged, program.buffers)
        nests = [*program.nests[: site.nest], joined, *program.nests[site.nest + 2 :]]
        return checked(program, program.with_nests(nests).with_nest(site.nest, _fuse_in(program, joined, site.path)))
    return checked(program, program.with_nest(site.nest, _fuse_in(program, nest, site.path)))


def _fuse_in(program: Program, nest: Nest, path: Path) -> Nest:
    old = tagged(nest.body)
    first = at(old, path)
    field, index = path[-1]
    position = _next_position(nest, path)
    assert position is not None
    second_path = (*path[:-1], (field, position))
    second = at(old, second_path)
    between = [at(old, (*path[:-1], (field, i))) for i in range(index + 1, position)]
    assert isinstance(first, ast.For) and isinstance(second, ast.For)
    second = rename_locals(second, first, taken_names(program, [nest]))
    head, other = loop_of(first), loop_of(second)
    if other.var != head.var:
        if head.var in vars_below(second):  # a loop inside has the name that the outer one will get
            inner = fresh(head.var, taken_names(program, [nest]))
            second = substitute(second, {head.var: ast.Name(inner, ast.Load())})
        second = substitute(second, {other.var: ast.Name(head.var, ast.Load())})
        other = loop_of(second)
    old = replace_at(old, second_path, [second])
    if _bounds_text(head) != _bounds_text(other):
        raise refuse("the loops do not have the same bounds", nest, path, "asked to fuse",
                     way_out="split the longer one first")  # fmt: skip
    joined = Loop(
        head.var,
        head.kind if head.kind == other.kind else "range",
        head.start,
        head.stop,
        head.step,
        head.options,
    )
    rest = old
    for i in range(position, index, -1):
        rest = replace_at(rest, (*path[:-1], (field, i)), [])
    whole = joined.node([*first.body, *second.body])
    way_out = "interchange so that another loop is outermost, or leave the loops apart"
    if between and not any(isinstance(statement, ast.AnnAssign) for statement in between):
        behind = replace_at(rest, path, [whole, *between])
        with suppress(Refused):
            check_order(old, behind, nest, path, "asked to fuse")
            return nest.with_body(behind)
    new = replace_at(rest, path, [*between, whole])
    check_order(old, new, nest, path, "asked to fuse", way_out)
    return nest.with_body(new)


def _apart(program: Program, nest: Nest, body: list[ast.stmt]) -> list[Nest]:
    """One nest for each statement of ``body``; a single one where locals connect them."""
    if len(body) == 1 or any(isinstance(statement, ast.AnnAssign) for statement in body):
        return [nest.with_body(body)]
    labels = {other.label for other in program.nests}
    result = [make_nest(nest.label, body[:1], program.buffers)]
    for statement in body[1:]:
        label = fresh(nest.label, labels)
        labels.add(label)
        result.append(make_nest(label, [statement], program.buffers))
    return result


def _bounds_text(loop: Loop) -> tuple[str, str, int]:
    return ast.unparse(loop.start), ast.unparse(loop.stop), loop.step


def rename_locals(node: ast.For, other: ast.For, taken: set[str]) -> ast.For:
    """``node`` with its directly declared locals renamed where ``other`` declares the same names."""
    mine, theirs = declared_in(node), names_in(other)
    mapping: dict[str, ast.expr] = {}
    for name in sorted(mine & theirs):
        new = fresh(name, taken)
        taken.add(new)
        mapping[name] = ast.Name(new, ast.Load())
    if not mapping:
        return node
    return substitute(node, mapping)


@command()
def distribute(program: Program, loop_var: str, *, nest: int | str | None = None) -> Program:
    """Split a loop into one loop for each statement of its body; statements that share a local stay together.

    rewrite:
        for c in range(C):                  for c in range(C): s
            s                       →       for c in range(C): t
            t

    Args:
        loop_var: the loop.
        nest: only in this nest (index or label).

    Raises:
        Refused: a dependence would be violated, or locals connect all statements.

    Source: Wolfe, *High Performance Compilers for Parallel Computing*, chapter 9 (loop fission).
    """

    def rewrite(before: Program, site: Site) -> Program:
        target = before.nests[site.nest]
        old = tagged(target.body)
        node = at(old, site.path)
        assert isinstance(node, ast.For)
        cuts = _cuts(node.body)
        if len(node.body) > 1 and not cuts:
            raise refuse(
                "a local connects the statements of the body",
                target,
                site.path,
                "asked to distribute",
                way_out="distribute before the command that made the local (scalar_replace, hoist)",
            )
        pieces = split_body(node, cuts)
        assert pieces is not None  # no cut parts a local from its declaration
        new = replace_at(old, site.path, list(pieces))
        check_order(old, new, target, site.path, "asked to distribute")
        nests = _apart(before, target, new) if len(site.path) == 1 else [target.with_body(new)]
        return before.with_nest(site.nest, *nests)

    return rewrite_each(program, loop_var, nest, rewrite)


def _cuts(body: list[ast.stmt]) -> list[int]:
    """Where a body can be cut without parting a local's uses from its declaration."""
    declared = [ast.unparse(s.target) if isinstance(s, ast.AnnAssign) else None for s in body]
    return [
        cut for cut in range(1, len(body)) if not {name for s in body[cut:] for name in names_in(s)} & {*declared[:cut]}
    ]
