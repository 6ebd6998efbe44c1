"""The vectorize command: a loop becomes lanes."""

from __future__ import annotations

import ast

from swirl.errors import CommandError, Refused
from swirl.ir.affine import affine, coefficients, ranges_at
from swirl.ir.buffers import Buffer
from swirl.ir.deps import NotProved
from swirl.ir.hints import prefetches
from swirl.ir.layouts import in_memory
from swirl.ir.nest import Loop, Nest, Path, Program, at, loop_of, loops, names_in, references, subscripts
from swirl.ir.statements import statements
from swirl.ir.trees import declared_in
from swirl.transforms.base import (
    Site,
    check_factor,
    command,
    in_current,
    inner_name,
    lane_conflict,
    loop_at,
    refuse,
    rewrite_each,
)
from swirl.transforms.reductions import with_partials
from swirl.transforms.scalars import localize_reductions
from swirl.transforms.sink import sink
from swirl.transforms.split import strip


@command("simd")
def vectorize(program: Program, loop_var: str, factor: int = 16, *, strided: str | None = None,
              nest: int | str | None = None) -> Program:  # fmt: skip
    """Turn a loop into vectors of ``factor`` lanes; a ragged end is masked, a reduction gets one partial
    result a lane.

    rewrite (factor = 16):
        for w in range(56):                 for w in range(0, 56, 16):
            y[w] = x[w] * a         →           for w_lane in vector(min(16, 56 - w)):
                                                    y[w + w_lane] = x[w + w_lane] * a

    Loops inside move out of the lanes: the vector loop is always innermost.

    Args:
        loop_var: the loop; it keeps its name and then counts whole vectors.
        factor: lanes, a power of two (the target's vector width, or a multiple).
        strided: ``"gather"`` allows references whose lanes are not next to each other in memory.
        nest: only in this nest (index or label).

    Raises:
        CommandError: bad factor.
        Refused: lanes depend on each other, a loop inside has bounds that move with the lane, or a reference
            is not contiguous (the message names the tile or loop that would fix it).

    Source: Lake, section 3.3.
    """
    check_factor(factor)
    if factor & (factor - 1) or factor == 1:
        raise CommandError(f"the number of lanes must be a power of two above 1, not {factor}")
    if strided not in (None, "gather"):
        raise CommandError(f"strided must be 'gather' or left out, not {strided!r}")
    return rewrite_each(
        program, loop_var, nest, lambda before, site: _vectorized(before, site, factor, strided)
    )


def _vectorized(program: Program, site: Site, factor: int, strided: str | None) -> Program:
    target = program.nests[site.nest]
    loop = loop_of(loop_at(program, site))
    note = "asked to become lanes"
    if loop.kind != "range" or loop.step != 1:
        what = f"a {loop.kind} loop" if loop.kind != "range" else f"a loop of step {loop.step}"
        raise refuse(f"{loop.var} is {what}", target, site.path, note)
    inner = [loop_of(n).var for _, n in loops(loop_at(program, site).body) if loop_of(n).kind == "vector"]
    if inner:
        raise refuse(f"{loop.var} holds the vector loop {inner[0]}", target, site.path, note,
                     way_out="vectorize one of the loops, unroll_and_jam the other")  # fmt: skip
    if prefetches(loop_at(program, site)):
        raise refuse(f"{loop.var} holds a prefetch", target, site.path, note, way_out="prefetch after vectorize")
    if strided is None:
        check_contiguous(program, target, site.path)
    try:
        return _lanes(program, site, factor)
    except NotProved:
        raise refuse("not proved within the time allowed", target, site.path, note) from None
    except Refused as refusal:
        raise in_current(refusal, target, site.path, note, f"{loop.var}_lane", loop) from refusal


def _lanes(program: Program, site: Site, factor: int) -> Program:
    loop = loop_of(loop_at(program, site))
    program, site = localize_reductions(program, site)
    lane = inner_name(program, site, f"{loop.var}_lane")
    program, inside, _ = strip(program, site, factor, lane, "vector")
    program, inside = with_partials(program, inside, factor)
    program = sink(program, inside, "asked to become lanes")
    nest = program.nests[site.nest]
    known = statements(nest.body)
    for path, node in loops(nest.body):
        if loop_of(node).var == lane:
            conflict = lane_conflict(known, path)
            if conflict is not None:
                raise refuse(
                    "one iteration needs what another one makes",
                    nest,
                    path,
                    "asked to become lanes",
                    witness=conflict,
                    way_out="vectorize another loop",
                )
            if loop.extent != 1:
                _check_elements(nest, path, lane)
    return program


def _check_elements(nest: Nest, path: Path, lane: str) -> None:
    """Raises Refused where some lanes of the vector loop at ``path`` would write what all have in common."""
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    common = _one_for_all(node.body, {lane, *declared_in(node)}, loop_of(node).extent is None)
    if common is not None:
        raise refuse(
            f"{ast.unparse(common)} is one element for all lanes, and these do not agree on it",
            nest,
            path,
            "asked to become lanes",
            way_out="split takes out the iterations that write it; scalar_expand gives each iteration its own",
        )


def _one_for_all(body: list[ast.stmt], varying: set[str], some_only: bool) -> ast.expr | None:
    """What lanes have in common, and would write each something of its own, or only some of them; None where there is
    nothing like it.

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


# --- contiguity -----------------------------------------------------------------------------------------
def memory_stride(
    buffer: Buffer, indices: list[ast.expr], var: str, ranges: dict[str, tuple[int, int]]
) -> int | None:
    """Elements in memory between neighbouring values of ``var``; None where that is not constant."""
    strides = [1]
    for extent in reversed(buffer.physical_shape[1:]):
        strides.insert(0, strides[0] * extent)
    total = 0
    for index, stride in zip(in_memory(buffer.layout, indices, ranges), strides, strict=True):
        coefficient = coefficients(index, var) if affine(index) is not None else None
        if coefficient is None:
            if var not in {n.id for n in ast.walk(index) if isinstance(n, ast.Name)}:
                continue
            return None
        total += coefficient * stride
    return total


def check_contiguous(program: Program, nest: Nest, path: Path) -> None:
    """Raises Refused where a reference under the loop at ``path`` moves by more than one element with the
    loop."""
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    loop = loop_of(node)
    ranges = ranges_at(nest.body, (*path, ("body", 0)))
    for inner_path, inner in loops(node.body):
        ranges |= ranges_at([node], (("body", 0), *inner_path, ("body", 0)))
        del inner
    for ref in references(node):
        name = ast.unparse(ref.value)
        buffer = program.buffers.get(name)
        if buffer is None:
            continue
        stride = memory_stride(buffer, subscripts(ref), loop.var, ranges)
        if stride in (0, 1):
            continue
        raise refuse(
            f"{ast.unparse(ref)} is not contiguous in {loop.var}",
            nest,
            path,
            "asked to become lanes",
            witness=_how_far(name, loop.var, stride),
            way_out=_way_out(program, buffer, name, subscripts(ref), loop),
        )


def _how_far(name: str, var: str, stride: int | None) -> str:
    if stride is None:
        return f"neighbouring {var} lie at no constant distance in {name}"
    return f"neighbouring {var} lie {stride} elements apart in {name}"


def _way_out(program: Program, buffer: Buffer, name: str, indices: list[ast.expr], loop: Loop) -> str:
    """The loop that is contiguous, by its alias too; or the tile that would make this one contiguous."""
    gather, var = "strided='gather' takes the elements one by one", loop.var
    if buffer.layout.blocks:
        dim, _ = buffer.layout.blocks[-1]
        candidates = [
            n.id for n in ast.walk(indices[dim]) if isinstance(n, ast.Name) and n.id.endswith("_inner")
        ]
        if candidates:
            known = [
                f"{alias}_inner"
                for alias, loops_ in program.aliases.items()
                if candidates[0].removesuffix("_inner") in loops_
            ]
            alias = f" ({known[0]})" if known else ""
            innermost = f"the innermost dimension of {name} in memory is {candidates[0]}{alias}"
            return f"{innermost}: vectorize that loop; {gather}"
    dims = [
        d
        for d, index in enumerate(indices)
        if var in {n.id for n in ast.walk(index) if isinstance(n, ast.Name)}
    ]
    if dims and dims[0] >= buffer.batch_dims:
        shown = dims[0] - buffer.batch_dims
        index = indices[dims[0]]
        if ast.unparse(index) == var:
            return f"tile({name!r}, dim={shown}, factor=…) makes {var} innermost in memory; {gather}"
        form = affine(index)
        if var.endswith("_inner") and loop.extent is not None and form is not None and form.coefficient(var) == 1:
            return f"tile({name!r}, dim={shown}, factor={loop.extent}) makes {var} innermost in memory; {gather}"
    return gather
