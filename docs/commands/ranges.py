"""Examples of the commands that cut, mark and share loops."""

from docs.commands import Example, Refusal, nests

SCALE = nests("for x in range(20):\n y[x] = inputs[x] * 2.0", y=(20,), inputs=(20,))
TRIANGLE = nests(
    """
    for i in range(16):
        for j in range(i + 1):
            x[i, j] = 1.0
    """,
    x=(16, 16),
)
CLIPPED = nests(
    """
    for y in range(56):
        for ky in range(max(0, 1 - y), min(3, 57 - y)):
            value[y] += inputs[y + ky - 1] * weights[ky]
    """,
    value=(56,),
    inputs=(56,),
    weights=(3,),
)
COLUMNS = nests(
    """
    for c in range(32):
        for x in range(14):
            value[c, x] = inputs[c, x] * gamma[c]
    """,
    value=(32, 14),
    inputs=(32, 14),
    gamma=(32,),
)
PRODUCT = nests(
    """
    for x in range(28):
        for c in range(16):
            value[x] += inputs[c, x] * weights[c]
    """,
    value=(28,),
    inputs=(16, 28),
    weights=(16,),
)
SCATTER = nests(
    """
    for n in range(8):
        for y in range(14):
            for ky in range(3):
                grad_inputs[n, y + ky] += grad[n, y] * weights[ky]
    """,
    grad_inputs=(8, 16),
    grad=(8, 14),
    weights=(3,),
)
GRADIENT = nests(
    """
    for n in range(16):
        for k in range(32):
            grad_bias[k] += grad[n, k]
    """,
    grad_bias=(32,),
    grad=(16, 32),
)

EXAMPLES = [
    Example(
        "tile_loop",
        SCALE,
        's.tile_loop("forward", "x", 16, tail="peel")',
        Refusal(
            's.parallelize("forward", "x")\ns.tile_loop("forward", "x", 16)',
            's.tile_loop("forward", "x", 16)\ns.parallelize("forward", "x_outer")',
            "Loops are cut before they are marked.",
        ),
        """
        With `tail="min"` the inner loop is `range(min(16, 20 - x_outer * 16))`, with `tail="mask"` it is `range(16)`
        around `if x_outer * 16 + x_inner < 20`. `[8, 6, 6]` makes tiles of these sizes.
        """,
    ),
    Example(
        "split",
        CLIPPED,
        's.split("forward", "y", [1, 55])',
        Refusal(
            's.split("forward", "j", [8])',
            's.split("forward", "i", [8])',
            "The loop that sets the bounds can be split; the extent of `j` still differs from row to row.",
            TRIANGLE,
        ),
        '`s.borders("forward", "y")` finds where to cut: here `[1, 55]`.',
    ),
    Example(
        "unroll",
        SCALE,
        's.unroll("forward", "x", 8)',
        Refusal(
            's.unroll("forward", "j", 4)',
            's.tile_loop("forward", "j", 4, tail="peel")\ns.unroll("forward", "j_inner", 4)',
            "Whole tiles have constant bounds; the remainder of a row is a loop of its own.",
            TRIANGLE,
        ),
        "Copies are marked, and written out in the C++. A remainder of 4 iterations follows.",
    ),
    Example(
        "unroll_and_jam",
        PRODUCT,
        's.unroll_and_jam("forward", "x", 14)',
        Refusal(
            's.unroll_and_jam("forward", "i", 4)',
            's.unroll("forward", "i", 4)',
            "Copies one after the other keep the order.",
            nests(
                """
                for i in range(8):
                    for j in range(3):
                        x[i + 1] = x[i] + y[j]
                """,
                x=(9,),
                y=(3,),
            ),
        ),
        """
        Fourteen sums that do not wait for each other, and each weight is loaded once for all of them. Later passes keep
        the sums in registers. `[5, 5, 4]` makes tiles of these sizes, as `s.combination(14, 5)` does.
        """,
    ),
    Example(
        "vectorize",
        SCALE,
        's.vectorize("forward", "x", 16)',
        Refusal(
            's.vectorize("forward", "c", 16)',
            's.tile("value", 0, 16)\ns.tile("inputs", 0, 16)\ns.vectorize("forward", "c_inner", 16)',
            """Blocks of the vectors' width in memory; their owners must agree. Or `strided="gather"`, which takes the
            elements one by one; or the loop over `x`.""",
            nests(
                """
                for n in range(8):
                    for x in range(14):
                        for c in range(32):
                            value[n, c, x] = inputs[n, c, x] * 2.0
                """,
                value=(8, 32, 14),
                inputs=(8, 32, 14),
            ),
        ),
        "In a recipe, `target.simd_width` is the number of lanes.",
    ),
    Example(
        "parallelize",
        COLUMNS,
        's.parallelize("forward", "c")\ns.parallelize("forward", "x")',
        Refusal(
            's.parallelize("forward", "y")',
            's.reindex("forward", iy="y + ky")\ns.parallelize("forward", "iy")',
            "One of the loops that the message names; or the change of variables that gives each element an owner.",
            SCATTER,
        ),
        "Directly nested, the two become one work-sharing loop over 448 iterations (`collapse(2)`).",
    ),
    Example(
        "privatize",
        GRADIENT,
        's.privatize("forward", "grad_bias", "n", copies=4)\ns.parallelize("forward", "n")',
        Refusal(
            's.privatize("forward", "total", "n")',
            's.distribute("forward", "n")\ns.privatize("forward", "total", "n", copies=4)',
            "Once distributed, the loop that sums contains no reader.",
            nests(
                """
                for n in range(16):
                    total[0] += x[n]
                    share[n] = x[n] * total[1]
                """,
                total=(2,),
                x=(16,),
                share=(16,),
            ),
        ),
    ),
]
