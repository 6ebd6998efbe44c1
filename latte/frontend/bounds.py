"""Whether a body stays inside of the arrays that it reads and writes."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from latte.frontend.scope import BodyScope
from swirl.analysis.accesses import Access
from swirl.analysis.dependences import NotProved, instance
from swirl.analysis.statements import Statement, statements
from swirl.ir.affine import bounds
from swirl.ir.buffers import Buffer
from swirl.ir.printing import unparse
from swirl.ir.trees import names_in


def check_bounds(scope: BodyScope, body: Sequence[ast.stmt], buffers: Mapping[str, Buffer]) -> None:
    """Refuse accesses that leave an array in an iteration that runs: generated code would read or write anywhere.

    Conditions on loop variables count, around statements and in ``… if … else …``; conditions on data may hold or not.
    Subscripts that are data have ranges of their own (:mod:`latte.model.ranges`).

    Raises:
        BodyError: with the line, the access, and the least iteration.
    """
    for statement in statements(list(body)):
        for access in statement.accesses:
            if access.name in buffers:
                _check(scope, statement, access, buffers[access.name].shape)


def _check(scope: BodyScope, statement: Statement, access: Access, shape: tuple[int, ...]) -> None:
    indices = access.indices[len(access.indices) - len(shape) :]
    templates = statement.subscripts(access)[len(access.indices) - len(shape) :]
    for index, template, extent in zip(indices, templates, shape, strict=True):
        reach = bounds(index, statement.ranges)
        if template is None or (reach is not None and reach[0] >= 0 and reach[1] < extent):
            continue
        conditions = [f"(({template}) < 0 or ({template}) >= {extent})", *statement.conditions_of(access)]
        try:
            found = instance(statement, conditions)
        except NotProved:
            continue
        if found is not None:
            used = names_in(index)
            where = ", ".join(f"{name} = {value}" for name, value in found.items() if name in used)
            scope.fail(
                statement.node,
                f"{access.text}: {unparse(index)} is outside of 0 … {extent - 1}" + (f" for {where}" if where else ""),
                "leave it out by a condition on loop variables: if …:, or … if … else 0.0",
            )
