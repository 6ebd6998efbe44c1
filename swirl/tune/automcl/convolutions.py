"""AutoMCL's schedules for convolutions, CONV and CONVOpt, each a recipe for any contraction that is one.

Both are TVM's direct convolution: lanes are result channels, OW_t pixels of a row are summed up together, over all
channels of the source, IC_t at a time, and all taps. Weights are copied first, into blocks of OC_t and IC_t channels,
unless their arrays have the result channels innermost already. CONV makes the copy row of taps by row of taps; CONVOpt
makes a block of it at a time, which misses less (theorem 2 and remark 1).

Borders have no zeros here: the first and the last tile of a row are separate, without the taps outside. The result is
stored where it belongs: where its channels are not innermost, element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from swirl.errors import CommandError, LatteError
from swirl.schedule.command_log import Recorded
from swirl.schedule.recipe import Schedule
from swirl.target.targets import Target
from swirl.tune.automcl.complexity import CONV, CONVOPT, ConvTile
from swirl.tune.automcl.factors import LINE, Filter, conv_sizes
from swirl.tune.automcl.loops import Tiles, alone, copied, fill, sum_up
from swirl.tune.automcl.roles import Convolution, Window, convolution_of
from swirl.tune.prepared import schedule_others

CONVOLUTIONS = (CONV, CONVOPT)
WORDS = LINE // 4
"""Of a cache line."""


@dataclass(frozen=True)
class ConvTiling:
    """Tile sizes of a convolution.

    Args:
        owt, ict, oct: OW_t pixels of a row, IC_t and OC_t channels.
        unroll_kw: whether CONV's taps of a row are copies, inside of the loop over IC_t; CONVOpt has no such choice.
    """

    owt: int
    ict: int
    oct: int
    unroll_kw: bool = False


def conv_recipe(
    schedule: str, tiling: ConvTiling, phase: str, known: Sequence[Recorded] = (), shares: bool = True
) -> Callable[[Schedule, Target], None]:
    """A recipe's function for a phase with a convolution.

    Args:
        schedule: ``CONV`` or ``CONVOpt``.
        tiling: sizes of its tiles.
        phase: that it schedules.
        known: commands of another schedule of the phase; nests without the convolution keep theirs.
        shares: whether threads share the tiles.

    Returns:
        takes a schedule and a target; raises CommandError or Refused where the phase has no convolution, or a command
        is refused.
    """
    if schedule not in CONVOLUTIONS:
        raise CommandError(f"no schedule {schedule!r} for convolutions", way_out=f"there are {', '.join(CONVOLUTIONS)}")

    def scheduled(s: Schedule, target: Target) -> None:
        problem = alone(s, phase, target.simd_width)
        own = convolution_of(problem)
        row = own.windows[-1]
        tiles = Tiles(s, phase, problem)
        clipped = any(s.borders(phase, loop.name) for loop in problem.loops[own.ow][-1:])
        for dimension, size in ((own.oc, tiling.oct), (own.ow, tiling.owt), (own.ic, tiling.ict)):
            tiles.cut(dimension, size)
        tiles.vectors(own.oc, target.simd_width)
        tall = [each.pixel for each in own.windows[:-1]]
        taps = [name for each in own.windows[:-1] for name in tiles.inside(each.tap)]
        across, channels = tiles.inside(row.tap), tiles.inside(own.ic)
        others = [name for d in own.sums for name in tiles.inside(d)]
        inner = [*channels, *across] if tiling.unroll_kw and schedule == CONV else [*across, *channels]
        sums = [*others, *tiles.outside(own.ic), *taps, *inner]
        tiles.order([*own.outer], [own.oc, *tall, own.ow], [], sums, last=[own.ow, own.oc])
        sum_up(s, phase, target, tiles.parts[own.ow], tiles.parts[own.oc])
        if tiling.unroll_kw and schedule == CONV:
            for name in across:
                s.unroll(phase, name, problem.extents[row.tap], unroll_type=1)
        if shares:
            tiles.share(own.outer, [own.oc, *tall], inside=True)
        if clipped:
            _cut_borders(s, phase, tiles, own)
        schedule_others(s, phase, problem, known, shares)  # before the nest reads a copy: it is known by its operands
        _copy(s, target, phase, own, tiling, schedule, shares)

    return scheduled


def _cut_borders(s: Schedule, phase: str, tiles: Tiles, own: Convolution) -> None:
    """The first and the last tile of a row apart, whose taps the borders clip."""
    for part in tiles.parts[own.ow]:
        for name in part.outer[-1:]:
            with suppress(LatteError):
                count = s.extent(phase, name) or 0
                if cuts := [cut for cut in s.borders(phase, name) or sorted({1, count - 1}) if 0 < cut < count]:
                    s.split(phase, name, cuts)


def _copy(
    s: Schedule, target: Target, phase: str, own: Convolution, tiling: ConvTiling, schedule: str, shares: bool
) -> None:
    """The weights in blocks of OC_t and IC_t channels; not where result channels are innermost."""
    problem = own.problem
    if own.oc not in problem.tensor(own.weights).apart:
        return
    _, loops = copied(s, phase, problem, own.weights, own.oc, tiling.oct, {own.ic: tiling.ict})
    *filters, inner = loops.pop(own.oc)
    *blocks, channel = loops.pop(own.ic)
    *tall, across = [loops.pop(each.tap)[0] for each in own.windows]
    others = [each for several in loops.values() for each in several]
    between = [*tall, *blocks] if schedule == CONV else [*blocks, *tall]
    fill(s, phase, [*filters, *others, *between, across, channel, inner], "", target.simd_width, shares)


def conv_tile(own: Convolution, tiling: ConvTiling) -> ConvTile:
    """A tile as the formulas take it. The source is taken as large as the windows reach, without zeros around it; of
    dimensions without a role, images are counted.

    Args:
        own: the convolution.
        tiling: sizes of its tiles.
    """
    extents = own.problem.extents
    row, column = own.windows[-1], own.windows[0] if len(own.windows) > 1 else None
    images = 1
    for each in own.outer:
        images *= extents[each]

    def reach(window: Window) -> int:
        return (extents[window.pixel] - 1) * window.stride + (extents[window.tap] - 1) * window.dilation + 1

    return ConvTile(
        images,
        extents[own.ic],
        reach(column) if column else 1,
        reach(row),
        extents[own.oc],
        extents[column.tap] if column else 1,
        extents[row.tap],
        tiling.owt,
        tiling.ict,
        tiling.oct,
        WORDS,
        s1=column.stride if column else 1,
        s2=row.stride,
        d1=column.dilation if column else 1,
        d2=row.dilation,
    )


def conv_space(schedule: str, own: Convolution, filtered: Filter | None) -> Iterator[ConvTiling]:
    """The tile sizes of a convolution: factors, of which the filter leaves some; CONV has each twice.

    Args:
        schedule: ``CONV`` or ``CONVOpt``.
        own: the convolution.
        filtered: the filter; None for all.
    """
    extents = own.problem.extents
    for owt, ict, oct_ in conv_sizes(extents[own.ow], extents[own.ic], extents[own.oc]):
        for unrolls in (False, True) if schedule == CONV and extents[own.windows[-1].tap] > 1 else (False,):
            tiling = ConvTiling(owt, ict, oct_, unrolls)
            if filtered is None or filtered.keeps_conv(schedule, conv_tile(own, tiling)):
                yield tiling
