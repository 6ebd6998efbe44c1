"""Tile sizes: the spaces that AutoMCL begins with (algorithm 1, and factors for convolutions), and its filter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

from swirl.target.targets import Target
from swirl.tune.automcl.complexity import (
    DNMM,
    DNMM332,
    DPMM,
    LPMM,
    RPMM,
    RPMMV,
    TMM,
    TTMM,
    ConvTile,
    Tile,
    t_c,
    t_m,
)
from swirl.tune.divisors import divisors

FLOAT = 4
"""Bytes of an element, :math:`D_ℓ`."""
LINE = 64
"""Bytes of a cache line, :math:`C_ℓ`."""
MOST = 20_000
"""Tilings of a product that are kept at the most."""
ENUMERATED = 200_000
"""Of more tilings some are drawn at random."""
LEVELS = {TMM: 1, TTMM: 1, DNMM: 1, DNMM332: 2, LPMM: 2, RPMM: 2, RPMMV: 2, DPMM: 2}
"""Levels of tiles along the rows and the columns of C. The paper says it of DNMM and DNMM332; TVM's schedule for RPMM
has two, and LPMM and DPMM are like it; TMM and TTMM have one, as nothing is said of another one."""
LANES = {TMM: "n", TTMM: "n", DNMM: "k", DNMM332: "k", LPMM: "m", RPMM: "n", RPMMV: "n", DPMM: "n"}
"""The dimension of the lanes, X: that of which neighbours are together in memory; LPMM's copy has those of M."""


@dataclass(frozen=True)
class Tiling:
    """Tile sizes of a product: (M_o, M_t, N_o, N_t, K_t) of algorithm 1.

    Args:
        mo, no: tiles of M_t (of N_t) that are together on the outer level; 1 on one level.
        mt, nt, kt: sizes of the innermost tiles.
    """

    mo: int
    mt: int
    no: int
    nt: int
    kt: int

    def tile(self, m: int, k: int, n: int, line: int) -> Tile:
        """As the formulas take it; see :class:`swirl.tune.automcl.complexity.Tile`."""
        return Tile(m, k, n, self.mt, self.kt, self.nt, line)


def initial_space(schedule: str, m: int, k: int, n: int, threads: int) -> Iterator[Tiling]:
    """The tile sizes that algorithm 1 begins with, each once: factors of what a thread gets of M and of N, for each way
    to share them, and of K.

    Rows need not be a multiple of their tiles: the last one is smaller. TVM could not do that with copies, for which
    the paper requires :math:`M_t | M` or :math:`N_t | N`; commands here can.

    Args:
        schedule: of a product.
        m, k, n: M, K and N.
        threads: p.
    """
    levels = LEVELS[schedule]
    found: dict[Tiling, None] = {}
    for py in divisors(threads):
        rows, columns = -(-m // py), -(-n // (threads // py))
        for mo, mt in _nested(rows, levels):
            for no, nt in _nested(columns, levels):
                for kt in divisors(k):
                    found[Tiling(mo, mt, no, nt, kt)] = None
    yield from found


def factor_space(schedule: str, m: int, k: int, n: int) -> Iterator[Tiling]:
    """TVM's space, which algorithm 1 is compared with: factors of the extents themselves (section 3, "factor").

    Args:
        schedule: of a product.
        m, k, n: M, K and N.
    """
    yield from initial_space(schedule, m, k, n, 1)


def power_space(schedule: str, m: int, k: int, n: int) -> Iterator[Tiling]:
    """TVM's other space: powers of 2 up to the extents (section 3, "power")."""
    levels = LEVELS[schedule]
    for mo, mt in _powers(m, levels):
        for no, nt in _powers(n, levels):
            for _, kt in _powers(k, 1):
                yield Tiling(mo, mt, no, nt, kt)


def _nested(extent: int, levels: int) -> list[tuple[int, int]]:
    """The outer and the inner size, whose product divides an extent."""
    if levels == 1:
        return [(1, inner) for inner in divisors(extent)]
    return [(outer, inner) for inner in divisors(extent) for outer in divisors(extent // inner)]


def _powers(extent: int, levels: int) -> list[tuple[int, int]]:
    sizes = [2**power for power in range(extent.bit_length()) if 2**power <= extent]
    if levels == 1:
        return [(1, inner) for inner in sizes]
    return [(outer, inner) for inner in sizes for outer in sizes if outer * inner <= extent]


@dataclass(frozen=True)
class Filter:
    """The paper's filter: :math:`X_t ≥ min(X, V_w)`, and :math:`T < Z_w / C_w`.

    The first condition is misprinted as :math:`X ≥ min(X_t, V_w)`, which holds always.

    Args:
        lanes: :math:`V_w`, words of a vector.
        lines: :math:`Z_w / C_w`, lines of the cache.
        line: :math:`C_w`, words of a line.
    """

    lanes: int
    lines: int
    line: int = LINE // FLOAT

    @classmethod
    def of(cls, target: Target) -> Filter:
        """For the level-2 cache of a core: tiles that fit the first one are few, and larger ones gain."""
        return cls(target.simd_width, target.l2_bytes // LINE)

    def keeps(self, schedule: str, tiling: Tiling, m: int, k: int, n: int) -> bool:
        """Whether a tiling of a product is left.

        Args:
            schedule: of the product.
            tiling: its sizes.
            m, k, n: M, K and N.
        """
        x, xt = {"m": (m, tiling.mt), "k": (k, tiling.kt), "n": (n, tiling.nt)}[LANES[schedule]]
        return xt >= min(x, self.lanes) and t_m(schedule, tiling.tile(m, k, n, self.line)) < self.lines

    def keeps_conv(self, schedule: str, tile: ConvTile) -> bool:
        """Whether a tile of a convolution is left; its lanes are result channels."""
        return tile.oct >= min(tile.oc, self.lanes) and t_c(schedule, tile) < self.lines


def kept_space(schedule: str, m: int, k: int, n: int, threads: int, filtered: Filter, most: int = MOST) -> list[Tiling]:
    """What the filter leaves of :func:`initial_space`; of more than ``most``, so many at random, always the same.

    T depends on the innermost sizes alone: those that are left are enumerated, the outer ones only counted where they
    are many.

    Args:
        schedule: of a product.
        m, k, n: M, K and N.
        threads: p.
        filtered: the filter.
        most: tilings that are kept at the most: the paper's spaces have usually less than 10,000.
    """
    families = list(_families(schedule, m, k, n, threads, filtered))
    weights = [len(mo) * len(no) for _, mo, no in families]
    found: dict[Tiling, None] = {}
    if sum(weights) <= ENUMERATED:
        for (mt, nt, kt), several_m, several_n in families:
            found.update((Tiling(mo, mt, no, nt, kt), None) for mo, no in product(several_m, several_n))
        return list(found) if len(found) <= most else Random(0).sample(list(found), most)
    random = Random(0)
    while len(found) < most:  # there are many more
        for (mt, nt, kt), several_m, several_n in random.choices(families, weights, k=most):
            found[Tiling(random.choice(several_m), mt, random.choice(several_n), nt, kt)] = None
    return list(found)[:most]


def _families(
    schedule: str, m: int, k: int, n: int, threads: int, filtered: Filter
) -> Iterator[tuple[tuple[int, int, int], tuple[int, ...], tuple[int, ...]]]:
    """M_t, N_t and K_t that the filter leaves, with all M_o and all N_o of each; some of them twice, by two ways to
    share rows and columns among threads."""
    for py in divisors(threads):
        rows, columns = -(-m // py), -(-n // (threads // py))
        for mt, nt, kt in product(divisors(rows), divisors(columns), divisors(k)):
            if filtered.keeps(schedule, Tiling(1, mt, 1, nt, kt), m, k, n):
                one = LEVELS[schedule] == 1
                outer = (divisors(rows // mt), divisors(columns // nt))
                yield (mt, nt, kt), (1,) if one else outer[0], (1,) if one else outer[1]


def conv_sizes(ow: int, ic: int, oc: int) -> Iterator[tuple[int, int, int]]:
    """The tile sizes of a convolution that the factor strategy begins with: OW_t, IC_t and OC_t divide the extents.

    Args:
        ow: pixels of a row of the result.
        ic, oc: channels of the source and of the result.
    """
    for owt in divisors(ow):
        for ict in divisors(ic):
            for oct_ in divisors(oc):
                yield owt, ict, oct_


def swell(space: Sequence[object], base: Sequence[object]) -> float:
    """How many times as large a space is as another one (figures 4 and 5)."""
    return len(space) / len(base) if base else float("inf")
