"""fuse_layers: the loops of neighbouring layers joined, the buffers in between contracted."""

from __future__ import annotations

import ast

from swirl.analysis.dependences import NotProved
from swirl.errors import Refused
from swirl.ir.nest import Program, variable_of
from swirl.ir.paths import at
from swirl.ir.types import explicit
from swirl.transforms.arguments import BufferNames
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.checks.ways_out import step, tried
from swirl.transforms.rewrites.loops.fusion import fuse_at
from swirl.transforms.rewrites.loops.shared_loops import with_shared_loops
from swirl.transforms.rewrites.sites import Site
from swirl.transforms.rewrites.storage.contraction import contracted, own_buffers


@command()
def fuse_layers(program: Program, *, keep: BufferNames = (), required: bool = True) -> Program:
    """Join the loops of neighbouring layers, and contract the buffers in between that nothing else reads.

    rewrite:
        for n: for k: y[n, k] = e                       for n: for k:
        for n: for c: z[n, c] = max(0.0, y[n, c])   →       y_t: float32 = e
                                                            z[n, k] = max(0.0, y_t)

    Loops are joined from the outermost inwards as far as the dependences allow, without making a loop that could
    run in parallel one that can't. Where only one layer computes something in a phase, there is nothing to join.

    Args:
        keep: buffers that are not contracted.
        required: whether it is refused where no two loops can be joined. It is not for two phases, whose programs
            become one whatever their loops are (``fuse_layers("backward", "update")``).

    Raises:
        CommandError: ``keep`` names no buffer.  Refused: no two loops can be joined.
    """
    fused = with_shared_loops(program)
    if required and len(program.nests) > 1 and len(fused.nests) == len(program.nests):
        raise _refusal(program)
    fused = checked(program, fused)
    for name in own_buffers(fused):
        if name not in keep:
            try:
                fused = contracted(explicit(fused), name)
            except Refused:
                continue
    return fused


def _refusal(program: Program) -> Refused:
    """Why the first two nests are not joined."""
    nest = program.nests[0]
    first, second = nest.body[0], program.nests[1].body[0]
    path = (("body", 0),)
    if not isinstance(first, ast.For) or not isinstance(second, ast.For):
        return refuse("no two loops follow each other", nest, path, "asked to fuse layers")
    try:
        fuse_at(program, Site(0, path))
    except Refused as refusal:
        return refusal
    except NotProved:
        return refuse("not proved within the time allowed", nest, path, "asked to fuse layers")
    assert isinstance(at(nest.body, path), ast.For)
    return refuse(
        "joined, the loops could no longer run in parallel",
        nest,
        path,
        "asked to fuse layers",
        way_out=tried(program, (step("fuse", variable_of(first), variable_of(second)),)),
    )
