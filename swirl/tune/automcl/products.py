"""AutoMCL's schedules for products (table 1), each a recipe for any contraction that is one.

=========  =====================================================================================================
schedule   what it does
=========  =====================================================================================================
TMM        tiles; lanes are columns of C, whose elements of W are turned in registers, or gathered
TTMM       W is copied whole, turned, so that these elements are neighbours; then as TMM
DNMM       tiles; lanes are along the sum: a sum for each lane, added up at the end
DNMM332    the same with a second level of tiles
LPMM       D is copied in panels of M_t rows, of which neighbours are in one column; lanes are rows of C
RPMM       W is copied in panels of N_t rows; lanes are columns of C; the copy is made element by element
RPMMV      the same, and the copy is made in vectors, too
DPMM       both are copied; lanes are columns of C
=========  =====================================================================================================

In a tile, sums of a register tile stay in registers: as many rows and vectors as there are registers for. Loops over
tiles of rows and columns are shared by threads, as one range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from swirl.errors import CommandError, LatteError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program
from swirl.schedule.command_log import Recorded
from swirl.schedule.recipe import Schedule
from swirl.target.targets import Target
from swirl.tune.automcl.complexity import DPMM, LPMM, PRODUCTS, RPMM, RPMMV, TMM, TTMM
from swirl.tune.automcl.factors import LANES, Tiling
from swirl.tune.automcl.loops import Tiles, alone, copied, fill, register_tile, sum_up
from swirl.tune.automcl.roles import Product, product_of
from swirl.tune.candidates import Subject
from swirl.tune.prepared import schedule_others

MOST_SUMS = 8
"""Vectors of sums that an element of C has at the most, where lanes are along the sum: more hide no latency."""


def product_subject(m: int, k: int, n: int, target: Target) -> Subject:
    """A product by itself, to be scheduled: ``C[y, x] += D[y, k] * W[x, k]``, all in rows.

    Args:
        m, k, n: M, K and N.
        target: what code is made for.
    """
    text = f"for y in range({m}):\n for x in range({n}):\n  for k in range({k}):\n   C[y, x] += D[y, k] * W[x, k]"
    shapes = {"C": (m, n), "D": (m, k), "W": (n, k)}
    buffers = {name: Buffer(f"operands.{name}", shape, per_item=False) for name, shape in shapes.items()}
    program = parse_program(text, buffers, name="product.forward")
    return Subject.alone(program, "forward", ("product.", "operands."), target)


def product_recipe(
    schedule: str, tiling: Tiling, phase: str, known: Sequence[Recorded] = (), shares: bool = True
) -> Callable[[Schedule, Target], None]:
    """A recipe's function for a phase with a product.

    Args:
        schedule: one of :data:`swirl.tune.automcl.complexity.PRODUCTS`.
        tiling: sizes of its tiles.
        phase: that it schedules.
        known: commands of another schedule of the phase; nests without the product keep theirs.
        shares: whether threads share the tiles.

    Returns:
        takes a schedule and a target; raises CommandError or Refused where the phase has no product, or a command is
        refused.
    """
    if schedule not in PRODUCTS:
        raise CommandError(f"no schedule {schedule!r} for products", way_out=f"there are {', '.join(PRODUCTS)}")

    def scheduled(s: Schedule, target: Target) -> None:
        problem = alone(s, phase, target.simd_width)
        own = product_of(problem)
        tiles = Tiles(s, phase, problem)
        tiles.cut(own.m, tiling.mt, tiling.mo)
        tiles.cut(own.n, tiling.nt, tiling.no)
        if LANES[schedule] == "k":
            _along_sums(s, target, phase, own, tiles, tiling)
        else:
            _along_results(s, target, phase, own, tiles, tiling, schedule)
        if shares:
            tiles.share(own.outer, [own.m, own.n], not tiles.outside(own.k))
        schedule_others(s, phase, problem, known, shares)  # before the nest reads a copy: it is known by its operands
        _copies(s, target, phase, own, tiling, schedule, shares)

    return scheduled


def _along_results(
    s: Schedule, target: Target, phase: str, own: Product, tiles: Tiles, tiling: Tiling, schedule: str
) -> None:
    """Lanes of rows or columns of C; tiles of the sum are around those in the tile of C."""
    lanes, rows = (own.m, own.n) if LANES[schedule] == "m" else (own.n, own.m)
    tiles.cut(own.k, tiling.kt)
    tiles.vectors(lanes, target.simd_width)
    others = [name for d in own.sums for name in tiles.inside(d)]
    sums = tiles.outside(own.k)
    if sums:
        tiles.order(own.outer, [rows, lanes], [*others, *sums], tiles.inside(own.k))
    else:
        tiles.order(own.outer, [rows, lanes], [], [*others, *tiles.inside(own.k)])
    sum_up(s, phase, target, tiles.parts[rows], tiles.parts[lanes])
    if schedule == TMM and own.n in own.problem.tensor(own.right).apart:
        with suppress(LatteError):  # rows of W are loaded whole, a vector of them at a time, and turned in registers
            s.unroll(phase, tiles.inside(own.k)[-1], target.simd_width, unroll_type=1)


def _along_sums(s: Schedule, target: Target, phase: str, own: Product, tiles: Tiles, tiling: Tiling) -> None:
    """Lanes along the sum, K_t / V_w vectors of them: each has a sum of its own."""
    width = target.simd_width
    (part,) = tiles.parts[own.k]
    loop = part.inner[-1]
    copies = max(1, min(tiling.kt, loop.count) // width)
    sums = [name for d in own.sums for name in tiles.inside(d)]
    tiles.order(own.outer, [own.m, own.n], [], [*sums, *part.inside])
    # A register tile has as many sums for each of its elements.
    registers = max(4, target.registers // min(copies, MOST_SUMS))
    for row in tiles.parts[own.m]:
        most = max(column.inner[-1].count for column in tiles.parts[own.n])
        s.unroll_and_jam(phase, row.inside[-1], register_tile(row.inner[-1].count, most, registers)[0])
    for column in tiles.parts[own.n]:
        most = max(row.inner[-1].count for row in tiles.parts[own.m])
        s.unroll_and_jam(phase, column.inside[-1], register_tile(most, column.inner[-1].count, registers)[1])
    s.vectorize(phase, loop.name, width, strided="gather")
    if copies > 1:
        s.unroll(phase, loop.name, min(copies, MOST_SUMS))


def _copies(s: Schedule, target: Target, phase: str, own: Product, tiling: Tiling, schedule: str, shares: bool) -> None:
    """The copies of operands, and the nests that make them."""
    problem, width = own.problem, target.simd_width
    if schedule == TTMM:
        _, names = copied(s, phase, problem, own.right, own.n)
        for dimension, size in ((own.n, tiling.nt), (own.k, tiling.kt)):
            if size < problem.extents[dimension]:
                names[dimension] = list(s.tile_loop(phase, names[dimension][0], size))
        others = [name for d, own_loops in names.items() if d not in (own.n, own.k) for name in own_loops]
        tiles = [each[0] for each in (names[own.n], names[own.k]) if len(each) > 1]
        fill(s, phase, [*tiles, *others, names[own.k][-1], names[own.n][-1]], names[own.k][-1], width, shares)
    panels: Mapping[str, list[tuple[str, str, int]]] = {
        LPMM: [(own.left, own.m, tiling.mt)],
        RPMM: [(own.right, own.n, tiling.nt)],
        RPMMV: [(own.right, own.n, tiling.nt)],
        DPMM: [(own.left, own.m, tiling.mt), (own.right, own.n, tiling.nt)],
    }
    for tensor, dimension, size in panels.get(schedule, []):
        _, names = copied(s, phase, problem, tensor, dimension, size)
        *outer, inner = names.pop(dimension)
        row = names.pop(own.k)[-1]
        others = [name for own_loops in names.values() for name in own_loops]
        fill(s, phase, [*outer, *others, row, inner], row, None if schedule == RPMM else width, shares)
