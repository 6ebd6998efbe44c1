"""Examples of the commands on the layout of arrays in memory, and on keeping elements in registers."""

from docs.commands import Example, Refusal, nests

VALUES = nests(
    """
    for n in range(2):
        for c in range(20):
            for y in range(5):
                value[n, c, y] = inputs[n, c, y] * 2.0
    """,
    value=(2, 20, 5),
    inputs=(2, 20, 5),
)
GRADIENT = nests(
    """
    for c in range(32):
        for k in range(32):
            grad_inputs[c] += grad[k] * weights[k, c]
    """,
    grad_inputs=(32,),
    grad=(32,),
    weights=(32, 32),
)
STREAMED = nests("for w in range(64):\n y[w] = x[w] * 2.0", y=(64,), x=(64,))
RUNNING = nests(
    """
    for w in range(64):
        for c in range(4):
            y[w] += x[c, w]
    """,
    y=(64,),
    x=(4, 64),
)

EXAMPLES = [
    Example(
        "tile",
        VALUES,
        's.tile("value", 0, 16)',
        Refusal(
            's.tile("value", 0, 16)\ns.tile("value", 0, 8)',
            's.tile("value", 0, 8)',
            "A dimension is blocked once.",
        ),
        """
        Commands on layouts take no phase: this one acts on every phase that touches the buffer. Another layer that
        reads the buffer gets the layout with it. A layer lays out its own buffers, and data that no layer before has
        laid out. Where the command asks for another layout of another layer's buffer, this is copied after the recipe,
        in a parallel nest of its own, and a gradient is copied back: `net.explain` says what was copied how, and how
        many bytes that moves. `s.blocks("inputs")` tells the source's blocks, for readers that follow it. """,
    ),
    Example(
        "transpose",
        VALUES,
        's.transpose("value", order=(1, 0))',
        Refusal(
            's.transpose("value", order=(0, 2, 1))',
            's.transpose("value", order=(1, 0))',
            "The batch stays outermost and is not counted.",
        ),
        """
        The nest is the same, the memory is not: the order of `value` is n, y, c now, and `c` can become lanes.
        """,
    ),
    Example(
        "set_padding",
        nests(
            """
            for n in range(2):
                for x in range(56):
                    for k in range(5):
                        if x + k >= 2 and x + k < 58:
                            value[n, x] += inputs[n, x + k - 2] * weights[k]
            """,
            value=(2, 56),
            inputs=(2, 56),
            weights=(5,),
        ),
        's.set_padding("inputs", (2, 2))',
        Refusal(
            's.set_padding("inputs", (2, 1))',
            's.set_padding("inputs", (2, 0))',
            "Zeros on one side only: the condition of the other side stays.",
        ),
        """
        Another layer's buffer is copied, as by `tile`.
        """,
    ),
    Example(
        "untile",
        VALUES,
        's.tile("value", 0, 16)\ns.untile("value")',
        Refusal(
            's.untile("values")',
            's.untile("value")',
            "The buffers are named as in the nests.",
        ),
        """
        For a reader that wants a blocked source with the plain layout: it gets a copy, as by `tile`.
        """,
    ),
    Example(
        "pack",
        GRADIENT,
        's.pack("forward", "weights")\ns.tile("weights_packed", 1, 16)',
        Refusal(
            's.pack("forward", "grad_inputs")',
            's.scalar_replace("forward", "grad_inputs")',
            "What is written cannot be read from a copy; registers hold it while a loop runs.",
        ),
    ),
    Example(
        "pack",
        nests(
            """
            for k in range(32):
                for y in range(0, 56, 4):
                    for i in range(4):
                        for ky in range(3):
                            value[k, y + i] += inputs[y + i + ky] * weights[k, ky]
            """,
            value=(32, 56),
            inputs=(58,),
            weights=(32, 3),
        ),
        's.pack("forward", "inputs", at="y")',
        Refusal(
            's.pack("forward", "inputs", at="n")',
            's.pack("forward", "inputs", at="c")',
            "Further inside, the part is smaller.",
            nests(
                """
                for n in range(2):
                    for c in range(64):
                        for y in range(56):
                            for x in range(56):
                                value[n, c, x] += inputs[n, c, y, x]
                """,
                value=(2, 64, 56),
                inputs=(2, 64, 56, 56),
            ),
        ),
        "At a loop, a local array holds the part that an iteration reads.",
    ),
    Example(
        "prefetch",
        STREAMED,
        's.vectorize("forward", "w", 16)\ns.prefetch("forward", "x", "w", 4)',
        Refusal(
            's.prefetch("forward", "x", "w", 16)',
            's.vectorize("forward", "w", 16)\ns.prefetch("forward", "x", "w", 1)',
            "One prefetch a cache line: so the loop must count lines first.",
        ),
    ),
    Example(
        "reset_prefetch",
        STREAMED,
        's.vectorize("forward", "w", 16)\ns.prefetch("forward", "x", "w", 4)\ns.reset_prefetch("forward")',
        None,
        "For a recipe that changes what an earlier function has asked for.",
    ),
    Example(
        "stream",
        STREAMED,
        's.vectorize("forward", "w", 16)\ns.stream("forward", "y")',
        Refusal(
            's.vectorize("forward", "w", 16)\ns.stream("forward", "y")',
            's.vectorize("forward", "w", 16)\ns.scalar_replace("forward", "y")\ns.stream("forward", "y")',
            "The sum stays in a register until it is stored once.",
            RUNNING,
        ),
    ),
]
