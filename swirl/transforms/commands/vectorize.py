"""vectorize: a loop becomes lanes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from swirl.analysis.dependences import NotProved
from swirl.analysis.statements import outer_locals, statements_of
from swirl.analysis.strides import memory_stride
from swirl.errors import Refused
from swirl.ir.affine import ranges_at
from swirl.ir.hints import prefetches
from swirl.ir.nest import Nest, Program, constant, kind_of, loop_of, names_in, references, subscripts, variable_of
from swirl.ir.paths import Path, at, loops
from swirl.ir.printing import unparse
from swirl.ir.trees import declared_in, nodes
from swirl.transforms.arguments import Gather, Lanes, LoopName, NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.checked import lane_conflict
from swirl.transforms.rewrites.checks.refusals import WayOut, in_current, refuse
from swirl.transforms.rewrites.checks.ways_out import Step, Trial, either, middle, nest_of, others, step, tried
from swirl.transforms.rewrites.loops.sink import sink
from swirl.transforms.rewrites.loops.strips import strip
from swirl.transforms.rewrites.sites import Site, inner_name, loop_at, rewrite_each, taken_names
from swirl.transforms.rewrites.storage.scalar_replacement import localize_reductions, localize_winners
from swirl.transforms.rewrites.sums.argmax_lanes import winners_over, with_lane_winners, with_named_conditions
from swirl.transforms.rewrites.sums.reductions import with_partials


@command()
def vectorize(
    program: Program,
    loop_var: LoopName,
    factor: Lanes = 16,
    *,
    strided: Gather | None = None,
    nest: NestName | None = None,
) -> Program:
    """Turn a loop into vectors of ``factor`` lanes; a ragged end is masked, a reduction gets one partial result for
    each lane. So does a maximum or minimum of which the place is kept: ``if x[k] > best: best = x[k]; place = k``, or
    the same with a named condition (``better: bool = x[k] > best``, then ``best = x[k] if better else best``).

    rewrite (factor = 16):
        for w in range(56):                 for w in range(0, 56, 16):
            y[w] = x[w] * a         →           for w_lane in vector(min(16, 56 - w)):
                                                    y[w + w_lane] = x[w + w_lane] * a

    Loops inside move out of the lanes: the vector loop is always innermost. A condition on the loop around an inner one
    becomes a mask in that; one on data is refused.

    Args:
        loop_var: the loop; it keeps its name and then counts whole vectors.
        factor: lanes, a power of two (the target's vector width, or a multiple).
        strided: ``"gather"`` allows references whose lanes are not next to each other in memory. Where they are rows
            apart, copies of the loop along the rows (``unroll_and_jam``, at the most ``factor``) load rows whole, and
            turn them in registers.
        nest: only in this nest (index or label).

    Raises:
        CommandError: bad factor.
        Refused: lanes depend on each other, a loop inside has bounds that move with the lane, or a reference
            is not contiguous (the message names the tile or loop that would fix it).

    Source: Lake, section 3.3.
    """
    return rewrite_each(program, loop_var, nest, lambda before, site: _vectorized(before, site, factor, strided))


def _vectorized(program: Program, site: Site, factor: int, strided: str | None) -> Program:
    target = program.nests[site.nest]
    loop = loop_of(loop_at(program, site))
    note = "asked to become lanes"
    if loop.kind != "range" or loop.step != 1:
        what = f"a {loop.kind} loop" if loop.kind != "range" else f"a loop of step {loop.step}"
        raise refuse(f"{loop.var} is {what}", target, site.path, note)
    inner = [variable_of(n) for _, n in loops(loop_at(program, site).body) if kind_of(n) == "vector"]
    if inner:
        raise refuse(
            f"{loop.var} holds the vector loop {inner[0]}",
            target,
            site.path,
            note,
            way_out=tried(program, (step("unroll_and_jam", loop.var, 4, nest=nest_of(program, site)),)),
        )
    if prefetches(loop_at(program, site)):
        raise refuse(f"{loop.var} holds a prefetch", target, site.path, note, way_out="prefetch after vectorize")
    try:
        made = _lanes(program, site, factor)
    except NotProved:
        raise refuse("not proved within the time allowed", target, site.path, note) from None
    except Refused as refusal:
        raise in_current(
            refusal,
            target,
            site.path,
            note,
            f"{loop.var}_lane",
            loop,
            lambda: _ways_out(program, site, factor, strided),
        ) from refusal
    if strided is None:  # what lanes that depend on each other read need not be
        check_contiguous(program, target, site.path, lambda: _ways_out(program, site, factor, None))
    return made


def _lanes(program: Program, site: Site, factor: int) -> Program:
    loop = loop_of(loop_at(program, site))
    program, site = localize_reductions(program, site)
    named = with_named_conditions(program.nests[site.nest], site.path, taken_names(program))
    program, site = localize_winners(program.with_nest(site.nest, named), site)
    winners = [one for one in winners_over(program.nests[site.nest].body, site.path) if one.of_locals]
    lane = inner_name(program, site, f"{loop.var}_lane")
    program, inside, _ = strip(program, site, factor, lane, "vector")
    for winner in winners:
        program, inside = with_lane_winners(program, inside, winner, factor)
    program, inside = with_partials(program, inside, factor)
    program = sink(program, inside, "asked to become lanes")
    nest = program.nests[site.nest]
    known = statements_of(nest)
    for path, node in loops(nest.body):
        if variable_of(node) == lane:
            conflict = lane_conflict(known, path)
            if conflict is not None:
                raise refuse(
                    "one iteration needs what another one makes",
                    nest,
                    path,
                    "asked to become lanes",
                    witness=conflict,
                )
            if loop.extent != 1:
                _check_elements(nest, path, lane)
    return program


def _check_elements(nest: Nest, path: Path, lane: str) -> None:
    """Raises Refused where some lanes of the vector loop at ``path`` would write what all lanes share."""
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    common = _one_for_all(node.body, {lane, *declared_in(node)}, loop_of(node).extent is None)
    if common is not None:
        raise refuse(
            f"{unparse(common)} is one element for all lanes, and these do not agree on it",
            nest,
            path,
            "asked to become lanes",
        )


def _one_for_all(body: list[ast.stmt], varying: set[str], some_only: bool) -> ast.expr | None:
    """What lanes share, but would write with different values, or only in some lanes; None if there is nothing like it.

    Args:
        varying: names that differ from lane to lane.
        some_only: whether a lane may have nothing to do here.
    """
    for statement in body:
        target: ast.expr | None = None
        if isinstance(statement, ast.If):
            target = _one_for_all([*statement.body, *statement.orelse], varying, True)
        elif isinstance(statement, ast.AugAssign):
            target = statement.target
        elif isinstance(statement, ast.Assign) and (some_only or names_in(statement.value) & varying):
            target = statement.targets[0]
        if target is not None and not names_in(target) & varying:
            return target
    return None


def check_contiguous(program: Program, nest: Nest, path: Path, way_out: WayOut = None) -> None:
    """Raises Refused where a reference under the loop at ``path`` moves by more than one element with the
    loop."""
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    var = variable_of(node)
    for ref, stride in _strided_references(program, nest, path):
        name = unparse(ref.value)
        raise refuse(
            f"{unparse(ref)} is not contiguous in {var}",
            nest,
            path,
            "asked to become lanes",
            witness=_stride_text(name, var, stride),
            way_out=way_out,
        )


def _strided_references(program: Program, nest: Nest, path: Path) -> Iterator[tuple[ast.Subscript, int | None]]:
    """The references under the loop at ``path`` whose elements are not neighbours in it, and their distance."""
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    ranges = ranges_at(nest.body, (*path, ("body", 0)))
    for inner_path, _ in loops(node.body):
        ranges |= ranges_at([node], (("body", 0), *inner_path, ("body", 0)))
    for ref in references(node):
        buffer = program.buffers.get(unparse(ref.value))
        if buffer is not None:
            stride = memory_stride(buffer, subscripts(ref), variable_of(node), ranges)
            if stride not in (0, 1):
                yield ref, stride


def _stride_text(name: str, var: str, stride: int | None) -> str:
    if stride is None:
        return f"neighbouring {var} have no constant distance in {name}"
    return f"neighbouring {var} are {stride} elements apart in {name}"


# --- ways out -------------------------------------------------------------------------------------------
def _ways_out(program: Program, site: Site, factor: int, strided: str | None) -> str | None:
    """What can become lanes instead: another loop, in its place or outermost; this one, in another layout or
    gathered."""
    trial = Trial(program)
    var = loop_of(loop_at(program, site)).var
    only = nest_of(program, site)

    def lanes(name: str, **options: Any) -> tuple[Step, ...]:
        return (step("vectorize", name, factor, strided=strided, **options),)

    found = others(trial, site, lanes)
    if not found:  # an outer loop, which its bounds or a statement beside the inner one keep from moving inwards
        found = others(
            trial,
            site,
            lambda name, **options: (
                step("interchange", [name, var], nest=options.get("nest")),
                *lanes(name, **options),
            ),
            by_occurrence=False,
        )
    ways: list[str | None] = [" or ".join(", then ".join(one.text for one in steps) for steps in found)]
    loop = loop_at(program, site)
    preparing = [step("split", var, cuts, nest=only)] if (cuts := _cuts(loop)) else []
    preparing += [
        step("scalar_expand", name, var, nest=only) for name in outer_locals(program.nests[site.nest].body, loop)
    ]
    for one in preparing:
        if trial.works(one, *lanes(var, nest=only)):
            ways.append(f"{one.text}, then {lanes(var, nest=only)[0].text}")
    inner = middle(program, site)
    if inner is not None and trial.works(inner[0], *lanes(inner[1], nest=only)):
        ways.append(f"{inner[0].text}, then {lanes(inner[1], nest=only)[0].text}")
    if strided is None:
        places = [site, *_inside_blocks(program, site)] if not found else [site]
        ways += [_tiles(trial, place, factor) for place in places if nest_of(program, place) is None]
        gathered = step("vectorize", var, factor, strided="gather", nest=only)
        if trial.works(gathered):
            ways.append(f"{gathered.text} takes the elements one by one")
    return either(ways)


def _cuts(node: ast.For) -> list[int]:
    """Cuts around the one iteration for which a condition ``i == 3`` in the loop holds."""
    loop, cuts = loop_of(node), set[int]()
    for test in (n for s in node.body for n in nodes(s) if isinstance(n, ast.Compare)):
        value = constant(test.comparators[0])
        if unparse(test.left) == loop.var and isinstance(test.ops[0], ast.Eq) and value is not None:
            cuts |= {value, value + 1}
    ends = constant(loop.start), constant(loop.stop)
    if ends[0] is None or ends[1] is None:
        return []
    return sorted(cut for cut in cuts if ends[0] < cut < ends[1])


def _tiles(trial: Trial, site: Site, factor: int) -> str | None:
    """The layouts that make the loop at ``site`` contiguous, or None."""
    program, nest = trial.program, trial.program.nests[site.nest]
    loop = loop_of(loop_at(program, site))
    var, size = (loop.var, loop.extent) if loop.var.endswith("_inner") else (f"{loop.var}_inner", factor)
    tiles: dict[str, Step] = {}
    for ref, _ in _strided_references(program, nest, site.path):
        name = unparse(ref.value)
        buffer, indices = program.buffers[name], subscripts(ref)
        moving = [dim for dim, index in enumerate(indices) if loop.var in names_in(index)]
        if not moving or moving[0] < buffer.batch_dims or size is None:
            return None
        tiles[name] = step("tile", name, dim=moving[0] - buffer.batch_dims, factor=size)
    if not tiles or not trial.works(*tiles.values(), step("vectorize", var, factor)):
        return None
    many = "make" if len(tiles) > 1 else "makes"
    made = " and ".join(tile.text for tile in tiles.values())
    return f"{made} {many} {var}{_alias(program, var)} innermost in memory: {step('vectorize', var, factor).text}"


def _inside_blocks(program: Program, site: Site) -> list[Site]:
    """The other loops of the nest that run through a block of some buffer."""
    nest = program.nests[site.nest]
    found = {
        variable_of(node): Site(site.nest, path)
        for path, node in loops(nest.body)
        if kind_of(node) == "range" and variable_of(node).endswith("_inner")
    }
    return [place for place in found.values() if place != site]


def _alias(program: Program, var: str) -> str:
    """The older name of a loop inside a block, in brackets."""
    base = var.removesuffix("_inner")
    return next((f" ({alias}_inner)" for alias, names in program.aliases.items() if base in names and base != var), "")
