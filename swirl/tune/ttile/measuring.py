"""Measuring micro-kernels, each along ``c`` from the first cache, on one thread (thesis, section 5.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from swirl.errors import LatteError
from swirl.measure.rates import Limits
from swirl.run.runner import Runner
from swirl.target.targets import Target
from swirl.tune.candidates import Candidate
from swirl.tune.evaluation import jobs_of
from swirl.tune.served import Job, Spec
from swirl.tune.ttile.microkernels import (
    KernelTable,
    MicroKernel,
    channels_in_l1,
    measured_scheme,
    measured_subject,
    operations,
)
from swirl.tune.ttile.translation import translated
from swirl.tune.worker import Lost, Worker

BATCH = 16
"""Micro-kernels that are compiled together."""
RUNS = 3
"""Of each, in the first round of a race."""
PEAKS = 5
"""Runs of the probe of the peak, before and after each batch: the clock changes."""


@dataclass(frozen=True)
class _Built:
    """A micro-kernel that was compiled.

    Args:
        kernel: itself.
        job: its code.
        operations: of a run.
    """

    kernel: MicroKernel
    job: Job
    operations: int


def measured(kernels: Sequence[MicroKernel], target: Target, table: KernelTable) -> Iterator[KernelTable]:
    """The table with more and more of the micro-kernels, batch by batch; those that it has are not measured again.

    Args:
        kernels: that are measured.
        target: what code is made for.
        table: that is known.

    Raises:
        LatteError: nothing can be compiled, or run.
    """
    left = [each for each in kernels if each not in table.shares and each.name not in table.refused]
    limits = Limits(target, Runner(1))
    worker: Worker | None = None
    try:
        for group in (left[start : start + BATCH] for start in range(0, len(left), BATCH)):
            built, refused = _built(group, target)
            shares: dict[MicroKernel, float] = {}
            if built and worker is None:  # results are not compared: each kernel has data of its own
                worker = Worker(Spec(target.name, 1, 1, {}, (), 0.0), built[0].job)
            if built and worker is not None:
                before = _peak(limits)
                try:
                    for each in built:
                        worker.check(each.job)
                    times = worker.race([each.job for each in built], RUNS, keep=len(built))
                except Lost as lost:
                    refused |= {each.kernel.name: str(lost) for each in built}
                else:
                    peak = max(before, _peak(limits))
                    for each, seconds in zip(built, times, strict=True):
                        shares[each.kernel] = each.operations / min(seconds) / peak
            table = replace(table, shares={**table.shares, **shares}, refused={**table.refused, **refused})
            yield table
    finally:
        if worker is not None:
            worker.close()


def _peak(limits: Limits) -> float:
    """Operations a second."""
    return max(limits.rates()[0] for _ in range(PEAKS))


def _built(kernels: Sequence[MicroKernel], target: Target) -> tuple[list[_Built], dict[str, str]]:
    """The micro-kernels of a batch that can be compiled, and why others cannot."""
    refused: dict[str, str] = {}
    candidates: list[tuple[MicroKernel, int, Candidate]] = []
    for kernel in kernels:
        channels = channels_in_l1(kernel, target)
        try:
            subject = measured_subject(kernel, target, channels)
            candidates.append((kernel, channels, translated(subject, measured_scheme(kernel, channels))))
        except LatteError as error:
            refused[kernel.name] = error.message
    made = jobs_of([candidate for *_, candidate in candidates], target)
    found = []
    for (kernel, channels, _), job in zip(candidates, made, strict=True):
        if isinstance(job, LatteError):
            refused[kernel.name] = job.message
        else:
            found.append(_Built(kernel, job, operations(kernel, target, channels)))
    return found, refused
