"""Examples of the commands that change statements: locals, invariants, algebra, conditions."""

from docs.commands import Example, Refusal, nests

BATCH_NORM = nests(
    """
    for c in range(4):
        for h in range(64):
            y[c, h] = (x[c, h] - mean[c]) / sqrt(var[c] + 0.001)
    """,
    y=(4, 64),
    x=(4, 64),
    mean=(4,),
    var=(4,),
)
SUMS = nests(
    """
    for c in range(4):
        for h in range(64):
            mean[c] += x[c, h]
    """,
    mean=(4,),
    x=(4, 64),
)
EXPANDED = nests(
    """
    for i in range(8):
        t: float32 = exp(x[i])
        y[i] = t * t
    """,
    y=(8,),
    x=(8,),
)
DENSE = nests(
    """
    for n in range(4):
        for k in range(8):
            h: float32 = bias[k]
            for i in range(16):
                h += w[k, i] * x[n, i]
            y[n, k] = tanh(h)
    """,
    y=(4, 8),
    bias=(8,),
    w=(8, 16),
    x=(4, 16),
)
CARRIED = nests(
    """
    for n in range(16):
        t: float32 = 0.0
        for i in range(8):
            t = t * 0.5 + x[n, i]
            y[n, i] = t
    """,
    y=(16, 8),
    x=(16, 8),
)

EXAMPLES = [
    Example(
        "scalar_replace",
        SUMS,
        's.scalar_replace("forward", "mean")',
        Refusal(
            's.scalar_replace("forward", "y")',
            's.reindex("forward", o="i + k")\ns.scalar_replace("forward", "y")',
            "Both loops move the element. Over a loop of its own it belongs to one iteration, and stays in a register.",
            nests(
                """
                for i in range(64):
                    for k in range(3):
                        y[i + k] += x[i] * w[k]
                """,
                y=(66,),
                x=(64,),
                w=(3,),
            ),
        ),
        "It runs after every recipe automatically; the command does it earlier, for one buffer.",
    ),
    Example(
        "scalar_expand",
        EXPANDED,
        's.scalar_expand("forward", "t")',
        Refusal(
            's.scalar_expand("forward", "t", "i")',
            's.unroll("forward", "i", 4)',
            "A value that goes from iteration to iteration stays one local.",
            CARRIED,
        ),
    ),
    Example(
        "store_local",
        DENSE,
        's.store_local("forward", "h")',
        Refusal(
            's.parallelize("forward", "n")\ns.store_local("forward", "h")',
            's.store_local("forward", "h")\ns.parallelize("forward", "n")',
            "A thread's locals are its own; what is stored before may be shared.",
        ),
        "`distribute` on `k` and `n` then makes three nests, as the default schedule does. The sum in the midst is a "
        "product of matrices.",
    ),
    Example(
        "hoist",
        BATCH_NORM,
        's.hoist("forward")',
        None,
        "It runs after every recipe automatically. Nothing is refused: what cannot move stays.",
    ),
    Example(
        "factor",
        nests(
            """
            for c in range(4):
                for i in range(64):
                    s[c] += gamma[c] * g[c, i] * (x[c, i] - mean[c])
                    t[c] += g[c, i]
            """,
            s=(4,),
            t=(4,),
            g=(4, 64),
            x=(4, 64),
            gamma=(4,),
            mean=(4,),
        ),
        's.factor("forward", "i")',
        Refusal(
            's.factor("forward", "i")',
            's.hoist("forward")',
            "No factor of the sum stays the same; what does (the root) is computed outside by `hoist`.",
            nests(
                """
                for c in range(4):
                    for i in range(64):
                        s[c] += g[i] * exp(x[i] - sqrt(v[c]))
                """,
                s=(4,),
                g=(64,),
                x=(64,),
                v=(4,),
            ),
        ),
    ),
    Example(
        "moments",
        nests(
            """
            for c in range(4):
                mean[c] = 0.0
                for n in range(8):
                    for i in range(64):
                        mean[c] += x[n, c, i]
                mean[c] = mean[c] / 512.0
                for n in range(8):
                    for i in range(64):
                        var[c] += (x[n, c, i] - mean[c]) * (x[n, c, i] - mean[c])
            """,
            mean=(4,),
            var=(4,),
            x=(8, 4, 64),
        ),
        's.moments("forward", "n")',
        Refusal(
            's.moments("forward", "n")',
            's.factor("forward", "n")',
            """What is subtracted is not a mean of these data, so nothing is known about its size. `factor` still splits
            the square, and loses digits where the difference is small.""",
            nests(
                """
                for c in range(4):
                    mean[c] = 0.0
                    for n in range(8):
                        mean[c] += x[n, c]
                    for n in range(8):
                        var[c] += (x[n, c] - running_mean[c]) * (x[n, c] - running_mean[c])
                """,
                mean=(4,),
                var=(4,),
                x=(8, 4),
                running_mean=(4,),
            ),
        ),
    ),
    Example(
        "shift_mean",
        nests(
            """
            for n in range(4):
                mean[n] = 0.0
                for f in range(768):
                    mean[n] += x[n, f]
                mean[n] = mean[n] / 768.0
                for f in range(768):
                    y[n, f] = x[n, f] - mean[n]
            """,
            mean=(4,),
            x=(4, 768),
            y=(4, 768),
        ),
        's.shift_mean("forward", "f", occurrence=0)',
        Refusal(
            's.shift_mean("forward", "f")',
            's.vectorize("forward", "f", 16)',
            "Nothing is centred by this mean: it has its digits, and more partial sums give it more.",
            nests(
                """
                for n in range(4):
                    mean[n] = 0.0
                    for f in range(768):
                        mean[n] += x[n, f]
                    mean[n] = mean[n] / 768.0
                """,
                mean=(4,),
                x=(4, 768),
            ),
        ),
        "The default schedule begins with it. `moments` contains it.",
    ),
    Example(
        "partial_sums",
        nests(
            """
            for c in range(4):
                for n in range(16):
                    for i in range(784):
                        s[c] += x[n, c, i]
            """,
            s=(4,),
            x=(16, 4, 784),
        ),
        's.vectorize("forward", "i", 16)\ns.partial_sums("forward", "n")',
        Refusal(
            's.partial_sums("forward", "i")',
            's.partial_sums("forward", "n")',
            "Each iteration of `i` has one term; the loop around it has the sums.",
        ),
    ),
    Example(
        "if_convert",
        nests(
            """
            for x in range(14):
                best: float32 = -1000000.0
                for k in range(3):
                    if inputs[x + k] > best:
                        best = inputs[x + k]
                        winner[x] = float32(k)
                value[x] = best
            """,
            value=(14,),
            winner=(14,),
            inputs=(16,),
        ),
        's.if_convert("forward")',
        Refusal(
            's.if_convert("forward")',
            's.vectorize("forward", "x", 16)',
            "The branch stays, and lanes in which it is not taken are masked.",
            nests(
                """
                for x in range(64):
                    if x < length[0]:
                        value[x] = inputs[x]
                """,
                value=(48,),
                inputs=(64,),
                length=(1,),
            ),
        ),
    ),
    Example(
        "locate",
        nests(
            """
            for c in range(8):
                for y in range(14):
                    for j in range(3):
                        grad_inputs[c, y * 2 + j] += grad[c, y] if mask[c, y] == j else 0.0
            """,
            ["mask"],
            grad_inputs=(8, 29),
            grad=(8, 14),
            mask=(8, 14),
        ),
        's.locate("forward", "j")',
        Refusal(
            's.locate("forward", "j")',
            's.interchange("forward", ["j", "y"])\ns.locate("forward", "j")',
            "Each window has its own place, so the loop over places goes inside of the loop over windows.",
            nests(
                """
                for c in range(8):
                    for j in range(2):
                        for y in range(14):
                            grad_inputs[c, y * 2 + j] += grad[c, y] if mask[c, y] == j else 0.0
                """,
                ["mask"],
                grad_inputs=(8, 28),
                grad=(8, 14),
                mask=(8, 14),
            ),
        ),
    ),
]
