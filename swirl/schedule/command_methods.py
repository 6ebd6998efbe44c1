"""The commands as methods of ``s``: what an editor completes in a recipe, and what mypy checks there.

Written from ``swirl/transforms/commands`` by ``python docs/refresh.py command_methods``; not to be edited. At run time,
:class:`swirl.schedule.recipe.Schedule` finds a command by its name.
"""

from __future__ import annotations

from swirl.transforms.arguments import (
    BufferName,
    BufferNames,
    CacheLevel,
    Cuts,
    Dimension,
    DimensionOrder,
    Factors,
    Gather,
    Iterations,
    Lanes,
    LocalNames,
    LoopName,
    LoopNameOrNames,
    LoopNames,
    LoopOccurrence,
    NestName,
    NewLoopName,
    Padding,
    Positive,
    ReadBufferName,
    Tail,
    ThreadSchedule,
    ZeroOrOne,
)


class CommandMethods:
    """Each returns the names of the loops that it made. ``optional=True`` skips a command that is refused."""

    def contract(self, phase: str, buffer: BufferName, *, optional: bool = False) -> tuple[str, ...]:
        """Keep the elements of a buffer in locals of the innermost loop around everything that touches it."""
        raise NotImplementedError

    def distribute(
        self,
        phase: str,
        loop_var: LoopName,
        *,
        recompute: bool = False,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Split a loop into one loop for each statement of its body; statements that share a local stay together."""
        raise NotImplementedError

    def factor(
        self,
        phase: str,
        loop_var: LoopName,
        *,
        keep_differences: bool = False,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Take what a loop does not change out of its sums and assignments; equal sums are computed once."""
        raise NotImplementedError

    def flatten(self, phase: str, loop_vars: LoopNames, *, optional: bool = False) -> tuple[str, ...]:
        """Join directly nested loops that run over whole neighbouring dimensions of every array they touch."""
        raise NotImplementedError

    def fuse(
        self,
        phase: str,
        first: LoopName,
        second: LoopName | None = None,
        *,
        shift: Iterations = 0,
        guard: bool = False,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Join a loop with the next one of equal bounds: the first two neighbours, in one body or two nests, that can
        be."""
        raise NotImplementedError

    def fuse_layers(
        self, phase: str, *phases: str, keep: BufferNames = (), required: bool = True, optional: bool = False
    ) -> tuple[str, ...]:
        """Join the loops of neighbouring layers, and contract the buffers in between that nothing else reads."""
        raise NotImplementedError

    def hoist(
        self,
        phase: str,
        loop_var: LoopName | None = None,
        *,
        reciprocal: bool = False,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Compute what stays the same in a loop once, before it; divide by it through its reciprocal."""
        raise NotImplementedError

    def if_convert(
        self,
        phase: str,
        loop_var: LoopName | None = None,
        *,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Turn branches on data into selects: every iteration then runs the same statements, and its elements are
        stored whatever the data are."""
        raise NotImplementedError

    def inline(self, phase: str, buffer: BufferName, *, local: bool = True, optional: bool = False) -> tuple[str, ...]:
        """Compute the elements of a buffer again where they are read, instead of where they were stored."""
        raise NotImplementedError

    def interchange(
        self, phase: str, loop_vars: LoopNames, *, nest: NestName | None = None, optional: bool = False
    ) -> tuple[str, ...]:
        """Swap two loops; an imperfect nest between them is distributed first where that is legal."""
        raise NotImplementedError

    def locate(
        self,
        phase: str,
        loop_var: LoopName,
        *,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Replace a loop that does something in one iteration only by that iteration: a window that adds to its
        greatest element goes to its place, without a look at the others."""
        raise NotImplementedError

    def moments(
        self,
        phase: str,
        loop_var: LoopName,
        *,
        inner: LoopName | None = None,
        once: bool = False,
        apart: bool = False,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Compute a mean and the sum of squared differences from it in one pass; iterations of the loop are
        combined."""
        raise NotImplementedError

    def pack(
        self,
        phase: str,
        buffer: ReadBufferName,
        *,
        name: str | None = None,
        at: LoopName | None = None,
        order: DimensionOrder | None = None,
        zeros: bool = False,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Copy a buffer that is only read, and read the copy, which can have a layout of its own; or, at a loop, the
        part of it that an iteration reads, into a local array."""
        raise NotImplementedError

    def parallelize(
        self,
        phase: str,
        loop_var: LoopNameOrNames,
        *,
        schedule: ThreadSchedule | None = None,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Share a loop's iterations among the threads (OpenMP). Directly nested parallel loops collapse."""
        raise NotImplementedError

    def partial_sums(
        self,
        phase: str,
        loop_var: LoopName,
        *,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Let each iteration of a loop add up its own terms, and add that to the sum: long sums lose fewer digits."""
        raise NotImplementedError

    def prefetch(
        self,
        phase: str,
        buffer: BufferName,
        loop_var: LoopName,
        distance: Positive = 1,
        level: CacheLevel = 1,
        *,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Fetch into a cache what a loop will touch some iterations later; one prefetch for each cache line."""
        raise NotImplementedError

    def privatize(
        self,
        phase: str,
        buffer: BufferName,
        loop_var: LoopName | None = None,
        *,
        copies: Positive = 8,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Give a loop private copies of a buffer: one for each part of a reduction's iterations, or a local array for
        what each iteration writes before it reads."""
        raise NotImplementedError

    def reindex(
        self,
        phase: str,
        loop_var: LoopName | None = None,
        *,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
        **new: str,
    ) -> tuple[str, ...]:
        """Replace a loop by one over an affine expression of it and other loops: a scatter becomes a gather."""
        raise NotImplementedError

    def rename(
        self,
        phase: str,
        loop_var: LoopName,
        name: NewLoopName,
        *,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Give a loop another name: commands act on every loop of a name, so loops to be scheduled apart have two."""
        raise NotImplementedError

    def reorder(
        self, phase: str, order: LoopNames, *, nest: NestName | None = None, optional: bool = False
    ) -> tuple[str, ...]:
        """Put loops of one nest into the order given, outermost first; conditions on loop variables that are between
        them move inside."""
        raise NotImplementedError

    def reset_prefetch(self, phase: str, *, nest: NestName | None = None, optional: bool = False) -> tuple[str, ...]:
        """Remove the prefetches of commands before this one."""
        raise NotImplementedError

    def reverse(
        self,
        phase: str,
        loop_var: LoopName,
        *,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Run a loop backwards: a second pass begins with what the first one left in the cache."""
        raise NotImplementedError

    def scalar_expand(
        self,
        phase: str,
        scalar_vars: LocalNames,
        loop_var: LoopName | None = None,
        *,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Give a local one element for each iteration of a loop, so that distribute and interchange may cut between its
        uses."""
        raise NotImplementedError

    def scalar_replace(
        self, phase: str, buffer: BufferName | None = None, *, nest: NestName | None = None, optional: bool = False
    ) -> tuple[str, ...]:
        """Keep elements in locals over the loops that do not move them; read before, written back after."""
        raise NotImplementedError

    def set_padding(self, buffer: BufferName, *pairs: Padding, optional: bool = False) -> tuple[str, ...]:
        """Put zeros around a buffer in memory (a halo), and drop the conditions that keep reads from going there."""
        raise NotImplementedError

    def shift_mean(
        self,
        phase: str,
        loop_var: LoopName,
        *,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Compute a mean from differences to the first element: the mean of equal numbers is that number."""
        raise NotImplementedError

    def split(
        self,
        phase: str,
        loop_var: LoopName,
        at: Cuts,
        *,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Cut a loop's range into consecutive parts, each schedulable by itself; conditions constant in a part
        vanish."""
        raise NotImplementedError

    def store_local(
        self, phase: str, scalar_vars: LocalNames, *, nest: NestName | None = None, optional: bool = False
    ) -> tuple[str, ...]:
        """Keep a local in a buffer, with one element for each iteration of the loops around it, so that distribute
        makes nests of what is before, between and after its uses."""
        raise NotImplementedError

    def stream(
        self,
        phase: str,
        buffer: BufferName,
        loop_var: LoopName | None = None,
        *,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Store a buffer past the caches (non-temporal stores): its lines are not read before they are written, and
        push nothing out."""
        raise NotImplementedError

    def tile(
        self, buffer: BufferName, dim: Dimension, factor: Positive, *, reorder: bool = True, optional: bool = False
    ) -> tuple[str, ...]:
        """Block a dimension of a buffer in memory, and strip-mine the loops that run over it."""
        raise NotImplementedError

    def tile_loop(
        self,
        phase: str,
        loop_var: LoopName,
        factor: Factors,
        *,
        tail: Tail = "min",
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Strip-mine a loop into ``<loop>_outer`` and ``<loop>_inner``."""
        raise NotImplementedError

    def transpose(
        self,
        buffer: BufferName,
        dim1: Dimension | None = None,
        dim2: Dimension | None = None,
        *,
        order: DimensionOrder | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Change the order of a buffer's dimensions in memory."""
        raise NotImplementedError

    def unroll(
        self,
        phase: str,
        loop_var: LoopName,
        factor: Factors,
        unroll_type: ZeroOrOne = 0,
        *,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Copy a loop's body ``factor`` times, one copy after the other. A reduction gets one partial result for each
        copy."""
        raise NotImplementedError

    def unroll_and_jam(
        self,
        phase: str,
        loop_var: LoopName,
        factor: Factors,
        unroll_type: ZeroOrOne = 0,
        *,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Copy a loop's body ``factor`` times and join the loops inside: a register tile."""
        raise NotImplementedError

    def untile(self, buffer: BufferName, *, reorder: bool = True, optional: bool = False) -> tuple[str, ...]:
        """Lay a buffer out without blocks; loops stay as they are."""
        raise NotImplementedError

    def vectorize(
        self,
        phase: str,
        loop_var: LoopName,
        factor: Lanes = 16,
        *,
        strided: Gather | None = None,
        occurrence: LoopOccurrence | None = None,
        nest: NestName | None = None,
        optional: bool = False,
    ) -> tuple[str, ...]:
        """Turn a loop into vectors of ``factor`` lanes; a ragged end is masked, a reduction gets one partial result for
        each lane. So does a maximum or minimum of which the place is kept: ``if x[k] > best: best = x[k]; place = k``,
        or the same with a named condition (``better: bool = x[k] > best``, then ``best = x[k] if better else
        best``)."""
        raise NotImplementedError

    # Older spellings
    simd = vectorize
    swap_loops = interchange
    unroll_no_jam = unroll
