"""A program of nests → the C++ text of one kernel, or of a stand-alone listing for people."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import jinja2

from swirl.analysis.trips import shared_work
from swirl.build.translation_unit import IF_CONVERTIBLE, STORES_IN_ONE_PLACE, TranslationUnit
from swirl.codegen.avx2 import Avx2
from swirl.codegen.avx512 import Avx512
from swirl.codegen.context import C_TYPES, FROM_CMATH, Context, Unsupported
from swirl.codegen.ctree_compat import print_nodes
from swirl.codegen.lanes import PlainLanes
from swirl.codegen.parallel import WorkSharing
from swirl.codegen.physical import physical
from swirl.codegen.single_lanes import without_single_lanes
from swirl.codegen.storage import decide, stores_in_one_place, touches_conditionally
from swirl.codegen.to_c import Statements, VectorLoops
from swirl.codegen.vector import RegisterLanes
from swirl.ir.buffers import Buffer
from swirl.ir.hints import prefetch_of
from swirl.ir.names import stored_in
from swirl.ir.nest import Program, references
from swirl.ir.operations import FUNCTIONS
from swirl.ir.paths import walk
from swirl.ir.spelling import in_ascii
from swirl.ir.types import explicit
from swirl.target.targets import Target

WORDS = 3
"""Buffers in a kernel's name."""


@dataclass(frozen=True)
class KernelSource(TranslationUnit):
    """A kernel's text.

    Attributes:
        name: ``kernel_value_4fd02757…``: what it writes, for whoever reads a profile, and a number made from the text
            itself. So equal programs share one kernel, whatever ensemble they come from.
        buffers: names (inside the nests) of the buffers, in the order of the pointer table.
    """

    buffers: tuple[str, ...]

    shares_library: ClassVar[bool] = True


@dataclass(frozen=True)
class _Parameter:
    declaration: str
    cast: str


def emit(program: Program, target: Target, *, contract: bool = True) -> KernelSource:
    """The kernel of a program: every thread of an enclosing ``omp parallel`` calls it.

    Args:
        program: its references may be logical still; layouts are made physical here.
        target: what the code is made for.
        contract: whether ``a * b + c`` becomes one fused multiply-add. Without it (and compiled with
            ``-ffp-contract=off``) results are those of the executed nests, bit for bit, except for ``exp`` and
            its kin: in vectors they are within 4 ULP, the C library's within 2.

    Raises:
        Unsupported: a construct that this target has no code for; the message names it.
    """
    program = explicit(physical(program))
    names, parameters, texts = _translate(program, target, contract, standalone=False)
    body = "\n".join(texts)
    vectors = "_mm" in body or _calls_vectors(body, target.name)
    helpers = _helpers(body, target.name if vectors else "portable")
    # Reading what is not needed takes g++ a fifth of a kernel's time.
    math = not FROM_CMATH.isdisjoint(re.findall(r"\w+", "\n".join([body, *helpers])))
    # g++ can turn the portable target's text into masked loads only on other targets.
    convertible = target.isa_flags and not vectors and not touches_conditionally(program)
    notes = [IF_CONVERTIBLE] if convertible else []
    notes += [STORES_IN_ONE_PLACE] if stores_in_one_place(program, lanes=not vectors) else []

    def render(name: str) -> str:
        headers = ["immintrin.h"] * vectors + ["cmath"] * math
        parts = {"parameters": parameters, "body": body, "helpers": helpers, "headers": headers, "notes": notes}
        return str(_template("unit.cpp.j2").render(name=name, **parts))

    digest = hashlib.sha256(f"{target.name}\n{contract}\n{render('kernel')}".encode()).hexdigest()
    name = "_".join(["kernel", *_written_first(program, names), digest[:20]])
    _, lanes = _vector_loops(target)
    return KernelSource(name, render(name), tuple(names), work=shared_work(program, lanes))


def listing(program: Program, target: Target, *, contract: bool = True) -> str:
    """The stand-alone listing: the same loops in one function with named parameters and ``omp parallel
    for``."""
    program = explicit(physical(program))
    _, parameters, texts = _translate(program, target, contract, standalone=True)
    name = in_ascii(program.name)
    return str(_template("listing.cpp.j2").render(name=name, parameters=parameters, body="\n".join(texts)))


def lines_of_nests(program: Program, target: Target, source: str) -> list[tuple[str, range]]:
    """Which lines of a kernel's text each nest has become: its label, and the numbers of the lines, from 1 on.

    Args:
        program, target: that :func:`emit` was given.
        source: the text that it has made.
    """
    program = explicit(physical(program))
    *_, texts = _translate(program, target, contract=True, standalone=False)
    first = source[: source.index("\n".join(texts))].count("\n") + 1
    found = []
    for nest, text in zip(program.nests, texts, strict=True):
        after = first + text.count("\n") + 1
        found.append((nest.label, range(first, after)))
        first = after
    return found


def _written_first(program: Program, names: Sequence[str]) -> list[str]:
    """The first of the buffers that a program writes, as words of a name; they are in the kernel's text, too."""
    written = {name for nest in program.nests for name in stored_in(nest.body)}
    return [in_ascii(name) for name in names if name in written][:WORDS]


def _translate(
    program: Program, target: Target, contract: bool, standalone: bool
) -> tuple[list[str], list[_Parameter], list[str]]:
    """The buffers in the order of the pointer table, a parameter for each, and the text of each nest."""
    names = _buffers_in_order(program)
    buffers = {name: program.buffers[name] for name in names}
    vectors, width = _vector_loops(target)
    context = Context(buffers, width, contract, target.registers if width else 0)
    parts = []
    for nest in program.nests:
        body = without_single_lanes(nest.body)
        context.storage = decide(body, width)
        nodes = WorkSharing(Statements(context, vectors), standalone).nest(body)
        label = f"    // {nest.label}\n" if standalone else ""
        parts.append(label + print_nodes(nodes, 1))
    written = {name for nest in program.nests for name in stored_in(nest.body)}
    parameters = [_parameter(context.names[name], buffers[name], name in written) for name in names]
    return names, parameters, parts


def _vector_loops(target: Target) -> tuple[VectorLoops, int]:
    if target.name == "avx512":
        return RegisterLanes(Avx512()), 16
    if target.name == "avx2":
        return RegisterLanes(Avx2()), 8
    if target.name == "portable":
        return PlainLanes(), 0
    raise Unsupported(f"no code can be generated for a target {target.name!r}", way_out="avx512, avx2 or portable")


def _buffers_in_order(program: Program) -> list[str]:
    """The buffers touched, by first appearance: the order must not depend on names."""
    found: dict[str, None] = {}
    for nest in program.nests:
        for _, statement in walk(nest.body):
            head: ast.AST = statement
            if isinstance(statement, (ast.If, ast.For)):  # the statements inside are visited separately
                head = statement.test if isinstance(statement, ast.If) else statement.iter
            for reference in references(head):
                assert isinstance(reference.value, ast.Name)
                if reference.value.id in program.buffers:
                    found[reference.value.id] = None
            if isinstance(statement, ast.Expr) and (ahead := prefetch_of(statement)) is not None:
                found[ahead.buffer] = None
    return list(found)


def _parameter(name: str, buffer: Buffer, written: bool) -> _Parameter:
    """``float (*__restrict inputs)[64][56][56]`` for a buffer (N, 64, 56, 56)."""
    base = C_TYPES[buffer.dtype] if written else f"const {C_TYPES[buffer.dtype]}"
    extents = "".join(f"[{extent}]" for extent in buffer.shape[1:])
    if not extents:
        return _Parameter(f"{base} *__restrict {name}", f"{base} *")
    return _Parameter(f"{base} (*__restrict {name}){extents}", f"{base} (*){extents}")


# --- templates ----------------------------------------------------------------------------------------------
@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    loader = jinja2.PackageLoader("swirl.codegen", "templates")
    return jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


def _template(name: str) -> jinja2.Template:
    return _environment().get_template(name)


@lru_cache(maxsize=8)
def _library(target: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """The helper functions of a target: name → (names of helpers it needs, text)."""
    result = {}
    functions = [(name, known.arguments, known.vector_since) for name, known in FUNCTIONS.items() if known.vector_since]
    for part in dict.fromkeys(("portable", target)):
        text = _template(f"helpers_{part}.cpp.j2").render(functions=functions)
        for section in re.split(r"^// --- ", text, flags=re.MULTILINE)[1:]:
            head, _, code = section.partition("\n")
            name, _, needs = head.partition(":")
            key = name if part == "portable" else f"{part} {name}"
            result[key] = (tuple(needs.split()), code.strip())
    return result


def _helpers(body: str, target: str) -> list[str]:
    """The texts of the helper functions that ``body`` calls, in the order of definition."""
    library = _library(target)
    wanted: set[str] = set()
    _collect(_called(body), library, wanted)
    return [text for key, (_, text) in library.items() if key in wanted]


def _calls_vectors(body: str, target: str) -> bool:
    """Whether ``body`` calls a helper function that only targets with vectors have."""
    return any(" " in key and key.split()[-1] in _called(body) - set(_library(target)) for key in _library(target))


def _called(body: str) -> set[str]:
    return set(re.findall(r"\b[A-Za-z_]\w*(?=[(<])", body))


def _collect(names: Iterable[str], library: dict[str, tuple[tuple[str, ...], str]], wanted: set[str]) -> None:
    for key, (needs, _) in library.items():
        if key.split()[-1] in names and key not in wanted:
            wanted.add(key)
            _collect(needs, library, wanted)
