"""A product with two register tiles, which cover 128 rows together: 12 × 6 + 8 × 7.

The scheme is ``[R_j, λ_i[(12, 6), (8, 7)], R_k, Uλ_i, U_2_j, V_j]`` (Tollenaere, figure 3.7), for
``C[i, j] += A[i, k] * B[k, j]``.
"""


def forward(s, target):
    width = target.simd_width
    s.tile_loop("forward", "j", 2 * width)
    s.tile_loop("forward", "j_inner", width)
    s.reorder("forward", ["j_outer", "i", "j_inner_outer", "j_inner_inner", "k"])
    s.unroll_and_jam("forward", "i", [6] * 12 + [7] * 8)
    s.unroll_and_jam("forward", "j_inner_outer", 2)
    s.vectorize("forward", "j_inner_inner", width)
