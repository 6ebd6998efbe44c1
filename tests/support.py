"""What tests of programs share: making them, and comparing what they compute."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pytest

from swirl.build.jit import build
from swirl.codegen.emit import KernelSource, emit
from swirl.ir.arithmetic import UNDEFINED, Undefined
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.execute import execute, random_arrays
from swirl.ir.nest import Program, make_nest, parse_program, substitute
from swirl.ir.validate import validate
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS, Target
from tests.codegen.conftest import arrays_for, assert_same_bits, run_source
from tests.fuzz import floats

Shapes = dict[str, tuple[int, ...]]


def running_targets(*, vectors: bool = False) -> list[str]:
    """The names of the targets that this machine runs; of those with vectors alone, if there is one."""
    running = [name for name, target in TARGETS.items() if why_not(target) is None]
    return running[:-1] if vectors and len(running) > 1 else running


def targets_in_turn(first: int = 0, *, vectors: bool = False) -> Iterator[str]:
    """The same again and again, from that number on: for cases of which one each is enough."""
    return itertools.islice(itertools.cycle(running_targets(vectors=vectors)), first, None)


def program(text: str, /, aliases: dict[str, tuple[str, ...]] | None = None, **shapes: tuple[int, ...]) -> Program:
    """A program from text; keywords are the shapes of its buffers."""
    buffers = {name: Buffer(f"net.{name}", shape) for name, shape in shapes.items()}
    return validate(parse_program(text, buffers, aliases=aliases))


def changed(before: Program, after: Program) -> str:
    """The nests of ``after`` that ``before`` does not have."""
    known = {nest.text for nest in before.nests}
    return "\n\n".join(nest.text for nest in after.nests if nest.text not in known)


def difference(
    before: Program, after: Program, seed: int = 0, given: Mapping[str, np.ndarray] | None = None
) -> str | None:
    """Where two programs differ, executed exactly in checking mode; None where they compute the same.

    Buffers that only the program needs may differ, or be missing.

    Args:
        given: the contents of the buffers; by default random ones.
    """
    given = random_arrays(before, seed, "rational") if given is None else given
    expected = {name: array.copy() for name, array in given.items()}
    # flatten lets a program see the same memory with another shape
    shapes = {name: after.buffers.get(name, buffer).shape for name, buffer in before.buffers.items()}
    got = {name: array.copy().reshape(shapes[name]) for name, array in given.items()}
    execute(before, expected, arithmetic="rational")
    execute(after, got, checking=True, arithmetic="rational", seed=seed)
    for name in given:
        if before.buffers[name].role == "temporary":
            continue
        found = got[name].reshape(expected[name].shape)
        different = _differ(found, expected[name])
        if np.any(different):
            where = tuple(int(i) for i in np.argwhere(different)[0])
            return f"{name}{list(where)} is {found[where]}, was {expected[name][where]}"
    return None


def _differs(found: object, wanted: object) -> bool:
    return wanted is not UNDEFINED and (isinstance(found, Undefined) or found != wanted)


_differ = np.frompyfunc(_differs, 2, 1)
"""Elementwise, whether two numbers differ; what divides by zero in fractions has its value in floating point only."""


def assert_same(
    before: Program,
    after: Program,
    *,
    keeps_bits: bool | None = None,
    expands: bool = False,
    finite: bool = False,
    seeds: Iterable[int] = (0, 1),
) -> Program:
    """``after``, if it computes what ``before`` does: exactly, over rationals; and in floating point, with special
    values among the data (see :mod:`tests.fuzz.floats`).

    Args:
        keeps_bits: whether the bits in floating point must be the same; by default where nothing is accumulated, which
            commands may do in another order.
        expands: products may be expanded, and data are finite.
        finite: data are finite, which a command's documentation says that it assumes.
        seeds: of the data; the first one in floating point, too.
    """
    validate(after)
    if keeps_bits is None:
        keeps_bits = not expands and not finite and floats.keeps_bits("reorder", before, after)
    for number, seed in enumerate(seeds):
        found = difference(before, after, seed)
        if found is None and number == 0:
            found = floating_difference(before, after, seed, keeps_bits, expands, finite)
        if found is not None:
            pytest.fail(f"{found}\n{before.text}\n\nbecame\n\n{after.text}")
    return after


def assert_same_expanded(before: Program, after: Program) -> Program:
    """:func:`assert_same`, where products may have been expanded: for the algebra of real numbers."""
    return assert_same(before, after, expands=True)


def floating_difference(
    before: Program, after: Program, seed: int, keeps_bits: bool, expands: bool = False, finite: bool = False
) -> str | None:
    """Where two programs differ in floating point, in checking mode; None where they compute the same."""
    limits = floats.subscripts(before)
    if limits is None:  # an array of subscripts that cannot be filled
        return None
    if not keeps_bits:
        return floats.in_any_order(before, after, seed, expands, finite)[0]
    given = floats.data(floats.touched(before), seed, floats.EVERY_BIT[seed % len(floats.EVERY_BIT)], limits)
    return floats.bits(floats.executed(after, given, checking=True, seed=seed), floats.executed(before, given), before)


def assert_compiles_to_same(program: Program, target: Target, seed: int = 0) -> None:
    """The compiled program computes what the executed one does, bit for bit: of plain random numbers, and with special
    values among them. Where it cannot run, it compiles."""
    assert_all_compile_to_same([program], target, seed)


def assert_all_compile_to_same(programs: Sequence[Program], target: Target, seed: int = 0) -> None:
    """The same of several programs, which are compiled together."""
    sources = [emit(program, target, contract=False) for program in programs]
    build(sources, target, contract=False)
    if not why_not(target):
        for program, source in zip(programs, sources, strict=True):
            _assert_runs_alike(program, source, target, seed)


def _assert_runs_alike(program: Program, source: KernelSource, target: Target, seed: int) -> None:
    buffers = floats.touched(program)
    limits = floats.subscripts(program)
    contents = [arrays_for(buffers)]
    if limits is not None:
        contents.append(floats.data(buffers, seed, floats.EVERY_BIT[seed % len(floats.EVERY_BIT)], limits))
    for given in contents:
        expected = {name: array.copy() for name, array in given.items()}
        execute(program, expected)
        packed = {name: buffers[name].layout.pack(array) for name, array in given.items()}
        got = run_source(source, packed, target)
        for name, buffer in buffers.items():
            assert_same_bits(buffer.layout.unpack(got[name], buffer.shape), expected[name], name)


def merged(programs: list[Program]) -> Program:
    """One program that does what several do, one after the other, on separate buffers: one kernel to compile."""
    return joined([numbered(program, number) for number, program in enumerate(programs)])


def numbered(program: Program, number: int) -> Program:
    """The program with a number after the names of its buffers and nests."""
    buffers = {f"{name}_of_{number}": buffer for name, buffer in program.buffers.items()}
    names = {name: ast.Name(f"{name}_of_{number}", ast.Load()) for name in program.buffers}
    nests = [
        make_nest(f"{nest.label}_of_{number}", [substitute(statement, names) for statement in nest.body], buffers)
        for nest in program.nests
    ]
    return Program("merged", tuple(nests), buffers)


def joined(programs: Iterable[Program]) -> Program:
    """The nests of programs that share no names, one after the other."""
    known = list(programs)
    buffers = {name: buffer for program in known for name, buffer in program.buffers.items()}
    return Program("merged", tuple(nest for program in known for nest in program.nests), buffers)


def laid_out(program: Program, layouts: Mapping[str, Layout]) -> Program:
    """The program with storage laid out as an earlier layer has chosen."""
    changed = {local: b.with_layout(layouts[b.name]) for local, b in program.buffers.items() if b.name in layouts}
    return program.with_buffers(**changed)
