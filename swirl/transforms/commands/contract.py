"""contract: a buffer that only one loop needs becomes locals of that loop."""

from __future__ import annotations

from swirl.ir.nest import Program
from swirl.transforms.arguments import BufferName
from swirl.transforms.command import command
from swirl.transforms.rewrites.storage.contraction import contracted


@command()
def contract(program: Program, buffer: BufferName) -> Program:
    """Keep the elements of a buffer in locals of the innermost loop around everything that touches it.

    rewrite:
        for n in range(N):                      for n in range(N):
            y[n] = e                    →           y_t: float32 = e
            z[n] = max(0.0, y[n])                   z[n] = max(0.0, y_t)

    Dimensions that the loops inside run over stay: those of a local array, as large as what is alive at a time. What a
    select, ``and`` or ``or`` does not evaluate is not read: ``y[i - 1] if i >= 1 else 0.0`` needs no ``y[-1]``.

    Args:
        buffer: a buffer that only this program touches.

    Raises:
        CommandError: no such buffer.  Refused: others read it, a read is of another iteration's value, nests share
        it, the threads of a parallel loop would share it, or the array would be larger than 256 KiB.

    Source: Wolfe, High Performance Compilers for Parallel Computing (1996): array contraction.
    """
    return contracted(program, buffer)
