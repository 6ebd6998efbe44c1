"""Examples of the commands that change the order of iterations."""

from docs.commands import Example, Refusal, nests

TRANSPOSED = nests(
    """
    for i in range(4):
        for j in range(6):
            y[j, i] = x[j, i] * 2.0
    """,
    y=(6, 4),
    x=(6, 4),
)
SCATTER = nests(
    """
    for n in range(8):
        for y in range(56):
            for ky in range(3):
                if y + ky >= 1 and y + ky < 57:
                    grad_inputs[n, y + ky - 1] += grad[n, y] * weights[ky]
    """,
    grad_inputs=(8, 56),
    grad=(8, 56),
    weights=(3,),
)
RELU = nests(
    """
    for n in range(8):
        for y in range(14):
            for x in range(14):
                value[n, y, x] = max(0.0, inputs[n, y, x])
    """,
    value=(8, 14, 14),
    inputs=(8, 14, 14),
)
RECURRENCE = nests(
    """
    for i in range(4):
        for j in range(6):
            x[i + 1, j] = x[i, j + 1]
    """,
    x=(5, 7),
)
BLUR = nests(
    """
    for i in range(64):
        y[i] = exp(x[i])
    for i in range(64):
        z[i] = y[i] + y[i + 1]
    """,
    x=(64,),
    y=(65,),
    z=(64,),
)

EXAMPLES = [
    Example(
        "interchange",
        TRANSPOSED,
        's.interchange("forward", ["i", "j"])',
        Refusal(
            's.interchange("forward", ["i", "j"])',
            's.reverse("forward", "j")\ns.interchange("forward", ["i", "j"])',
            "With `j` running backwards the element is written before it is read in both orders.",
            RECURRENCE,
        ),
    ),
    Example(
        "reorder",
        nests(
            """
            for k in range(8):
                for x in range(14):
                    for c in range(16):
                        value[k, x] += inputs[c, x] * weights[k, c]
            """,
            value=(8, 14),
            inputs=(16, 14),
            weights=(8, 16),
        ),
        's.reorder("forward", ["c", "x", "k"])',
        Refusal(
            's.reorder("forward", ["j", "i"])',
            's.scalar_expand("forward", "t")\ns.reorder("forward", ["j", "i"])',
            "With one element for each iteration the local gets a loop of its own, and the rest is a perfect nest.",
            nests(
                """
                for i in range(4):
                    t: float32 = exp(x[i])
                    for j in range(6):
                        y[j, i] = t * w[j]
                """,
                y=(6, 4),
                x=(4,),
                w=(6,),
            ),
        ),
        """
        Bounds may move with other loops: those in the new order follow by projection. In a convolution with clipped
        windows, `for y in range(56)` around `for ky in range(max(0, 1 - y), min(3, 57 - y))` becomes
        `for ky in range(3)` around `for y in range(max(0, 1 - ky), min(57 - ky, 56))`.
        """,
    ),
    Example(
        "rename",
        nests(
            """
            for i in range(16):
                x[i] = 0.0
            for i in range(16):
                y[i] = x[i]
            """,
            x=(16,),
            y=(16,),
        ),
        's.rename("forward", "i", "j", occurrence=-1)',
        Refusal(
            's.rename("forward", "i", "x")',
            's.rename("forward", "i", "row")',
            "A name means one thing in a nest: `x` is a buffer.",
        ),
    ),
    Example(
        "reverse",
        nests("for n in range(8):\n y[n] = x[n] * 2.0", y=(8,), x=(8,)),
        's.reverse("forward", "n")',
        Refusal(
            's.reverse("forward", "i")',
            's.reverse("forward", "j")',
            "The other loop carries nothing, and may run either way.",
            nests(
                """
                for j in range(3):
                    for i in range(5):
                        x[i + 1, j] = x[i, j] * 0.5
                """,
                x=(6, 3),
            ),
        ),
    ),
    Example(
        "fuse",
        nests(
            """
            for c in range(4):
                mean[c] = total[c] / 8.0
            for d in range(4):
                scale[d] = gamma[d] * mean[d]
            """,
            mean=(4,),
            scale=(4,),
            total=(4,),
            gamma=(4,),
        ),
        's.fuse("forward", "c", "d")',
        Refusal(
            's.fuse("forward", "i")',
            's.fuse("forward", "i", shift=1)',
            "The second loop runs an iteration later, when what it reads is there.",
            BLUR,
        ),
    ),
    Example(
        "distribute",
        nests("for c in range(4):\n total[c] = 0.0\n y[c] = x[c]", total=(4,), y=(4,), x=(4,)),
        's.distribute("forward", "c")',
        Refusal(
            's.distribute("forward", "i")',
            's.scalar_expand("forward", "t")\ns.distribute("forward", "i")',
            "A local with one element for each iteration no longer connects them.",
            nests(
                """
                for i in range(4):
                    t: float32 = exp(x[i])
                    y[i] = t * t
                """,
                x=(4,),
                y=(4,),
            ),
        ),
    ),
    Example(
        "flatten",
        RELU,
        's.flatten("forward", ["y", "x"])',
        Refusal(
            's.flatten("forward", ["y", "x"])',
            's.vectorize("forward", "x", 16)',
            "Only one row at a time can be vectorized.",
            nests(
                """
                for n in range(8):
                    for y in range(14):
                        for x in range(14):
                            value[n, y, x] = inputs[n, y + 1, x + 1]
                """,
                value=(8, 14, 14),
                inputs=(8, 16, 16),
            ),
        ),
    ),
    Example(
        "reindex",
        SCATTER,
        's.reindex("forward", iy="y + ky - 1")',
        Refusal(
            's.reindex("forward", back="4 - i")',
            's.reindex("forward", shifted="i + 1")',
            "The new loop counts upwards: with a coefficient of −1 it runs through the old one backwards.",
            RECURRENCE,
        ),
        """
        `s.subscripts("backward", "grad_inputs")` has the expressions that a layer's own stride and padding lead to. The
        new loop's elements belong to one iteration each: it can run in parallel, and keep sums in registers.
        """,
    ),
]
