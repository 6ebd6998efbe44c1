"""A compiled phase taken apart: its loop nests, each a program and a kernel of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latte.runtime.kernels import CompiledPhase
from swirl.build.jit import Kernel, build, load
from swirl.build.process_lock import alone
from swirl.codegen.emit import KernelSource, emit
from swirl.ir.names import stored_in
from swirl.ir.nest import Program
from swirl.ir.separate import separate
from swirl.target.targets import Target


@dataclass(frozen=True)
class LoopNest:
    """A loop nest of a compiled phase.

    Args:
        label: of the nest; with a number where the nest has several loops one after the other.
        program: the nest alone, with all buffers of the phase.
        kernel: it alone, compiled.
        buffers: names of the buffers in the kernel's table of pointers.
    """

    label: str
    program: Program
    kernel: Kernel
    buffers: tuple[str, ...]

    @property
    def writes(self) -> tuple[str, ...]:
        """The buffers that it writes, by their names in the nest."""
        stored = stored_in(self.program.nests[0].body)
        return tuple(name for name in stored if name in self.program.buffers)


def loop_nests(phases: Sequence[CompiledPhase], target: Target) -> list[list[LoopNest]]:
    """The loop nests of each phase, in order, compiled for the target of the net.

    Nests never share locals, and each ends with a barrier: run one after the other they do what the phase does. A
    phase of one nest keeps its own kernel.

    Raises:
        CompilerMissing, CompilerFailed, LatteError: see :func:`swirl.build.jit.build`.
    """
    separated = [separate(phase.program) for phase in phases]
    sources = _sources(phases, separated, target)
    built = build([source for several in sources for source in several], target)
    kernels = iter([load(library) for library in built])
    return [
        [
            LoopNest(label, program, next(kernels), source.buffers)
            for (label, program), source in zip(parts, several, strict=True)
        ]
        for parts, several in zip(separated, sources, strict=True)
    ]


@alone
def _sources(
    phases: Sequence[CompiledPhase], separated: Sequence[Sequence[tuple[str, Program]]], target: Target
) -> list[list[KernelSource]]:
    """The C++ of each nest: of one without neighbours, that of the phase."""
    return [
        [phase.source] if len(parts) == 1 else [emit(program, target) for _, program in parts]
        for phase, parts in zip(phases, separated, strict=True)
    ]
