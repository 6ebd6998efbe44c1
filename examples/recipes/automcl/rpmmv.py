"""A product with a copy of W in panels of two vectors of its rows, for ``C[y, x] += D[y, k] * W[x, k]``.

It is AutoMCL's RPMMV with M_o = 2, M_t = 6, N_t = 2 vectors and K_t = 64: a register tile of 6 rows by two vectors, in
blocks of 12 rows and of 64 terms.
"""


def forward(s, target):
    width = target.simd_width
    s.tile_loop("forward", "y", 6)
    s.tile_loop("forward", "y_outer", 2)
    s.tile_loop("forward", "x", 2 * width)
    s.tile_loop("forward", "k", 64)
    s.tile_loop("forward", "x_inner", width)
    tiles = ["y_outer_outer", "x_outer", "y_outer_inner", "k_outer"]
    s.reorder("forward", [*tiles, "y_inner", "x_inner_outer", "x_inner_inner", "k_inner"])
    s.unroll_and_jam("forward", "y_inner", 6)
    s.unroll_and_jam("forward", "x_inner_outer", 2)
    s.vectorize("forward", "x_inner_inner", width, strided="gather")
    s.parallelize("forward", "y_outer_outer")
    s.parallelize("forward", "x_outer")
    s.pack("forward", "W")
    s.tile("W_packed", 0, 2 * width)
    s.reorder("forward", ["W_packed_dim0_outer", "W_packed_dim1", "W_packed_dim0_inner"])
    s.unroll_and_jam("forward", "W_packed_dim1", width)
    s.vectorize("forward", "W_packed_dim0_inner", width, strided="gather")
    s.parallelize("forward", "W_packed_dim0_outer")
