"""Programs as they are lowered or derived: whether they compute for fewer items what a net of that size does."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from swirl.analysis.items import ItemLoop, NestItems, Separate, program_items
from swirl.ir.item_numbers import NotUniform
from swirl.ir.nest import Loop, Program, constant, loop_of, names_in, subscripts
from swirl.ir.printing import unparse
from swirl.ir.trees import ASSIGNMENTS, children, name_of, nodes, target_of


def for_any_number(program: Program, items: int, fixed: str = "", over_items: Collection[str] = ()) -> Program:
    """A program as it was lowered or derived, which says what forbids fewer items, if anything does.

    It computes for fewer items what the same loops with fewer iterations compute, if each loop over items runs over all
    of them, one after the other, by a variable that is a subscript of their elements and nothing else; and if what has
    as many iterations as there are items counts something else for sure.

    Args:
        program: without commands.
        items: of a whole batch.
        fixed: what is known to forbid it.
        over_items: variables of loops that are over items, as the body says.
    """
    if fixed or items < 2:
        return replace(program, fixed=fixed)
    try:
        for nest in program_items(program):
            for loop in nest.loops.values():
                head = loop_of(loop.node)
                if head.kind != "range" or head.step != 1 or constant(head.start) != 0 or constant(head.stop) != items:
                    raise NotUniform(f"the loop over {head.var} is not over all items")
                if not loop.leaf:
                    raise NotUniform(f"the loop over {head.var} has another one over items in it")
                _check_number_unused(loop.node, nest)
                _check_sums(loop, nest)
            _check_other_loops(nest.nest.body, nest, items, over_items)
    except NotUniform as error:
        return replace(program, fixed=str(error))
    return program


def with_items(programs: Mapping[str, Program], items: int, added: Collection[str]) -> dict[str, Program]:
    """Programs whose arrays say which of those that were ``added`` have elements for each item: they follow from what
    is stored in them.

    Args:
        programs: of one layer, by phase.
        items: of a whole batch.
        added: storage that the declaration does not have.

    Raises:
        NotUniform: see :class:`NestItems`.
    """
    found: set[str] = set()
    for program in programs.values():
        own = {name: b for name, b in program.buffers.items() if b.name in added and not b.items}
        if not own:
            continue
        asked = program.with_buffers(**{name: replace(buffer, role="temporary") for name, buffer in own.items()})
        separate: dict[str, Separate | None] = {}
        program_items(asked, separate)
        parts = Separate(((0, 1),), 0)
        found |= {
            buffer.name for name, buffer in own.items() if separate.get(name) == parts and buffer.shape[0] == items
        }

    def marked(program: Program) -> Program:
        own = {name: replace(b, items=items) for name, b in program.buffers.items() if b.name in found}
        return program.with_buffers(**own) if own else program

    return {phase: marked(program) for phase, program in programs.items()}


def _check_number_unused(node: ast.For, nest: NestItems) -> None:
    """Raises NotUniform where a body uses the number of its item otherwise than as a subscript of its elements."""
    variable = loop_of(node).var
    known = {id(touch.node) for touch in nest.touches if touch.item is not None}

    def check(tree: ast.AST) -> None:
        if isinstance(tree, ast.Name) and tree.id == variable and isinstance(tree.ctx, ast.Load):
            raise NotUniform(f"the body uses the item's number {variable}")
        if isinstance(tree, ast.Call) and unparse(tree.func) == "rand" and variable in names_in(tree):
            if nest.nest.body[0] is not node:
                raise NotUniform("a random number's place in the batch depends on the number of items")
            return
        parts = subscripts(tree) if isinstance(tree, ast.Subscript) and id(tree) in known else children(tree)
        for part in parts:
            plain = isinstance(part, ast.Name) and isinstance(tree, ast.Subscript) and id(tree) in known
            if not plain:
                check(part)

    for statement in node.body:
        check(statement)


def _check_sums(loop: ItemLoop, nest: NestItems) -> None:
    """Raises NotUniform where something is added up over items that is not made of their elements: no subscript would
    show, after a command, that the loop is one over items."""
    known = {id(touch.node) for touch in nest.touches if touch.item is not None}
    derived: set[str] = set()

    def made_of_items(*trees: ast.AST) -> bool:
        parts = [part for tree in trees for part in nodes(tree)]
        return any(id(part) in known or (isinstance(part, ast.Name) and part.id in derived) for part in parts)

    def check(body: Sequence[ast.stmt], guards: tuple[ast.expr, ...], last: bool) -> None:
        for statement in body:
            if isinstance(statement, ast.For):
                check(statement.body, guards, last)
            elif isinstance(statement, ast.If):
                check(statement.body, (*guards, statement.test), last)
                check(statement.orelse, (*guards, statement.test), last)
            elif isinstance(statement, ASSIGNMENTS) and statement.value is not None:
                if made_of_items(statement.value, *guards):
                    derived.update({name_of(target_of(statement))} - nest.buffers.keys())
                elif last and any(touch.statement is statement and touch.updates for touch in loop.mixing):
                    raise NotUniform(f"{unparse(statement)} is the same for each item")

    while True:  # a local may be made of another one that is assigned after it
        before = len(derived)
        check(loop.node.body, (), False)
        if len(derived) == before:
            break
    check(loop.node.body, (), True)


def _check_other_loops(body: Sequence[ast.stmt], nest: NestItems, items: int, over_items: Collection[str]) -> None:
    """Raises NotUniform where a loop may be over items and nothing shows it."""
    for statement in body:
        if isinstance(statement, ast.If):
            _check_other_loops(statement.body, nest, items, over_items)
            _check_other_loops(statement.orelse, nest, items, over_items)
        if not isinstance(statement, ast.For):
            continue
        loop = loop_of(statement)
        alike = id(statement) not in nest.loops and loop.extent == items
        if alike and (loop.var in over_items or not _is_subscript(statement, loop)):
            raise NotUniform(f"the loop over {loop.var} has as many iterations as the batch has items")
        _check_other_loops(statement.body, nest, items, over_items)


def _is_subscript(node: ast.For, loop: Loop) -> bool:
    return any(loop.var in names_in(part.slice) for part in nodes(node) if isinstance(part, ast.Subscript))
