"""A product with the register tile of BLIS: 6 rows by two vectors, over blocks for each cache.

The scheme is ``[R_j, R_k, R_i, T_2_j, T_2_i, T_64_k, U_6_i, U_2_j, V_j]`` (Tollenaere, section 3.2), for
``C[i, j] += A[i, k] * B[k, j]``.
"""


def forward(s, target):
    width = target.simd_width
    s.tile_loop("forward", "i", 12)
    s.tile_loop("forward", "i_inner", 6)
    s.tile_loop("forward", "j", 4 * width)
    s.tile_loop("forward", "j_inner", 2 * width)
    s.tile_loop("forward", "j_inner_inner", width)
    s.tile_loop("forward", "k", 64)
    blocks = ["j_outer", "k_outer", "i_outer", "j_inner_outer", "i_inner_outer"]
    s.reorder("forward", [*blocks, "i_inner_inner", "j_inner_inner_outer", "j_inner_inner_inner", "k_inner"])
    s.unroll_and_jam("forward", "i_inner_inner", 6)
    s.unroll_and_jam("forward", "j_inner_inner_outer", 2)
    s.vectorize("forward", "j_inner_inner_inner", width)
