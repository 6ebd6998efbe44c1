"""Marked copies of a loop's body. Bodies are not copied before code generation."""

from __future__ import annotations

from collections.abc import Callable

from swirl.errors import Refused
from swirl.ir.nest import Program, loop_of
from swirl.ir.paths import Path
from swirl.transforms.arguments import Factors
from swirl.transforms.rewrites.checks.refusals import in_current, refuse
from swirl.transforms.rewrites.checks.ways_out import middle, nest_of, step, tried
from swirl.transforms.rewrites.loops.sink import sink
from swirl.transforms.rewrites.loops.strips import strip
from swirl.transforms.rewrites.loops.tile_sizes import in_parts
from swirl.transforms.rewrites.sites import Site, inner_name, loop_at, rewrite_each
from swirl.transforms.rewrites.storage.scalar_replacement import localize_reductions
from swirl.transforms.rewrites.sums.reductions import with_partials


def unrolled(
    program: Program, loop_var: str, factor: Factors, nest: int | str | None, *, jam: bool, unroll_type: int
) -> Program:
    partials, name = unroll_type == 0, "unroll_and_jam" if jam else "unroll"

    def rewrite(before: Program, site: Site, copies: int) -> Program:
        loop = loop_of(loop_at(before, site))
        target = before.nests[site.nest]
        if loop.kind != "range":
            raise refuse(f"{loop.var} is a {loop.kind} loop", target, site.path, "asked to be unrolled")
        if loop.extent is None:
            raise refuse(
                f"the bounds of {loop.var} are not constant",
                target,
                site.path,
                "asked to be unrolled",
                way_out=tried(
                    before,
                    (
                        step("tile_loop", loop.var, copies, tail="peel", nest=nest_of(before, site)),
                        step(name, f"{loop.var}_inner", copies, nest=nest_of(before, site)),
                    ),
                ),
            )
        if loop.extent == 0:  # nothing is left of this part: no copies
            return before
        try:
            return _copies(before, site, min(copies, loop.extent), jam, partials)
        except Refused as refusal:
            raise in_current(
                refusal,
                target,
                site.path,
                "asked to be unrolled",
                f"{loop.var}_unrolled",
                loop,
                _ways_out(before, site, copies) if jam else None,
            ) from refusal

    return rewrite_each(
        program,
        loop_var,
        nest,
        lambda before, site: in_parts(before, site, factor, "asked to be unrolled", rewrite),
    )


def _ways_out(program: Program, site: Site, copies: int) -> Callable[[], str | None]:
    """What can be unrolled instead: the part between the borders, the loop's statements separately, or copies without
    jamming."""
    var, only = loop_of(loop_at(program, site)).var, nest_of(program, site)
    jam = step("unroll_and_jam", var, copies, nest=only)

    def find() -> str | None:
        inner = middle(program, site)
        alternatives = [(inner[0], step("unroll_and_jam", inner[1], copies, nest=only))] if inner is not None else []
        return tried(
            program, *alternatives, (step("distribute", var, nest=only), jam), (step("unroll", var, copies, nest=only),)
        )()

    return find


def _copies(program: Program, site: Site, factor: int, jam: bool, partials: bool) -> Program:
    """The loop at ``site`` in copies; the remainder, if any, in copies too."""
    loop = loop_of(loop_at(program, site))
    if partials:
        program, site = localize_reductions(program, site)
    inner = inner_name(program, site, f"{loop.var}_unrolled")
    program, inside, rest = strip(program, site, factor, inner, "unrolled")
    if rest:
        after: Path = (*site.path[:-1], (site.path[-1][0], site.path[-1][1] + 1))
        leftover = loop_of(loop_at(program, Site(site.nest, after))).extent
        assert leftover is not None
        if jam and leftover > 1:
            program = _copies(program, Site(site.nest, after), leftover, jam, False)
    if partials and factor > 1:
        program, inside = with_partials(program, inside, factor)
    if jam:
        program = sink(program, inside, "asked to be unrolled and jammed")
    return program
