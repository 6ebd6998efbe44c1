"""set_padding: zeros around a buffer in memory."""

from __future__ import annotations

from swirl.errors import CommandError
from swirl.ir.nest import Program
from swirl.transforms.arguments import BufferName, Padding
from swirl.transforms.command import Assumption, command
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.loops.halo import without_dead_guards


@command(assumes=Assumption("what is multiplied with zeros beyond a border is finite"), lays_out=True)
def set_padding(program: Program, buffer: BufferName, *pairs: Padding) -> Program:
    """Put zeros around a buffer in memory (a halo), and drop the conditions that keep reads from going there.

    rewrite (pairs = (0, 0), (1, 1)):
        for x in range(56):                         for x in range(56):
            for k in range(3):                          for k in range(3):
                if x + k >= 1 and x + k < 57:   →           y[c, x] += w[k] * i[c, x + k - 1]
                    y[c, x] += w[k] * i[c, x + k - 1]

    A condition is dropped if the statements that it skips would only add products with zeros of the halo. Their other
    factors are assumed finite: infinite weights and gradients make NaN at borders. Nothing writes the halo; getters,
    setters and views show the data without it.

    Args:
        buffer: name of a field (``inputs``, ``grad``, …), or of a copy made by ``pack``.
        pairs: (zeros before, zeros after) for each dimension, or one number for both; for values and gradients without
            the batch.

    Raises:
        CommandError: no such buffer, or bad pairs.
        Refused: with more zeros, on a side that has some, a condition would be needless.

    Source: Lake, section 3.2.
    """
    target = program.buffers[buffer]
    batch = target.batch_dims
    halo = (*((0, 0),) * batch, *(pair if isinstance(pair, tuple) else (pair, pair) for pair in pairs))
    if len(halo) != len(target.shape):
        raise CommandError(
            f"{buffer} has {len(target.shape) - batch} dimensions to pad, not {len(pairs)}",
            way_out=f"its shape is {target.shape[batch:]}" + (" without the batch" if batch else ""),
        )
    result = program.with_buffers(**{buffer: target.with_layout(target.layout.padded(halo))})
    halo = result.buffers[buffer].layout.halo or halo
    for index, nest in enumerate(program.nests):
        if buffer in nest.arguments:
            result = result.with_nest(index, without_dead_guards(result, nest, buffer, halo))
    return checked(program, result)
