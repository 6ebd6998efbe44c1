"""Convolution in blocks of channels, with register tiles: pixels × vectors of channels, summed in registers.

The shape of the fastest known kernels (Georganas et al., *Anatomy of high-performance deep learning convolutions on
SIMD architectures*, SC 2018), by commands alone. For layers whose channels fill vectors, behind data or behind a layer
that lays its value out in the same blocks:

    net.use_recipe("conv", "examples/recipes/conv_register_tile.py")
"""

PIXELS = 14  # × 2 vectors of channels = 28 sums in 32 registers; the rest holds weights and a pixel


def forward(s, target):
    width = target.simd_width
    if not _whole_vectors(s, "forward", width):
        s.parallelize("forward", "n")
        return
    for buffer in ("weights", "grad_weights"):
        s.tile(buffer, 1, width)
        s.tile(buffer, 0, width)
    for buffer in ("inputs", "grad_inputs", "value", "grad"):
        s.tile(buffer, 0, width)
    s.reorder("forward", ["c_outer", "ky", "kx", "c_inner"])
    _register_tile(s, "forward", "x", "k", "kx", width)


def backward(s, target):
    width = target.simd_width
    if not s.blocked("backward"):
        s.parallelize("backward", "n")
        return
    _, _, iy, ix = s.subscripts("backward", "grad_inputs")
    s.reindex("backward", iy=iy)  # each input pixel gathers, where each output pixel scattered
    s.reindex("backward", ix=ix)
    s.pack("backward", "weights")  # vectors along the input channels
    s.tile("weights_packed", 0, width)
    s.tile("weights_packed", 1, width)
    s.reorder("backward", ["iy", "ix", "k_outer", "ky", "kx", "k_inner"])
    loops = s.loops("backward")
    rows, columns = loops[loops.index("iy") - 2 : loops.index("iy")]  # of the zeroing
    s.fuse("backward", rows, "iy")
    s.fuse("backward", columns, "ix")
    _register_tile(s, "backward", columns, "c", "kx", width)
    s.vectorize("backward", "weights_packed_dim1_inner", width, strided="gather")
    s.parallelize("backward", "weights_packed_dim0_outer")


def update(s, target):
    width = target.simd_width
    if not s.blocked("update"):
        s.parallelize("update", "k")
        return
    _, _, _, ix = s.subscripts("update", "inputs")
    s.reindex("update", "x", ix=ix)  # one input pixel meets all taps of a row
    s.tile_loop("update", "y", 14)
    s.reorder("update", ["k_outer", "n", "y_outer", "c_outer", "ky", "c_inner", "kx", "k_inner", "y_inner", "ix"])
    columns = s.extent("update", "ix")
    if columns > 2:
        s.split("update", "ix", at=[1, columns - 1])  # taps that fall outside are left out statically
    s.unroll_and_jam("update", "c_inner", 8)
    s.unroll_and_jam("update", "kx", min(3, s.extent("update", "kx")), unroll_type=1)
    s.vectorize("update", "k_inner", width)
    s.parallelize("update", "k_outer")


def _whole_vectors(s, phase, width):
    """Whether the channels on both sides fill vectors, and there are vectors."""
    return width > 0 and all(s.extent(phase, channels) % width == 0 for channels in "kc")


def _register_tile(s, phase, pixels, channels, taps, width):
    """Pixels of a row × two vectors of channels; the tiles at the borders apart, without the taps outside."""
    extent = s.extent(phase, pixels)
    parts = [pixels]
    if extent > 2 * PIXELS:
        s.split(phase, pixels, at=[PIXELS, extent - PIXELS])
        parts = [pixels, f"{pixels}_1", f"{pixels}_2"]
    elif extent > PIXELS:
        s.split(phase, pixels, at=[PIXELS])
        parts = [pixels, f"{pixels}_1"]
    for part in parts:
        s.unroll_and_jam(phase, part, PIXELS)
    s.unroll_and_jam(phase, f"{channels}_outer", 2)
    s.vectorize(phase, f"{channels}_inner", width)
    s.unroll(phase, taps, s.extent(phase, taps), unroll_type=1)
    s.parallelize(phase, "n")
