"""What accesses touch: the different elements of a buffer, counted in elements, bytes and cache lines, and the smallest
box around them.

Loops around are *fixed*: what is counted is touched in one iteration of them, whichever it is. Dimensions whose
subscripts share no loop are counted by themselves, in closed form or by :mod:`swirl.analysis.enumeration`; what is too
large, or depends on data, is bounded from above. Boxes are exact: in closed form where nothing cuts the iterations,
else by isl, whose work is limited.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import islpy as isl
import numpy as np

from swirl.analysis.accesses import Access
from swirl.analysis.domains import Domain
from swirl.analysis.enumeration import Values, evaluate, grid, grouped, image, satisfied, variables
from swirl.analysis.sets import limited, set_of
from swirl.analysis.statements import Statement
from swirl.analysis.strides import LINE
from swirl.ir.addresses import element_address
from swirl.ir.affine import Affine, affine
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.layouts import in_memory
from swirl.ir.names import INDEX_CALLS
from swirl.ir.nest import Loop, names_in, subscripts
from swirl.ir.printing import unparse
from swirl.ir.spelling import text_in_ascii
from swirl.ir.trees import guarded


@dataclass(frozen=True)
class Touched:
    """Memory that a loop touches.

    Args:
        buffer: its name in the nest.
        bytes: of the different elements that are read or written, each counted once.
        exact: whether it is exactly that number, not at most that.
        written: whether some element is written.
    """

    buffer: str
    bytes: int
    exact: bool
    written: bool


@dataclass(frozen=True)
class Footprint:
    """What statements touch of one buffer.

    Args:
        name: of the buffer in the nest.
        buffer: see :class:`swirl.ir.buffers.Buffer`.
        references: to its elements.
        written: whether some element is written.
    """

    name: str
    buffer: Buffer
    references: Sequence[_Reference]
    written: bool

    @cached_property
    def elements(self) -> tuple[int, bool]:
        """The number of different elements, those of a halo included, and whether it is exactly that, not at most
        that."""
        halo = Layout(halo=self.buffer.layout.halo)
        uses = [use.in_memory(halo, self.buffer.shape, 1) for use in self.references] if halo.halo else self.references
        return _different(uses, halo.physical_shape(self.buffer.shape))

    @property
    def bytes(self) -> int:
        """Those of these elements."""
        return self.elements[0] * self.buffer.itemsize

    @property
    def touched(self) -> Touched:
        """The bytes, as they are shown."""
        return Touched(self.name, self.bytes, self.elements[1], self.written)

    @cached_property
    def lines(self) -> tuple[int, bool]:
        """The number of different cache lines in which the elements are, and whether it is exactly that. Arrays begin
        with a line."""
        shape, per_line = self.buffer.physical_shape, LINE // self.buffer.itemsize
        rows = next((n for n in range(1, len(shape)) if prod(shape[-n:]) % per_line == 0), len(shape))
        joined = (*shape[:-rows], prod(shape[-rows:]))  # innermost, rows that are whole lines
        uses = [use.in_memory(self.buffer.layout, self.buffer.shape, rows) for use in self.references]
        return _different(uses, joined, per_line)


def footprints(
    statements: Sequence[Statement], around: Domain, buffers: Mapping[str, Buffer], neighbours: Loop | None = None
) -> list[Footprint]:
    """What statements touch of each buffer in one execution, at the most, of what is inside of ``around``. A local in a
    subscript counts as one value, whatever it is.

    Args:
        statements: with ``around`` around them; in their nest a name has one meaning
            (:func:`swirl.ir.names.with_distinct_names`).
        around: the outermost loops, which are fixed, and the conditions between them.
        buffers: those that count.
        neighbours: one of these loops, of which two neighbouring iterations count together.
    """
    found: dict[str, list[_Reference]] = {}
    written: set[str] = set()
    for statement in statements:
        if statement.domain.count == (0, True):
            continue
        for node, domain in _evaluated(statement.computed, statement.domain):
            assert isinstance(node.value, ast.Name)
            name = node.value.id
            if name in buffers:
                found.setdefault(name, []).append(_Reference(tuple(subscripts(node)), domain, around, neighbours))
                if isinstance(node.ctx, ast.Store):
                    written.add(name)
    return [Footprint(name, buffers[name], uses, name in written) for name, uses in found.items()]


def _evaluated(node: ast.AST, domain: Domain) -> Iterator[tuple[ast.Subscript, Domain]]:
    """The references in a statement, and for which iterations they are evaluated: for those that a select, or the
    like, chooses, where that does not depend on data (lanes load all values then)."""
    if isinstance(node, ast.Subscript):
        yield node, domain
    for part, guards in guarded(node):
        chosen = domain
        if guards and not Domain(domain.loops, guards).on_data:
            chosen = Domain(domain.loops, (*domain.guards, *guards))
            if chosen.count == (0, True):
                continue
        yield from _evaluated(part, chosen)


# --- references ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Reference:
    """A reference: its subscripts, the domain of its statement, the domain around, whose variables are fixed, and a
    loop of that of which two neighbouring iterations count."""

    indices: tuple[ast.expr, ...]
    domain: Domain
    around: Domain
    neighbours: Loop | None = None

    @property
    def still(self) -> frozenset[str]:
        """The fixed variables: they move all values alike."""
        return self.around.variables

    @cached_property
    def moving(self) -> Mapping[str, Values] | None:
        """The values of the other variables, and by how much two neighbouring iterations differ; None where a bound is
        unknown."""
        boxes = self.domain.boxes
        if boxes is None:
            return None
        differing = {self.neighbours.var: Values(0, abs(self.neighbours.step), 2)} if self.neighbours else {}
        return {var: box for var, box in boxes.items() if var in self.moving_names} | differing

    @property
    def moving_names(self) -> set[str]:
        names = {loop.var for loop in self.domain.loops[len(self.around.loops) :]}
        return names if self.neighbours is None else {*names, self.neighbours.var}

    def fixed_part(self, index: ast.expr) -> str:
        """What fixed variables add to a subscript, as text."""
        form = affine(index)
        if form is None or self.divides(index):
            return unparse(index)
        return " ".join(f"{factor}*{atom}" for atom, factor in sorted(self._fixed_terms(form).items()))

    def divides(self, index: ast.expr) -> bool:
        """Whether a fixed variable is divided, or in a minimum: the number of values then depends on it."""
        form = affine(index)
        return form is not None and any(not isinstance(form.atoms[atom], ast.Name) for atom in self._fixed_terms(form))

    def moves_by(self, index: ast.expr, size: int) -> bool:
        """Whether fixed variables move a subscript by multiples of ``size``."""
        form = affine(index)
        return form is not None and all(factor % size == 0 for factor in self._fixed_terms(form).values())

    def _fixed_terms(self, form: Affine) -> dict[str, int]:
        return {atom: factor for atom, factor in form.terms.items() if variables(form.atoms[atom]) & self.still}

    def in_memory(self, layout: Layout, shape: tuple[int, ...], rows: int) -> _Reference:
        """The same reference to an array of ``shape`` in memory, whose last dimensions, so many, are one."""
        ranges = self.domain.ranges
        indices = in_memory(layout, self.indices, ranges)
        address = element_address(layout.physical_shape(shape)[-rows:], indices[-rows:], ranges)
        inner = indices[-1] if address is None else address.to_expr()  # data
        return _Reference((*indices[:-rows], inner), self.domain, self.around, self.neighbours)


# --- counting -----------------------------------------------------------------------------------------------
_Piece = tuple[Values, ...]
"""A product of sets, one for each group of dimensions of a buffer."""


def _different(uses: Sequence[_Reference], shape: tuple[int, ...], per_line: int = 1) -> tuple[int, bool]:
    """Number of different elements of an array of ``shape`` that references touch, or of lines of so many elements, and
    whether it is exact."""
    groups = _groups(uses, len(shape))
    sure: dict[tuple[str, ...], list[_Piece]] = {}
    every: dict[tuple[str, ...], list[_Piece]] = {}
    misaligned: set[tuple[str, ...]] = set()
    for use in uses:
        found = [_group_values(use, group, shape, per_line) for group in groups]
        piece = tuple(values for values, _ in found)
        if not all(values.count for values in piece):
            continue
        place = tuple(map(use.fixed_part, use.indices))
        every[place] = _merged([*every.get(place, []), piece])
        if all(exact for _, exact in found):
            sure[place] = _merged([*sure.get(place, []), piece])
        if per_line > 1 and not use.moves_by(use.indices[-1], per_line):
            misaligned.add(place)
    if per_line > 1:
        innermost = next(place for place, group in enumerate(groups) if len(shape) - 1 in group)
        every = {at: _lines(pieces, innermost, per_line, at not in misaligned) for at, pieces in every.items()}
        sure = {at: _lines(pieces, innermost, per_line, True) for at, pieces in sure.items() if at not in misaligned}
    most = min(_size(every), -(-prod(shape) // per_line))
    # The relative places of pieces are known only if the same fixed variables move them all.
    known = len(sure) == 1 and _disjoint(*sure.values())
    return most, most == (_size(sure) if known else 0)


def _lines(pieces: list[_Piece], innermost: int, per_line: int, aligned: bool) -> list[_Piece]:
    """Pieces with lines of so many elements in place of the innermost group's elements."""
    found = [
        (*piece[:innermost], piece[innermost].in_lines(per_line, aligned), *piece[innermost + 1 :]) for piece in pieces
    ]
    result: list[_Piece] = []
    for piece in found:
        result = _merged([*result, piece]) if aligned else [*result, piece]
    return result


def _size(pieces: Mapping[tuple[str, ...], list[_Piece]]) -> int:
    return sum(prod(values.count for values in piece) for several in pieces.values() for piece in several)


def _disjoint(pieces: list[_Piece]) -> bool:
    return all(
        any(not a.meets(b) for a, b in zip(one, two, strict=True))
        for place, one in enumerate(pieces)
        for two in pieces[:place]
    )


def _merged(pieces: list[_Piece]) -> list[_Piece]:
    """The same union, with pieces that differ in one factor only made one."""
    *result, new = pieces
    for place, old in enumerate(result):
        different = [d for d, (a, b) in enumerate(zip(old, new, strict=True)) if not a.same(b)]
        if not different:
            return result
        if len(different) == 1:
            d = different[0]
            joined = (*old[:d], old[d].union(new[d]), *old[d + 1 :])
            return _merged([*result[:place], *result[place + 1 :], joined])
    return [*result, new]


def _groups(uses: Sequence[_Reference], rank: int) -> list[list[int]]:
    """The dimensions, grouped if one moving variable occurs in their subscripts."""
    together: list[list[str]] = []
    for use in uses:
        inside = [names for names, _ in use.domain.constraints(use.around)]
        for linked in grouped(use.moving_names, inside):
            together.append([str(d) for d, index in enumerate(use.indices) if variables(index) & set(linked)])
    return [sorted(map(int, group)) for group in grouped(map(str, range(rank)), together)]


def _group_values(use: _Reference, group: list[int], shape: tuple[int, ...], per_line: int) -> tuple[Values, bool]:
    """The values that the subscripts of a group of dimensions take together, several dimensions as one number, and
    whether they are exactly these. Where their number alone is known, each is in a line of its own.

    Fixed variables count as 0: they move all values alike.
    """
    indices, extents = [use.indices[d] for d in group], [shape[d] for d in group]
    most = Values(0, 1, prod(extents))
    moving = use.moving
    if moving is None or any(affine(index) is None for index in indices):
        return most, False  # a bound or an index that is data
    used = set().union(*map(variables, indices)) & set(moving)
    if any(map(use.divides, indices)):
        return Values(0, per_line, min(most.count, prod(moving[var].count for var in used))), False
    constraints = use.domain.constraints(use.around)
    # Conditions between moving and fixed variables are ignored: there are at most that many.
    within = [(names, condition) for names, condition in constraints if not names & use.still]
    exact = not use.domain.on_data and len(within) == len(constraints)
    linked = grouped(moving, [names for names, _ in within])
    own = {var: moving[var] for several in linked if set(several) & used for var in several}
    conditions = [condition for names, condition in within if names & own.keys()]
    shifted = any(variables(index) & use.still for index in indices)
    single = image(indices[0], moving) if len(group) == 1 else None
    if single is not None and not shifted:
        single = single.within(extents[0])
    if single is not None and not conditions:
        return single, exact
    found = listed(indices, own, conditions, extents, shifted)
    if found is not None:
        return found, exact
    return (most if single is None else single), False


def listed(
    indices: Sequence[ast.expr],
    boxes: Mapping[str, Values],
    conditions: Sequence[ast.expr],
    extents: Sequence[int],
    shifted: bool,
) -> Values | None:
    """The values of subscripts, as one number, at the points of ``boxes`` that satisfy ``conditions``; None if
    there are too many. Other variables count as 0; unless ``shifted``, only what is inside of the extents."""
    points, mask = grid(boxes), satisfied(boxes, conditions)
    if points is None or mask is None:
        return None
    points |= dict.fromkeys(set().union(*map(variables, indices)) - set(boxes), np.zeros((), int))
    number = np.zeros((), int)
    for index, extent in zip(indices, extents, strict=True):
        at = np.asarray(evaluate(index, points))
        if not shifted:
            mask = mask & (at >= 0) & (at < extent)
        number = number * (4 * extent) + at + extent if len(indices) > 1 else at
    return Values.of(np.broadcast_to(number, mask.shape)[mask])


# --- boxes --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Span:
    """Consecutive subscripts of one dimension: ``extent`` of them from ``start`` on."""

    start: Affine
    extent: int


def box(accesses: Sequence[tuple[Statement, Access]], buffer: Buffer, outer: Sequence[str]) -> list[Span] | None:
    """The smallest box around the elements that accesses touch in one iteration of the loops ``outer``; None where no
    instance of them runs.

    The box starts where a subscript does as far as it moves with ``outer``: at ``y_outer * 4 - 1`` for
    ``x[y_outer * 4 + y_inner + ky - 1]``. It may reach beyond the buffer where a statement reads under a select.

    Raises:
        NotProved: the question took more work than is allowed.
    """
    rank = len(buffer.shape)
    if all(_ends(statement, Affine()) is None for statement, _ in accesses):
        return None
    spans = []
    for dimension in range(rank):
        forms = [(s, access.forms[len(access.indices) - rank + dimension]) for s, access in accesses]
        spans.append(_span(forms, *buffer.layout.readable(buffer.shape)[dimension], set(outer)))
    return spans


def box_bytes(accesses: Sequence[tuple[Statement, Access]], buffer: Buffer, outer: Sequence[str]) -> int:
    """Bytes of the smallest box around what accesses touch; as :func:`box`."""
    spans = box(accesses, buffer, outer)
    return 0 if spans is None else prod(span.extent for span in spans) * buffer.itemsize


def _span(forms: Sequence[tuple[Statement, Affine | None]], low: int, high: int, outer: set[str]) -> Span:
    """The subscripts of one dimension; all from ``low`` up to ``high`` where one is not affine in the loops."""
    starts: dict[frozenset[tuple[str, int]], Affine] = {}
    for start in (Affine(), *(_moving(form, outer) for _, form in forms if form is not None)):
        starts.setdefault(frozenset(start.terms.items()), start)
    found: list[Span] = []
    for start in starts.values():
        moved = [(statement, None if form is None else form.add(start, -1)) for statement, form in forms]
        every = [_ends(statement, form) for statement, form in moved if form is not None and _is_known(statement, form)]
        if len(every) < len(forms):
            return Span(Affine(constant=low), high - low)
        if ends := [each for each in every if each is not None]:
            least, most = min(first for first, _ in ends), max(last for _, last in ends)
            found.append(Span(start.add(Affine(constant=least)), most - least + 1))
    return min(found, key=lambda span: span.extent)


def _moving(form: Affine, outer: set[str]) -> Affine:
    """The terms of a subscript that only the loops ``outer`` move."""
    terms = {key: c for key, c in form.terms.items() if names_in(form.atoms[key]) - INDEX_CALLS <= outer}
    return Affine(terms, 0, {key: form.atoms[key] for key in terms})


def _is_known(statement: Statement, form: Affine) -> bool:
    """Whether a subscript is of loop variables alone."""
    return all(names_in(form.atoms[key]) <= statement.domain.known for key in form.terms)


def _ends(statement: Statement, form: Affine) -> tuple[int, int] | None:
    """Least and greatest value of a subscript over the instances of a statement; None where there are none."""
    domain, boxes = statement.domain, statement.domain.boxes
    if boxes is None or domain.constraints() or not form.terms.keys() <= domain.variables:
        text = domain.subscript(form.to_expr())
        assert text is not None
        return extremes(statement, text)
    if not all(values.count > 0 for values in boxes.values()):
        return None
    low = high = form.constant
    for var, factor in form.terms.items():
        ends = [factor * boxes[var].start, factor * (boxes[var].start + boxes[var].step * (boxes[var].count - 1))]
        low, high = low + min(ends), high + max(ends)
    return low, high


def extremes(statement: Statement, text: str, constraints: Sequence[str] = ()) -> tuple[int, int] | None:
    """Least and greatest value of an expression over the instances of a statement that satisfy ``constraints`` (both
    as :func:`swirl.analysis.accesses.template` makes them); None where there are none.

    Raises:
        NotProved: the question took more work than is allowed.
    """
    names = ["value", *(f"{var}_" for var in statement.variables())]
    parts = [part.replace("@", "_") for part in (f"value = {text}", *statement.domain.for_isl("@"), *constraints)]
    return _extremes(", ".join(names), " and ".join(parts))


@lru_cache(maxsize=4096)
def _extremes(names: str, condition: str) -> tuple[int, int] | None:
    with limited() as context:
        points = set_of(context, f"{{ [{names}] : {condition} }}")
        if points.is_empty():
            return None
        value = isl.Aff.read_from_str(context, text_in_ascii(f"{{ [{names}] -> [value] }}"))
        return points.min_val(value).to_python(), points.max_val(value).to_python()
