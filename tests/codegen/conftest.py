"""Compile small programs and compare what they compute with the executed nests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest

from swirl.codegen.emit import KernelSource, emit
from swirl.errors import CompilerFailed
from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.execute import execute
from swirl.ir.nest import parse_program
from swirl.jit import build, load
from swirl.runner import Runner
from swirl.target import TARGETS, Target, why_not
from swirl.translation_unit import TranslationUnit
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


Check = Callable[..., dict[str, np.ndarray]]


@pytest.fixture
def check(target: Target) -> Check:
    """``check(text, buffers, arrays)``: the compiled program computes what the executed one does, bit for
    bit."""

    def run(
        text: str,
        buffers: Mapping[str, Buffer],
        arrays: Mapping[str, np.ndarray] | None = None,
        *,
        tolerance: float = 0.0,
    ) -> dict[str, np.ndarray]:
        program = parse_program(text, buffers)
        given = {**arrays_for(buffers), **(arrays or {})}
        expected = {name: array.copy() for name, array in given.items()}
        execute(program, expected)
        source = emit(program, target, contract=False)
        packed = {name: buffers[name].layout.pack(array) for name, array in given.items()}
        got = run_source(source, packed, target)
        for name, buffer in buffers.items():
            if name not in source.buffers:
                continue
            result = buffer.layout.unpack(got[name], buffer.shape)
            if tolerance:
                np.testing.assert_allclose(result, expected[name], rtol=tolerance, err_msg=name)
            else:
                assert_same_bits(result, expected[name], name)
        return got

    return run


def buffer(*shape: int, dtype: str = "float32") -> Buffer:
    """A buffer whose name does not matter."""
    return Buffer("storage", shape, dtype)
