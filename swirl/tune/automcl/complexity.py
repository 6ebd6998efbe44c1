"""Cache misses of AutoMCL's schedules by the ideal cache model (AutoMCL, theorems 1 and 2, tables 2 and 3).

The model has one cache of :math:`Z_w` words in lines of :math:`C_w`, fully associative, that gives up the line which is
needed last. A row of n words costs at the most :math:`⌈n / C_w⌉ + 1` misses, wherever it begins. The formulas add such
rows up: nothing stays in the cache from one tile to the next, so they are bounds from above where a tile fits
(:math:`T < Z_w / C_w`), and far from the truth where much more than a tile does.

Names are the paper's. D is M × K, W is N × K, C = D · Wᵀ is M × N; index t is a tile's size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

TMM, TTMM, DNMM, LPMM, RPMM, DPMM = "TMM", "TTMM", "DNMM", "LPMM", "RPMM", "DPMM"
DNMM332, RPMMV = "DNMM332", "RPMMV"
CONV, CONVOPT = "CONV", "CONVOpt"
LIKE: Mapping[str, str] = {DNMM332: DNMM, RPMMV: RPMM}
"""Schedules that have the misses of another one: one more level of tiles, or lanes, change none of the terms."""
PRODUCTS = (TMM, TTMM, DNMM, DNMM332, LPMM, RPMM, RPMMV, DPMM)


def _over(words: int, line: int) -> int:
    """Lines of so many words that begin with a line."""
    return -(-words // line)


def row(words: int, line: int) -> int:
    """The lines of a row at the worst, wherever it begins.

    Args:
        words: of the row.
        line: words of a line, :math:`C_w`.
    """
    return _over(words, line) + 1


@dataclass(frozen=True)
class Tile:
    """A tile of a product, and what it is a tile of.

    Args:
        m, k, n: M, K and N; of a convolution that was made a product, those of the product.
        mt, kt, nt: sizes of the innermost tiles.
        line: words of a line, :math:`C_w`.
    """

    m: int
    k: int
    n: int
    mt: int
    kt: int
    nt: int
    line: int

    @property
    def tiles(self) -> int:
        """Tiles of C; a last one that is smaller counts as one."""
        return _over(self.m, self.mt) * _over(self.n, self.nt)

    @property
    def steps(self) -> int:
        """Tiles along the sum."""
        return _over(self.k, self.kt)

    def row(self, words: int) -> int:
        """See :func:`row`."""
        return row(words, self.line)

    @property
    def turned(self) -> Tile:
        """With M and N in each other's place."""
        return Tile(self.n, self.k, self.m, self.nt, self.kt, self.mt, self.line)


# --- table 2: lines that a tile needs at one time ------------------------------------------------------------
def _t_tmm(t: Tile) -> int:
    return t.mt * t.row(t.kt) + t.nt * t.row(t.kt) + t.mt * t.row(t.nt)


def _t_ttmm(t: Tile) -> int:
    return t.kt * t.row(t.nt) + max(t.nt * t.row(t.kt), t.mt * t.row(t.kt) + t.mt * t.row(t.nt))


def _t_dnmm(t: Tile) -> int:
    return t.mt * t.row(t.nt * t.kt) + max(t.mt * t.row(t.nt), (t.mt + t.nt) * t.row(t.kt))


def _t_lpmm(t: Tile) -> int:
    summing = t.nt * t.row(t.kt) + t.row(t.kt * t.mt)
    return 1 + max(
        _over(t.mt, t.line) + t.mt,
        _over(t.mt * t.nt, t.line) + max(t.mt * t.row(t.nt), summing),
    )


def _t_rpmm(t: Tile) -> int:
    summing = t.mt * t.row(t.kt) + t.row(t.kt * t.nt)
    return 1 + max(
        _over(t.nt, t.line) + t.nt,
        _over(t.mt * t.nt, t.line) + max(t.mt * t.row(t.nt), summing),
    )


def _t_dpmm(t: Tile) -> int:
    summing = _over(t.kt * t.mt, t.line) + _over(t.kt * t.nt, t.line) + 2
    return 1 + max(
        _over(t.mt, t.line) + t.mt,
        _over(t.nt, t.line) + t.nt,
        _over(t.mt * t.nt, t.line) + max(t.mt * t.row(t.nt), summing),
    )


_T: Mapping[str, Callable[[Tile], int]] = {
    TMM: _t_tmm,
    TTMM: _t_ttmm,
    DNMM: _t_dnmm,
    LPMM: _t_lpmm,
    RPMM: _t_rpmm,
    DPMM: _t_dpmm,
}


def t_m(schedule: str, tile: Tile) -> int:
    """:math:`T_m(M_t, K_t, N_t)`: cache lines that a tile of a product needs at one time (table 2).

    Args:
        schedule: one of :data:`PRODUCTS`.
        tile: its sizes.
    """
    return _T[LIKE.get(schedule, schedule)](tile)


# --- theorem 1 ------------------------------------------------------------------------------------------------
def _c_tmm(t: Tile) -> int:
    operands = (t.mt + t.nt) * t.row(t.kt) * t.steps
    return t.tiles * (operands + t.mt * t.row(t.nt))


def _c_ttmm(t: Tile) -> int:
    copied = t.steps * _over(t.n, t.nt) * (t.kt * t.row(t.nt) + t.nt * t.row(t.kt))
    operands = (t.mt * t.row(t.kt) + t.kt * t.row(t.nt)) * t.steps
    return copied + t.tiles * (operands + t.mt * t.row(t.nt))


def _c_dnmm(t: Tile) -> int:
    operands = t.steps * (t.mt + t.nt) * t.row(t.kt)
    return t.tiles * (operands + t.mt * t.row(t.nt * t.kt) + t.mt * t.row(t.nt))


def _packed_rows(t: Tile) -> int:
    """The copy of D in panels of M_t: what is written, and what is read."""
    return _over(t.m, t.mt) * t.row(t.k * t.mt) + t.m * t.row(t.k)


def _c_lpmm(t: Tile) -> int:
    operands = t.steps * (t.nt * t.row(t.kt) + t.row(t.kt * t.mt))
    return _packed_rows(t) + t.row(t.mt * t.nt) + t.tiles * (t.mt * t.row(t.nt) + operands)


def _c_rpmm(t: Tile) -> int:
    operands = t.steps * (t.mt * t.row(t.kt) + t.row(t.kt * t.nt))
    return _packed_rows(t.turned) + t.row(t.mt * t.nt) + t.tiles * (t.mt * t.row(t.nt) + operands)


def _c_dpmm(t: Tile) -> int:
    operands = t.steps * (t.row(t.kt * t.mt) + t.row(t.kt * t.nt))
    copies = _packed_rows(t) + _packed_rows(t.turned)
    return copies + t.row(t.mt * t.nt) + t.tiles * (t.mt * t.row(t.nt) + operands)


_C: Mapping[str, Callable[[Tile], int]] = {
    TMM: _c_tmm,
    TTMM: _c_ttmm,
    DNMM: _c_dnmm,
    LPMM: _c_lpmm,
    RPMM: _c_rpmm,
    DPMM: _c_dpmm,
}


def c_m(schedule: str, tile: Tile) -> int:
    """:math:`C_m(M, K, N, M_t, K_t, N_t)`: cache misses of a product (theorem 1).

    The theorem is for sizes that tiles divide; others are rounded up to whole tiles here, of which copies are not
    (they are of whole arrays).

    RPMM's and DPMM's terms are garbled in the copy of the paper that we have, and so is the end of LPMM's. LPMM's last
    term is read as table 2 has it, :math:`N_t (⌈K_t / C_w⌉ + 1) + ⌈K_t M_t / C_w⌉ + 1` a tile of the sum. RPMM's are
    LPMM's with D and W, M and N in each other's place, but for the tile of C, whose rows stay rows of N_t: in table 2,
    which is whole, the same substitution gives RPMM's line from LPMM's. DPMM's has both copies, and reads both.

    Args:
        schedule: one of :data:`PRODUCTS`.
        tile: its sizes.
    """
    return _C[LIKE.get(schedule, schedule)](tile)


# --- convolutions: table 3 and theorem 2 -----------------------------------------------------------------------
@dataclass(frozen=True)
class ConvTile:
    """A tile of a convolution, and the convolution.

    Args:
        b: B, the batch.
        ic, oc: channels of the source and of the result.
        dh, dw: height and width of the source.
        kh, kw: of the kernel.
        oct, ict, owt: sizes of the tiles.
        line: words of a line, :math:`C_w`.
        ph, pw: zeros around the source, at each side.
        s1, s2: strides; d1, d2: dilations, along the height and along the width.
    """

    b: int
    ic: int
    dh: int
    dw: int
    oc: int
    kh: int
    kw: int
    owt: int
    ict: int
    oct: int
    line: int
    ph: int = 0
    pw: int = 0
    s1: int = 1
    s2: int = 1
    d1: int = 1
    d2: int = 1

    @property
    def oh(self) -> int:
        """Height of the result."""
        return (self.dh + 2 * self.ph - (self.kh - 1) * self.d1 - 1) // self.s1 + 1

    @property
    def ow(self) -> int:
        """Width of the result."""
        return (self.dw + 2 * self.pw - (self.kw - 1) * self.d2 - 1) // self.s2 + 1

    @property
    def window(self) -> int:
        """Words of a row of the source that a tile of pixels reads."""
        return self.s2 * (self.owt - 1) + (self.kw - 1) * self.d2 + 1

    @property
    def chunks(self) -> tuple[int, int, int]:
        """Tiles of result channels, of source channels and of pixels of a row."""
        return _over(self.oc, self.oct), _over(self.ic, self.ict), _over(self.ow, self.owt)

    def row(self, words: int) -> int:
        """See :func:`row`."""
        return row(words, self.line)

    @property
    def product(self) -> Tile:
        """The product that Im2col makes of it, and its tile: M are pixels, K taps and channels, N filters."""
        taps = self.kh * self.kw
        m, k, n = self.b * self.oh * self.ow, self.ic * taps, self.oc
        return Tile(m, k, n, self.owt, self.ict * taps, self.oct, self.line)


def t_c(schedule: str, t: ConvTile) -> int:
    """:math:`T_c(OW_t, IC_t, OC_t)`: cache lines that a tile of a convolution needs at one time (table 3; for CONV, its
    bold part by remark 1).

    Args:
        schedule: ``CONV`` or ``CONVOpt``.
        t: the tile.
    """
    if schedule == CONV:
        copying = t.oct * t.ict * t.row(t.kw) + t.kw * t.ict * t.row(t.oct)
    else:
        copying = t.oct * t.row(t.kh * t.kw * t.ict) + t.kh * t.kw * t.ict * t.row(t.oct)
    sums = t.row(t.owt * t.oct)
    return max(
        copying,
        sums + t.kh * t.ict * t.row(t.window) + t.kh * t.kw * t.ict * t.row(t.oct),
        sums + t.owt * t.row(t.oct),
        t.owt * t.row(t.oct) + t.oct * t.row(t.owt),
    )


def c_c(schedule: str, t: ConvTile) -> int:
    """:math:`C_c`: cache misses of a convolution (theorem 2, and remark 1 for CONV).

    Args:
        schedule: ``CONV`` or ``CONVOpt``.
        t: its tile.
    """
    filters, channels, pixels = t.chunks
    taps, rows = t.kh * t.kw, t.b * filters * t.oh
    padded = t.row(t.b * (t.dh + 2 * t.ph) * t.ic * (t.dw + 2 * t.pw)) + t.b * t.dh * t.ic * t.row(t.dw)
    read = t.oc * t.ic * t.kh * t.row(t.kw) if schedule == CONV else t.oc * channels * t.row(taps * t.ict)
    copied = read + t.ic * taps * filters * t.row(t.oct)
    sums = rows * pixels * t.row(t.owt * t.oct)
    operands = rows * pixels * t.ic * (taps * t.row(t.oct) + t.kh * t.row(t.window))
    stored = 2 * rows * t.ow * t.row(t.oct) + t.b * t.oc * t.oh * pixels * t.row(t.owt)
    return padded + copied + sums + operands + stored


def t_im2col(schedule: str, t: ConvTile) -> int:
    """:math:`T_c` of a convolution that is made a product by Im2col (table 3).

    Args:
        schedule: of the product, one of :data:`PRODUCTS`.
        t: the tile.
    """
    taps = t.row(t.kh * t.kw * t.ict)
    return max(
        t.owt * taps + t.ict * t.row(t.window),
        2 * t.oct * taps,
        t.oct * t.row(t.owt) + t.owt * t.row(t.oct),
        t_m(schedule, t.product),
    )


def c_im2col(schedule: str, t: ConvTile) -> int:
    """:math:`C_c` of a convolution that is made a product by Im2col (theorem 2).

    Args:
        schedule: of the product, one of :data:`PRODUCTS`.
        t: the tile.
    """
    filters, channels, pixels = t.chunks
    padded = t.row(t.b * t.ic * (t.dh + 2 * t.ph) * (t.dw + 2 * t.pw)) + t.row(t.b * t.ic * t.dh * t.dw)
    columns = t.b * t.oh * t.ow * channels * t.row(t.ict * t.kh * t.kw)
    read = t.b * t.oh * t.ow * t.ic * t.kh * t.row(t.window)
    weights = 2 * t.oc * channels * t.row(t.kh * t.kw * t.ict)
    stored = t.b * t.oc * t.oh * pixels * t.row(t.owt) + t.b * t.oh * t.ow * filters * t.row(t.oct)
    return padded + columns + weights + read + c_m(schedule, t.product) + stored
