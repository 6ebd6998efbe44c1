"""The contraction of a program, as searches see it: dimensions with extents, and tensors with what moves in them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from swirl.analysis.accesses import Access
from swirl.analysis.loop_facts import contractions, executions, stride
from swirl.analysis.statements import Statement, statements_of
from swirl.errors import CommandError
from swirl.ir.affine import Affine, affine
from swirl.ir.nest import Loop, Nest, Program, constant, kind_of, names_in
from swirl.ir.paths import loops


@dataclass(frozen=True)
class Subscript:
    """One subscript of a tensor: ``(y * 2 + ky) // 1`` has the terms ``(("y", 2), ("ky", 1))``.

    Args:
        terms: dimension and coefficient.
        divisor: of the sum.
    """

    terms: tuple[tuple[str, int], ...]
    divisor: int = 1

    def span(self, sizes: Mapping[str, int]) -> int:
        """How many values it has in a tile of these sizes: the whole box of a sum."""
        return sum(abs(factor) * (sizes[dimension] - 1) for dimension, factor in self.terms) // self.divisor + 1


@dataclass(frozen=True)
class Tensor:
    """An operand, or the output.

    Args:
        name: of the buffer, or the local.
        subscripts: in order.
        output: whether it is the result.
        batch: whether the first subscript is the batch's, which commands on layouts do not count.
        apart: dimensions along which neighbours are not neighbours in memory.
    """

    name: str
    subscripts: tuple[Subscript, ...]
    output: bool = False
    batch: bool = False
    apart: frozenset[str] = frozenset()

    @cached_property
    def dimensions(self) -> frozenset[str]:
        """Those that move it."""
        return frozenset(dimension for each in self.subscripts for dimension, _ in each.terms)

    def footprint(self, sizes: Mapping[str, int]) -> int:
        """Elements that a tile of these sizes touches (section 5.4.3)."""
        return prod(each.span(sizes) for each in self.subscripts)


@dataclass(frozen=True)
class PhysicalLoop:
    """A loop of the nest that runs over a dimension, or over its blocks.

    Args:
        name: of the loop.
        count: iterations.
        step: what an iteration moves along the dimension.
    """

    name: str
    count: int
    step: int


@dataclass(frozen=True)
class Problem:
    """A contraction.

    Args:
        nest: label of its nest.
        extents: of the dimensions, in the order of their loops.
        loops: of each dimension, outermost first; several where the arrays are blocked.
        tensors: the output first.
        results: dimensions of the output; the others are summed over.
        beside: dimensions along which neighbours are not neighbours in memory in what other statements of the nest
            touch.
        perfect: whether the nest has no other statement.
        around: whether it has, and the loops over the sums are inside of those over the results: what stands before and
            after the sums can stay there.
        local: whether the output is a local, as where a layer after it is computed in the same loops.
        lanes: elements of a vector.
    """

    nest: str
    extents: Mapping[str, int]
    loops: Mapping[str, tuple[PhysicalLoop, ...]]
    tensors: tuple[Tensor, ...]
    results: frozenset[str]
    beside: frozenset[str]
    perfect: bool
    around: bool
    local: bool
    lanes: int

    @property
    def sums(self) -> tuple[str, ...]:
        """The dimensions that are summed over."""
        return tuple(dimension for dimension in self.extents if dimension not in self.results)

    @property
    def vectors(self) -> tuple[str, ...]:
        """The dimensions of the output along which neighbours are neighbours in memory in every tensor that has
        them."""
        return self.vectors_with(())

    def vectors_with(self, turned: Collection[str]) -> tuple[str, ...]:
        """The same where copies of these tensors have the dimension innermost."""
        apart = {d for each in self.tensors if each.name not in turned for d in each.apart} | self.beside
        return tuple(dimension for dimension in self.extents if dimension in self.results and dimension not in apart)

    def footprint(self, sizes: Mapping[str, int]) -> int:
        """Elements of all tensors that a tile of these sizes touches."""
        return sum(tensor.footprint(sizes) for tensor in self.tensors)

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name.

        Raises:
            CommandError: there is none.
        """
        for each in self.tensors:
            if each.name == name:
                return each
        known = ", ".join(each.name for each in self.tensors)
        raise CommandError(f"there is no tensor {name!r}", way_out=f"the tensors are {known}")


def problem_of(program: Program, lanes: int) -> Problem:
    """The contraction of a program that does most.

    Args:
        program: a phase, with the layouts that it has.
        lanes: elements of a vector.

    Raises:
        CommandError: it has none, or one whose loops are of other kinds than schemes have.
    """
    found = [
        (executions(one.statement), number, one)
        for number, nest in enumerate(program.nests)
        for one in contractions(nest, program.buffers, single=True)
    ]
    if not found:
        raise CommandError(f"{program.name} has no contraction: no sum of products", way_out="another method")
    _, number, chosen = max(found, key=lambda each: (each[0], -each[1]))
    nest, statement = program.nests[number], chosen.statement
    _check_loops(nest, statement.loops)
    accesses = [chosen.target, *chosen.operands]
    forms = [[_plain(index) for index in access.own] for access in accesses]
    plain = [[form for form in each if form is not None] for each in forms]
    if list(map(len, plain)) != list(map(len, forms)):
        raise CommandError(f"{statement.text} has a subscript that is not affine", way_out="another method")
    dimensions = _dimensions(statement.loops, [form for each in plain for form, _ in each])
    owner = {loop.name: (dimension, loop.step) for dimension, own in dimensions.items() for loop in own}
    tensors: list[Tensor] = []
    for access, each in zip(accesses, plain, strict=True):
        around = {
            names for index in access.indices[: len(access.indices) - len(access.own)] for names in names_in(index)
        }
        implied = dict.fromkeys(owner[name][0] for name in owner if name in around)  # a local has one in each of them
        subscripts = [Subscript(((dimension, 1),)) for dimension in implied]
        subscripts += [Subscript(tuple(_terms(form, owner)), divisor) for form, divisor in each]
        buffer = program.buffers.get(access.name)
        batch = buffer is not None and bool(buffer.batch_dims)
        apart = _apart(program, [(statement, access)], dimensions)
        tensors.append(Tensor(access.name, tuple(subscripts), not tensors, batch, apart))
    known = {(statement, access.text) for access in accesses}
    others = [(s, a) for s in statements_of(nest) for a in s.accesses if (s, a.text) not in known]
    return Problem(
        nest.label,
        {dimension: own[0].count * own[0].step for dimension, own in dimensions.items()},
        dimensions,
        tuple(dict.fromkeys(tensors)),
        tensors[0].dimensions,
        _apart(program, others, dimensions),
        _alone(nest, statement),
        not _alone(nest, statement) and not _sums_around(statement, dimensions, tensors[0].dimensions),
        chosen.target.name not in program.buffers,
        lanes,
    )


def _alone(nest: Nest, statement: Statement) -> bool:
    """Whether a nest has no other statement."""
    return not any(s.changed and s is not statement for s in statements_of(nest))


def _sums_around(
    statement: Statement, dimensions: Mapping[str, Sequence[PhysicalLoop]], results: frozenset[str]
) -> bool:
    """Whether a loop over results is inside of one over sums."""
    of_results = {loop.name for dimension, own in dimensions.items() if dimension in results for loop in own}
    order = [name in of_results for name in statement.variables()]
    return order != sorted(order, reverse=True)


def _apart(
    program: Program, accesses: Iterable[tuple[Statement, Access]], dimensions: Mapping[str, Sequence[PhysicalLoop]]
) -> frozenset[str]:
    """The dimensions along which an access moves to another element than the next one in memory."""
    found = set()
    for statement, access in accesses:
        for dimension, own in dimensions.items():
            if access.name not in program.buffers or own[-1].name not in statement.variable_set:
                continue
            if stride(access, own[-1].name, statement, program.buffers) not in (0, 1):
                found.add(dimension)
    return frozenset(found)


def _check_loops(nest: Nest, around: Sequence[Loop]) -> None:
    for loop in around:
        if loop.kind != "range" or loop.extent is None or loop.step != 1 or constant(loop.start) != 0:
            raise CommandError(
                f"{loop.var} in {nest.label} is not a plain loop from 0 with a constant extent",
                way_out="another method",
            )
    if any(kind_of(node) == "vector" for _, node in loops(nest.body)):
        raise CommandError(f"{nest.label} has vectors already", way_out="schemes begin with plain loops")


def _plain(index: ast.expr) -> tuple[Affine, int] | None:
    """A subscript as a sum of loop variables, and what it is divided by; None where it is another thing."""
    form = affine(index)
    if form is None:
        return None
    if len(form.terms) == 1 and not form.constant:
        ((key, factor),) = form.terms.items()
        atom = form.atoms[key]
        if isinstance(atom, ast.BinOp) and isinstance(atom.op, ast.FloorDiv) and factor == 1:
            inside, divisor = affine(atom.left), constant(atom.right)
            form = inside if inside is not None and divisor else form
            return (form, divisor or 1) if _is_sum(form) else None
    return (form, 1) if _is_sum(form) else None


def _is_sum(form: Affine) -> bool:
    return all(isinstance(form.atoms[key], ast.Name) for key in form.terms)


def _dimensions(around: Sequence[Loop], forms: Sequence[Affine]) -> dict[str, tuple[PhysicalLoop, ...]]:
    """The loops of each dimension. Two are of one where every subscript with one of them counts blocks by the outer and
    what is in a block by the inner one."""
    extents = {loop.var: loop.extent or 1 for loop in around}
    chains: list[list[str]] = [[name] for name in extents]
    merged = True
    while merged:
        merged = False
        for outer in chains:
            for inner in chains:
                if outer is not inner and _blocked(outer[-1], inner[0], extents[inner[0]], forms):
                    outer += inner
                    chains.remove(inner)
                    merged = True
                    break
            if merged:
                break
    found: dict[str, tuple[PhysicalLoop, ...]] = {}
    for chain in chains:
        own: list[PhysicalLoop] = []
        step = 1
        for name in reversed(chain):
            own.insert(0, PhysicalLoop(name, extents[name], step))
            step *= extents[name]
        found[_name(chain, {*extents, *found})] = tuple(own)
    return found


def _blocked(outer: str, inner: str, size: int, forms: Sequence[Affine]) -> bool:
    own = [form for form in forms if form.mentions(outer) or form.mentions(inner)]
    return bool(own) and all(
        form.coefficient(inner) and form.coefficient(outer) == size * form.coefficient(inner) for form in own
    )


def _name(chain: Sequence[str], taken: set[str]) -> str:
    """``k`` for ``k_outer`` and ``k_inner``."""
    if len(chain) == 1:
        return chain[0]
    short = chain[0].removesuffix("_outer")
    return short if short not in taken else chain[0]


def _terms(form: Affine, owner: Mapping[str, tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """The dimensions of a subscript: of blocks, the inner loop's coefficient is the dimension's."""
    for name, factor in form.terms.items():
        dimension, step = owner[name]
        if step == 1:
            yield dimension, factor
