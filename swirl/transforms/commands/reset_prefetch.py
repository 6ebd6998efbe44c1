"""reset_prefetch: prefetches taken out again."""

from __future__ import annotations

from swirl.ir.nest import Program
from swirl.transforms.arguments import NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.storage.without_hints import without_prefetches


@command()
def reset_prefetch(program: Program, *, nest: NestName | None = None) -> Program:
    """Remove the prefetches of commands before this one.

    rewrite:
        for w in range(0, 64, 16):              for w in range(0, 64, 16):
            prefetch(x, (w + 64,), 1)   →           s
            s

    Args:
        nest: only in this nest (index or label).

    Raises:
        Nothing: where there are no prefetches, nothing changes.
    """
    result = program
    for index, target in enumerate(program.nests):
        if nest is None or nest in (index, target.label):
            result = result.with_nest(index, without_prefetches(target))
    return checked(program, result)
