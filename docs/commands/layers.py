"""Examples of the commands that join layers, on programs with a buffer in between that nothing else needs."""

from dataclasses import replace

from docs.commands import Example, Refusal, Shape, nests
from swirl.ir.nest import Program
from swirl.transforms.rewrites.storage.contraction import OWN


def between(text: str, own: str, **shapes: Shape) -> Program:
    """A program whose buffer ``own`` nothing else uses."""
    program = nests(text, **shapes)
    return program.with_buffers(**{own: replace(program.buffers[own], role=OWN)})


LAYERS = between(
    """
    for n in range(8):
        for k in range(16):
            y[n, k] = bias[k]
            for c in range(32):
                y[n, k] += weights[k, c] * inputs[n, c]
    for n in range(8):
        for k in range(16):
            value[n, k] = max(0.0, y[n, k])
    """,
    "y",
    y=(8, 16),
    bias=(16,),
    weights=(16, 32),
    inputs=(8, 32),
    value=(8, 16),
)
NEIGHBOURS = between(
    """
    for i in range(10):
        y[i] = inputs[i] * 2.0
    for i in range(9):
        value[i] = y[i + 1] - y[i]
    """,
    "y",
    y=(10,),
    inputs=(10,),
    value=(9,),
)
ROWS = between(
    """
    for n in range(8):
        for i in range(10):
            y[n, i] = inputs[n, i] * 2.0
        for i in range(9):
            value[n, i] = y[n, i + 1] - y[n, i]
    """,
    "y",
    y=(8, 10),
    inputs=(8, 10),
    value=(8, 9),
)
GRADIENTS = between(
    """
    for i in range(32):
        y[i] = grad[i] if value[i] > 0.0 else 0.0
    for i in range(32):
        grad_gamma[0] += y[i] * inputs[i]
    for i in range(32):
        grad_inputs[i] = y[i] * gamma[0]
    """,
    "y",
    y=(32,),
    grad=(32,),
    value=(32,),
    grad_gamma=(1,),
    gamma=(1,),
    inputs=(32,),
    grad_inputs=(32,),
)

EXAMPLES = [
    Example(
        "fuse_layers",
        LAYERS,
        's.fuse_layers("forward")',
        Refusal(
            's.fuse_layers("forward")',
            's.inline("forward", "y")',
            "`value[i]` needs `y[i + 1]`, which the next iteration makes. Computed where it is read, it is there.",
            NEIGHBOURS,
        ),
    ),
    Example(
        "contract",
        ROWS,
        's.contract("forward", "y")',
        Refusal(
            's.contract("forward", "y")',
            's.fuse("forward", "n")\ns.contract("forward", "y")',
            "In the joined loop one element is alive at a time.",
            between(
                """
                for n in range(8):
                    y[n] = inputs[n] * 2.0
                for n in range(8):
                    value[n] = y[n] + 1.0
                """,
                "y",
                y=(8,),
                inputs=(8,),
                value=(8,),
            ),
        ),
        "What is alive at a time is kept: here a row.",
    ),
    Example(
        "inline",
        GRADIENTS,
        's.inline("forward", "y")',
        Refusal(
            's.inline("forward", "y")',
            's.fuse_layers("forward")',
            "A sum is not one formula; joined with its reader, it lives in a register.",
            LAYERS,
        ),
    ),
]
