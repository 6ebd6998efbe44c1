"""Fusion of an element-wise operator with a heavy one: algorithm 3 of PolyDL (section 5).

An operator is a nest of a program. The paper's conditions are

1. both write the same set of elements;
2. the element-wise operator has as many iterations as it writes elements: it writes each once, without a reduction;
3. nothing between the two reads or writes one of these elements.

Then the statements of the element-wise operator are put into the last iteration of the heavy one's reduction loops,
after its statements; or, of one that comes before the heavy operator, into the first iteration, before them. Index
set splitting peels that iteration, so that no condition is left.

The three do not say that the heavy operator does not use, in a later iteration, what the element-wise one has
changed, nor that the code between leaves alone what it reads. A fourth condition here does: no two statements that
touch one element, of which at least one writes it, change places.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import islpy as isl

from swirl.analysis.accesses import Access
from swirl.analysis.dependences import before, find
from swirl.analysis.domains import Domain
from swirl.analysis.loop_tree import loop_tree
from swirl.analysis.sets import NotProved, limited, set_of
from swirl.analysis.statements import Statement, statements_of
from swirl.errors import CommandError
from swirl.ir.affine import affine
from swirl.ir.names import with_distinct_names
from swirl.ir.nest import (
    Loop,
    Nest,
    Program,
    clones,
    constant,
    expr,
    fresh,
    make_nest,
    names_in,
    substitute,
    variable_of,
)
from swirl.ir.paths import Path, edit_at, edit_block, loops
from swirl.ir.trees import declared_in
from swirl.transforms import COMMANDS
from swirl.transforms.rewrites.checks.checked import checked
from swirl.tune.polydl.instances import Touching

SAME, ONCE, APART, ORDER = "same elements", "each once", "nothing between", "order"
"""The conditions; the last one is not in the paper."""
LAST, FIRST = "last", "first"


@dataclass(frozen=True)
class Condition:
    """A condition of a fusion.

    Args:
        name: of :data:`SAME`, :data:`ONCE`, :data:`APART`, :data:`ORDER`.
        holds: whether it does.
        told: why it does not; "" where it does.
    """

    name: str
    holds: bool
    told: str


@dataclass(frozen=True)
class Fusion:
    """Two operators, and whether they may be fused.

    Args:
        heavy, element_wise: labels of the nests.
        iteration: of the heavy operator's reduction loops into which the other one goes: ``last``, or ``first`` where
            it comes before.
        conditions: the paper's three in their order; the fourth where these hold.
    """

    heavy: str
    element_wise: str
    iteration: str
    conditions: tuple[Condition, ...]

    @property
    def allowed(self) -> bool:
        """Whether all hold."""
        return all(each.holds for each in self.conditions)

    @property
    def failed(self) -> tuple[Condition, ...]:
        """Those that do not."""
        return tuple(each for each in self.conditions if not each.holds)


def fusion(program: Program, heavy: str, element_wise: str) -> Fusion:
    """Whether algorithm 3 fuses two operators of a program.

    Args:
        program: whose nests run one after the other.
        heavy: label of the operator with the reduction.
        element_wise: label of the other one, before or after it.

    Raises:
        CommandError: there are no such nests, or they are the same.
    """
    first, second = _index(program, heavy), _index(program, element_wise)
    if first == second:
        raise CommandError(f"{heavy} cannot be fused with itself", way_out="name two nests")
    one, other = program.nests[first], program.nests[second]
    iteration = LAST if first < second else FIRST
    between = program.nests[min(first, second) + 1 : max(first, second)]
    same, once, apart = _same_elements(one, other, program), _each_once(other, program), _apart(one, between, program)
    found = Fusion(heavy, element_wise, iteration, (same, once, apart))
    if not found.allowed:
        return found
    return replace(found, conditions=(*found.conditions, _order(one, other, between, iteration, program)))


def fused(program: Program, heavy: str, element_wise: str, *, peel: bool = True) -> Program:
    """A program with two operators fused, as algorithm 3 does.

    Args:
        program: whose nests run one after the other.
        heavy: label of the operator with the reduction; its loops are used.
        element_wise: label of the other one, before or after it.
        peel: whether the iteration into which it goes is peeled; else its statements are under a condition, which loops
            of another step than 1 keep in any case.

    Raises:
        CommandError: a condition does not hold; the message says which one.
    """
    found = fusion(program, heavy, element_wise)
    if not found.allowed:
        told = "; ".join(f"{each.name}: {each.told}" for each in found.failed)
        raise CommandError(f"{element_wise} is not fused with {heavy}: {told}", way_out="fuse_layers may do more")
    first, second = _index(program, heavy), _index(program, element_wise)
    made = _made(program.nests[first], program.nests[second], found.iteration, program)
    nests = [made.nest if n == first else nest for n, nest in enumerate(program.nests) if n != second]
    after = checked(program, program.with_nests(nests))
    for loop in made.reductions if peel else ():
        # Of the copies that an outer loop's split has made, the one that has the statements.
        place, cut = (-1, (loop.extent or 1) - 1) if found.iteration == LAST else (0, 1)
        if (loop.extent or 1) > 1 and loop.step == 1:
            cuts = [(constant(loop.start) or 0) + cut]
            after = COMMANDS["split"](after, f"{loop.var}[{place}]", cuts, nest=made.nest.label)
    return after


def fusions(program: Program) -> list[Fusion]:
    """What algorithm 3 says of each two operators that follow each other, in both roles."""
    labels = [nest.label for nest in program.nests]
    return [fusion(program, *pair) for a, b in pairwise(labels) for pair in ((a, b), (b, a))]


def _index(program: Program, label: str) -> int:
    labels = [nest.label for nest in program.nests]
    if label not in labels:
        raise CommandError(f"there is no nest {label!r}", way_out=f"the nests are {', '.join(labels)}")
    return labels.index(label)


# --- the paper's conditions ---------------------------------------------------------------------------------
def _same_elements(heavy: Nest, element_wise: Nest, program: Program) -> Condition:
    """Line 4: W_hy = W_ew."""
    names = [_written(nest, program) for nest in (heavy, element_wise)]
    if names[0] != names[1]:
        texts = [", ".join(sorted(each)) or "nothing" for each in names]
        return Condition(SAME, False, f"{heavy.label} writes {texts[0]}, {element_wise.label} {texts[1]}")
    for name in sorted(names[0]):
        told = f"not all elements of {name} that one writes, the other one does"
        try:
            with limited() as context:
                sets = [_elements(context, nest, name, written=True) for nest in (heavy, element_wise)]
                equal = sets[0] is not None and sets[1] is not None and bool(sets[0].is_equal(sets[1]))
        except NotProved:
            equal, told = False, f"whether both write the same elements of {name} is not proved"
        if not equal:
            return Condition(SAME, False, told)
    return Condition(SAME, True, "")


def _each_once(element_wise: Nest, program: Program) -> Condition:
    """Line 5: |I_ew| = |W_ew|."""
    chain = _perfect(element_wise)
    if chain is None:
        return Condition(ONCE, False, f"{element_wise.label} is not one chain of loops around its statements")
    iterations, exact = Domain(tuple(chain)).count
    touching = Touching(program.with_nests([element_wise]), written=True)
    written = touching.touched({place: [{}] for place in touching.places})
    if exact and written.exact and iterations == written.elements:
        return Condition(ONCE, True, "")
    told = f"{element_wise.label} has {iterations} iterations, and writes {written.elements} elements"
    return Condition(ONCE, False, told if exact and written.exact else f"{told}, at the most")


def _apart(heavy: Nest, between: Sequence[Nest], program: Program) -> Condition:
    """Line 6: no reads or writes of W_hy between."""
    for nest in between:
        for name in sorted(_written(heavy, program) & set(nest.arguments)):
            try:
                with limited() as context:
                    own, other = _elements(context, heavy, name, written=True), _elements(context, nest, name)
                    apart = own is not None and other is not None and bool(own.is_disjoint(other))
            except NotProved:
                apart = False
            if not apart:
                return Condition(APART, False, f"{nest.label} uses elements of {name}")
    return Condition(APART, True, "")


def _written(nest: Nest, program: Program) -> set[str]:
    """The buffers of which a nest writes elements."""
    return {name for s in statements_of(nest) for name in s.changed if name in program.buffers}


def _elements(context: isl.Context, nest: Nest, name: str, written: bool = False) -> isl.Set | None:
    """The elements of a buffer that a nest touches, or writes; None where a subscript is data."""
    found: isl.Set | None = None
    for statement in statements_of(nest):
        for access in statement.accesses:
            if access.name != name or (written and access.kind == "read"):
                continue
            texts = statement.subscripts(access)
            if None in texts:
                return None
            parts = statement.domain.for_isl("_")
            parts += [f"e{n} = {text.replace('@', '_')}" for n, text in enumerate(texts) if text is not None]
            names = [f"{variable}_" for variable in statement.variables()]
            bound = f"exists {', '.join(names)} : " if names else ""
            own = set_of(
                context, f"{{ [{', '.join(f'e{n}' for n in range(len(texts)))}] : {bound}{' and '.join(parts)} }}"
            )
            found = own if found is None else found.union(own)
    return found


def _perfect(nest: Nest) -> list[Loop] | None:
    """The loops of a nest whose statements are all in the innermost one; None where it is another one."""
    outermost = (("body", 0),)
    tree = loop_tree(nest)
    if len(nest.body) != 1 or outermost not in tree.loops:
        return None
    chain = tree.chain(outermost)
    return chain if all(len(each.loops) == len(chain) for each in tree.statements) else None


# --- order --------------------------------------------------------------------------------------------------
def _order(heavy: Nest, element_wise: Nest, between: Sequence[Nest], iteration: str, program: Program) -> Condition:
    """Whether no two statements that touch one element change places."""
    try:
        made = _made(heavy, element_wise, iteration, program)
    except CommandError as error:
        return Condition(ORDER, False, error.message)
    own = [each for each in statements_of(made.nest) if _is_within(each.path, made.block, made.places)]
    others = [each for each in statements_of(made.nest) if each not in own]
    for moved in own:
        for other in others:
            early, late = (moved, other) if iteration == LAST else (other, moved)
            if _meet(early, late, [before(early, late)]):
                return Condition(ORDER, False, f"{other.text} uses what {moved.text} changes, or changes what it uses")
        for other in own:
            # Other elements may come in another order than in the loops of their own.
            differ = " or ".join(f"{name}_a != {name}_b" for name in made.results)
            if differ and _meet(moved, other, [f"({differ})"]):
                return Condition(ORDER, False, f"{moved.text} uses other elements that {element_wise.label} changes")
    changed, used = set(_written(element_wise, program)), set(element_wise.arguments)
    for nest in between:
        # What both write is apart: the third condition. The statements pass the code between all the same.
        meeting = (_written(nest, program) & used) | (changed & set(nest.arguments))
        if meeting - changed:
            names = ", ".join(sorted(meeting - changed))
            return Condition(ORDER, False, f"{nest.label}, between the two, changes {names}")
    return Condition(ORDER, True, "")


def _meet(first: Statement, second: Statement, constraints: list[str]) -> bool:
    """Whether instances may touch one element, one of them writing, where constraints hold."""
    try:
        return find(first, second, constraints, reductions=True) is not None
    except NotProved:
        return True


def _is_within(path: Path, block: Path, places: range) -> bool:
    """Whether a statement is among, or inside of, those at some places of a block."""
    return path[: len(block)] == block and len(path) > len(block) and path[len(block)][1] in places


# --- the fused nest -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Made:
    """A nest with the statements of another one.

    Args:
        nest: with them, under a condition on the reduction loops.
        reductions: these loops, outermost first.
        results: the variables of the others around.
        block: the path of the loop whose body has the statements.
        places: of them in that body.
    """

    nest: Nest
    reductions: tuple[Loop, ...]
    results: tuple[str, ...]
    block: Path
    places: range


def _made(heavy: Nest, element_wise: Nest, iteration: str, program: Program) -> _Made:
    """The heavy operator's nest with the statements of the other one in an iteration of its reduction loops.

    Raises:
        CommandError: it is not known which elements the statements are for, or when the reduction is over.
    """
    nest = _with_own_loops(with_distinct_names(heavy), iteration, program)
    statement, access = _writer(nest, iteration, program)
    around = statement.loop_paths()
    if not around:
        raise CommandError(f"{heavy.label} has no loops")
    block = around[-1][0]
    if any(depth not in statement.loop_depths for depth in range(len(block) - 1)):
        raise CommandError(f"a condition is around the loops of {heavy.label}")
    moving = {name for index in access.own for name in names_in(index)}
    reductions = tuple(loop for _, loop in around if loop.var not in moving)
    if any(loop.extent is None or loop.kind != "range" for loop in reductions):
        raise CommandError(
            f"the bounds of a reduction loop of {heavy.label} are not constant, or its iterations are shared"
        )
    body = _renamed(element_wise, nest, access, program)
    tests = []
    for loop in reductions:
        if (loop.extent or 1) > 1:
            start = constant(loop.start) or 0
            value = start + loop.step * ((loop.extent or 1) - 1) if iteration == LAST else start
            tests.append(f"{loop.var} == {value}")
    if tests:
        body = [ast.If(expr(" and ".join(tests)), body, [])]
    at = statement.path[len(block)][1]
    first = at + 1 if iteration == LAST else at
    inside = (*block, ("body", at))
    edited = edit_block(list(nest.body), inside, lambda known: [*known[:first], *body, *known[first:]])
    results = tuple(loop.var for _, loop in around if loop.var in moving)
    made = make_nest(heavy.label, edited, program.buffers)
    return _Made(made, reductions, results, block, range(first, first + len(body)))


def _with_own_loops(nest: Nest, iteration: str, program: Program) -> Nest:
    """The nest, in which loops around the last (or first) statement that writes have names that no other loop has."""
    statement, _ = _writer(nest, iteration, program)
    names = [variable_of(node) for _, node in loops(nest.body)]
    body, taken = list(nest.body), {*nest.names, *program.buffers}
    for path, loop in statement.loop_paths():
        if names.count(loop.var) > 1:
            name = fresh(loop.var, taken)
            taken.add(name)
            body = edit_at(body, path, partial(_with_variable, old=loop.var, new=name))
    return nest.with_body(body)


def _with_variable(node: ast.stmt, old: str, new: str) -> list[ast.stmt]:
    return [substitute(node, {old: ast.Name(new, ast.Load())})]


def _writer(nest: Nest, iteration: str, program: Program) -> tuple[Statement, Access]:
    """The statement that writes the operator's elements last, or first."""
    found = [
        (statement, access)
        for statement in statements_of(nest)
        for access in statement.accesses
        if access.kind != "read" and access.name in program.buffers
    ]
    if len({access.name for _, access in found}) != 1:
        raise CommandError(f"{nest.label} writes several buffers")
    return found[-1] if iteration == LAST else found[0]


def _renamed(element_wise: Nest, heavy: Nest, target: Access, program: Program) -> list[ast.stmt]:
    """The statements of the element-wise operator with the heavy one's subscripts in place of its variables.

    Raises:
        CommandError: a subscript of what it writes is more than a variable.
    """
    chain = _perfect(element_wise)
    assert chain is not None
    written = [
        access
        for statement in statements_of(element_wise)
        for access in statement.accesses
        if access.kind != "read" and access.name in program.buffers
    ]
    mapping: dict[str, ast.expr] = {}
    for access in written:
        own = dict(_pairs(access, target, element_wise))
        if any(ast.dump(own[name]) != ast.dump(mapping[name]) for name in own.keys() & mapping.keys()):
            raise CommandError(f"{element_wise.label} writes several elements in an iteration")
        mapping |= own
    left = {loop.var for loop in chain} - mapping.keys()
    if left:
        raise CommandError(f"{element_wise.label} does not move along {', '.join(sorted(left))}")
    body = _innermost(element_wise)
    taken = {*heavy.names, *program.buffers, *element_wise.names}
    for name in [name for each in body for name in declared_in(each)]:
        if name in heavy.names:
            mapping[name] = ast.Name(fresh(name, taken), ast.Load())
            taken.add(fresh(name, taken))
    return [substitute(each, mapping) for each in clones(body)]


def _pairs(own: Access, target: Access, nest: Nest) -> Iterator[tuple[str, ast.expr]]:
    """Variable of a subscript, and what the heavy operator has in its place."""
    for index, other in zip(own.own, target.own, strict=True):
        form = affine(index)
        names: Mapping[str, int] = {} if form is None else form.terms
        if form is None or (names and (len(names) > 1 or set(names.values()) != {1} or form.constant)):
            raise CommandError(f"{nest.label} writes {own.text}, whose subscripts are not its variables")
        for name in names:
            yield name, other


def _innermost(nest: Nest) -> list[ast.stmt]:
    """The statements in a chain of loops."""
    body = nest.body
    while len(body) == 1 and isinstance(body[0], ast.For):
        body = body[0].body
    return body
