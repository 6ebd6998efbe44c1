"""Compile small programs and compare what they compute with the executed nests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from swirl.build.jit import Built, build, load
from swirl.build.translation_unit import TranslationUnit
from swirl.codegen.emit import KernelSource, emit
from swirl.errors import CompilerFailed
from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.execute import execute
from swirl.ir.nest import Program, parse_program
from swirl.run.runner import Runner
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS, Target
from tests.sanitize import exact, sanitized


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts on a cache line; under the sanitizers, one that ends where its memory ends."""
    if sanitized():
        copy = exact(array.shape, array.dtype)
        copy[...] = array
        return copy
    raw = np.zeros(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def arrays_for(buffers: Mapping[str, Buffer], seed: int = 0) -> dict[str, np.ndarray]:
    """Random contents: floats with their full mantissas, small integers, truth values."""
    generator = np.random.default_rng(seed)
    result = {}
    for name, buffer in buffers.items():
        if buffer.dtype == "bool":
            values = generator.random(buffer.shape) < 0.5
        elif buffer.dtype == "int32":
            values = generator.integers(-9, 10, buffer.shape)
        else:
            values = generator.normal(size=buffer.shape)
        result[name] = values.astype(DTYPES[buffer.dtype])
    return result


def assert_same_bits(got: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Equal bit for bit; NaNs are all alike (Python and the processor choose their payloads differently)."""
    both_nan = (got != got) & (expected != expected)
    integers = {4: np.uint32, 8: np.uint64, 1: np.uint8}[got.dtype.itemsize]
    different = (got.view(integers) != expected.view(integers)) & ~both_nan
    if different.any():
        where = tuple(np.argwhere(different)[0])
        count = int(different.sum())
        pytest.fail(f"{name}{[int(i) for i in where]}: {got[where]!r}, executed: {expected[where]!r} ({count} differ)")


def why_not_made(target: Target) -> str | None:
    """Why the compiler here cannot make a target's code, or None; the code need not run here."""
    try:
        nothing = '#include <immintrin.h>\nextern "C" void nothing(void* const*) {}\n'
        build([TranslationUnit("nothing", nothing)], target)
    except CompilerFailed as error:
        return str(error)
    return None


def run_source(
    source: KernelSource, arrays: Mapping[str, np.ndarray], target: Target, contract: bool = False, threads: int = 2
) -> dict[str, np.ndarray]:
    """The arrays after the kernel ran on copies of them; where it cannot run, it is compiled and the test skipped."""
    (built,) = build([source], target, contract=contract)
    return run_built(source, built, arrays, target, threads)


def run_built(
    source: KernelSource, built: Built, arrays: Mapping[str, np.ndarray], target: Target, threads: int = 2
) -> dict[str, np.ndarray]:
    """The same of a kernel that has been compiled."""
    if reason := why_not(target):
        pytest.skip(f"{target.name}: compiled, not run: {reason}")
    copies = {name: aligned(array) for name, array in arrays.items()}
    phase = Runner(threads).phase([(load(built), [copies[name] for name in source.buffers])])
    phase.run()
    return copies


@pytest.fixture(params=sorted(TARGETS))
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Each target in turn; for one that this machine cannot run, tests compile, and a skip says so."""
    target = TARGETS[request.param]
    if why_not(target) is not None and (reason := why_not_made(target)):
        pytest.skip(f"{target.name}: {reason}")
    yield target
    if reason := why_not(target):
        pytest.skip(f"{target.name}: compiled, not run: {reason}")


Check = Callable[..., None]
"""``check(text, buffers, arrays)``: the compiled program computes what the executed one does, bit for bit."""


class Checks:
    """Programs that are compiled in one run of the compiler, and then compared."""

    def __init__(self, target: Target):
        self.target = target
        self.cases: list[tuple[str, Program, Mapping[str, np.ndarray], float]] = []

    def add(
        self,
        label: str,
        text: str,
        buffers: Mapping[str, Buffer],
        arrays: Mapping[str, np.ndarray] | None = None,
        *,
        tolerance: float = 0.0,
    ) -> None:
        """Check a program later; ``label`` names it where it fails."""
        given = {**arrays_for(buffers), **(arrays or {})}
        self.cases.append((label, parse_program(text, buffers), given, tolerance))

    def add_program(self, label: str, program: Program, given: Mapping[str, np.ndarray]) -> None:
        """The same, of a program that is there already."""
        self.cases.append((label, program, given, 0.0))

    def run(self) -> None:
        """Compile all programs, and compare each."""
        sources = [emit(program, self.target, contract=False) for _, program, _, _ in self.cases]
        wrong = []
        for (label, program, given, tolerance), source, built in zip(
            self.cases, sources, build(sources, self.target, contract=False), strict=True
        ):
            packed = {name: program.buffers[name].layout.pack(array) for name, array in given.items()}
            got = run_built(source, built, packed, self.target)
            try:
                _compare(program, given, got, source, tolerance)
            except (AssertionError, pytest.fail.Exception) as error:
                wrong.append(f"{label}: {error}\n{program.text}")
        assert not wrong, "\n\n".join(wrong)


def _compare(
    program: Program,
    given: Mapping[str, np.ndarray],
    got: Mapping[str, np.ndarray],
    source: KernelSource,
    tolerance: float,
) -> None:
    expected = {name: array.copy() for name, array in given.items()}
    execute(program, expected)
    for name, buffer in program.buffers.items():
        if name not in source.buffers:
            continue
        result = buffer.layout.unpack(got[name], buffer.shape)
        if tolerance:
            np.testing.assert_allclose(result, expected[name], rtol=tolerance, err_msg=name)
        else:
            assert_same_bits(result, expected[name], name)


@pytest.fixture
def checks(target: Target) -> Checks:
    """Programs for the target, see :class:`Checks`."""
    return Checks(target)


@pytest.fixture
def check(checks: Checks) -> Check:
    """See :class:`Check`."""

    def now(*arguments: Any, **options: Any) -> None:
        checks.add("program", *arguments, **options)
        checks.run()

    return now


def together(**values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[Checks], None]]:
    """As ``pytest.mark.parametrize``, but the programs of all values (of all combinations, where there are several
    parameters) are compiled at once: a run of the compiler takes longer to start than to compile a small program."""
    combinations = [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]

    def decorated(test: Callable[..., None]) -> Callable[[Checks], None]:
        def run(checks: Checks) -> None:
            for each in combinations:
                label = ", ".join(f"{name} = {value}" for name, value in each.items())
                test(partial(checks.add, label), **each)
            checks.run()

        run.__doc__ = test.__doc__
        return run

    return decorated


def buffer(*shape: int, dtype: str = "float32") -> Buffer:
    """A buffer whose name does not matter."""
    return Buffer("storage", shape, dtype)
