"""Commands that mark copies: unroll, unroll_and_jam. Bodies are not copied before code generation."""

from __future__ import annotations

from collections.abc import Callable

from swirl.errors import CommandError, Refused
from swirl.ir.nest import Path, Program, loop_of
from swirl.transforms.base import (
    Site,
    command,
    in_current,
    inner_name,
    loop_at,
    refuse,
    rewrite_each,
)
from swirl.transforms.parts import Factors, check_factors, in_parts
from swirl.transforms.reductions import with_partials
from swirl.transforms.scalars import localize_reductions
from swirl.transforms.sink import sink
from swirl.transforms.split import strip
from swirl.transforms.ways import middle, nest_of, step, tried


@command("unroll_no_jam")
def unroll(
    program: Program, loop_var: str, factor: Factors, unroll_type: int = 0, *, nest: int | str | None = None
) -> Program:
    """Copy a loop's body ``factor`` times, one copy after the other. A reduction gets one partial result a
    copy.

    rewrite (factor = 4):
        for w in range(64):                 for w in range(0, 64, 4):
            s[w]                    →           for w_unrolled in unrolled(4):
                                                    s[w + w_unrolled]

    Args:
        loop_var: the loop; after ``vectorize`` this is the loop over whole vectors.
        factor: number of copies; what does not divide is a loop of its own, behind. Or those of each of consecutive
            tiles, ``[6, 6, 5]`` for 17 iterations: the loop is then cut into parts as by ``split``, equal neighbours in
            one, and each is unrolled by its own factor.
        unroll_type: 0 gives a reduction one partial result a copy, 1 lets the copies share one.
        nest: only in this nest (index or label).

    Raises:
        CommandError: bad factor, or the tiles do not sum to the loop's extent.
        Refused: the loop's bounds are not constant, or it is no plain loop.

    Source: Lake, section 2.2.
    """
    return _unroll(program, loop_var, factor, nest, jam=False, unroll_type=unroll_type)


@command()
def unroll_and_jam(program: Program, loop_var: str, factor: Factors, unroll_type: int = 0, *,
                   nest: int | str | None = None) -> Program:  # fmt: skip
    """Copy a loop's body ``factor`` times and join the loops inside: a register tile.

    rewrite (factor = 14):
        for x in range(56):                 for x in range(0, 56, 14):
            a: float32 = 0.0        →           a: float32[14] = empty(14)
            for c in range(C):                  for x_unrolled in unrolled(14): a[x_unrolled] = 0.0
                a += …                          for c in range(C):
            v[x] = a                                for x_unrolled in unrolled(14): a[x_unrolled] += …
                                                for x_unrolled in unrolled(14): v[x + x_unrolled] =
                                                a[x_unrolled]

    A condition on the loop around a loop inside goes into that one, to each copy's statements: ``if x < 3: for c: s``
    becomes ``for c: if x < 3: s``. One on data is evaluated in front, and kept in a local for each copy.

    Args:
        loop_var: the loop, of constant bounds.
        factor: number of copies, or those of each of consecutive tiles, ``[5, 5, 4]`` for 14 iterations.
        unroll_type: 0 gives a reduction one partial result a copy, 1 lets the copies share one.
        nest: only in this nest (index or label).

    Raises:
        CommandError: bad factor, or the tiles do not sum to the loop's extent.
        Refused: the loop's bounds are not constant, or it is no plain loop; the jam would turn a dependence round; or
            the bounds of a loop inside move with it.

    Source: Callahan, Carr, Kennedy, PLDI 1990; Lake, section 2.2; for combinations Tollenaere (TTiLE), section 3.4.3.
    """
    return _unroll(program, loop_var, factor, nest, jam=True, unroll_type=unroll_type)


def _unroll(
    program: Program, loop_var: str, factor: Factors, nest: int | str | None, *, jam: bool, unroll_type: int
) -> Program:
    if not isinstance(unroll_type, int) or unroll_type not in (0, 1):
        raise CommandError(f"unroll_type must be 0 or 1, not {unroll_type!r}")
    partials, name = unroll_type == 0, "unroll_and_jam" if jam else "unroll"
    factors = check_factors(factor)

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
                way_out=tried(before, (step("tile_loop", loop.var, copies, tail="peel", nest=nest_of(before, site)),
                                       step(name, f"{loop.var}_inner", copies, nest=nest_of(before, site)))),
            )  # fmt: skip
        if loop.extent == 0:  # a part that nothing is left for: no copy of nothing
            return before
        try:
            return _copies(before, site, min(copies, loop.extent), jam, partials)
        except Refused as refusal:
            raise in_current(
                refusal, target, site.path, "asked to be unrolled", f"{loop.var}_unrolled", loop,
                _ways_out(before, site, copies) if jam else None,
            ) from refusal  # fmt: skip

    return rewrite_each(
        program,
        loop_var,
        nest,
        lambda before, site: in_parts(before, site, factors, "asked to be unrolled", rewrite),
    )


def _ways_out(program: Program, site: Site, copies: int) -> Callable[[], str | None]:
    """What unrolls instead: the part between the borders, the loop's statements apart, or copies without jamming."""
    var, only = loop_of(loop_at(program, site)).var, nest_of(program, site)
    jam = step("unroll_and_jam", var, copies, nest=only)

    def find() -> str | None:
        inner = middle(program, site)
        alternatives = [(inner[0], step("unroll_and_jam", inner[1], copies, nest=only))] if inner is not None else []
        return tried(program, *alternatives, (step("distribute", var, nest=only), jam),
                     (step("unroll", var, copies, nest=only),))()  # fmt: skip

    return find


def _copies(program: Program, site: Site, factor: int, jam: bool, partials: bool) -> Program:
    """The loop at ``site`` in copies; the rest, if any, in copies too."""
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
