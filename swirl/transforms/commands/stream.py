"""stream: stores past the caches."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace

from swirl.analysis.accesses import Access
from swirl.analysis.dependences import Conflict, NotProved, before, find
from swirl.analysis.statements import Statement, statements_of
from swirl.analysis.strides import memory_stride
from swirl.errors import CommandError
from swirl.ir.affine import ranges_at
from swirl.ir.hints import stored_value
from swirl.ir.hints import stream as past_caches
from swirl.ir.nest import Nest, Program, kind_of, subscripts, variable_of
from swirl.ir.paths import at, edit_at, enclosing
from swirl.transforms.arguments import BufferName, LoopName, NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.checks.ways_out import step, tried
from swirl.transforms.rewrites.sites import find_loops

NOTE = "asked to be stored past the caches"


@command()
def stream(
    program: Program, buffer: BufferName, loop_var: LoopName | None = None, *, nest: NestName | None = None
) -> Program:
    """Store a buffer past the caches (non-temporal stores): its lines are not read before they are written, and push
    nothing out.

    rewrite:
        for w in range(0, 64, 16):              for w in range(0, 64, 16):
            for v in vector(16):        →           for v in vector(16):
                y[w + v] = a * x[w + v]                 y[w + v] = stream(a * x[w + v])

    Give it after ``vectorize``. Whole registers at aligned addresses are stored this way; where alignment is not known
    at compile time, it is tested at run time; everything else (a masked tail, another target) is stored as usual.

    Args:
        buffer: name of a field (``value``, ``grad_inputs``, …); float or int32.
        loop_var: only stores in this loop; by default all of them.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such buffer or loop, truth values, or nothing there stores the buffer.
        Refused: the store is an update, is not made by a vector loop over neighbouring elements, is under a condition
            on lanes, or the nest touches the element again (it would have to come back from memory).

    Source: the thesis' machine-dependent part; Intel's optimisation manual, section on non-temporal stores.
    """
    if program.buffers[buffer].dtype == "bool":
        raise CommandError(f"{buffer} holds truth values, which have no non-temporal stores")
    sites = find_loops(program, loop_var, nest) if loop_var is not None else None
    result, count = program, 0
    for index, target in enumerate(program.nests):
        if nest is not None and nest not in (index, target.label):
            continue
        known = statements_of(target)
        body = target.body
        for statement in known:
            inside = sites is None or any(
                site.nest == index and statement.path[: len(site.path)] == site.path for site in sites
            )
            written = [access for access in statement.accesses if access.name == buffer and access.kind != "read"]
            if not inside or not written:
                continue
            _check_store(program, target, statement, written[0])
            _check_last(program, target, known, statement, written[0])
            body = edit_at(body, statement.path, _streamed)
            count += 1
        result = result.with_nest(index, target.with_body(body))
    if not count:
        where = f"the loop {loop_var}" if loop_var is not None else program.name
        raise CommandError(f"nothing in {where} stores {buffer}", way_out=f"it stores {', '.join(_stored(program))}")
    return checked(program, result)


def _streamed(node: ast.stmt) -> list[ast.stmt]:
    assert isinstance(node, ast.Assign)
    return [ast.Assign(node.targets, past_caches(stored_value(node.value)))]


def _stored(program: Program) -> list[str]:
    """Names of the buffers that the program writes."""
    found = {
        access.name: True
        for nest in program.nests
        for statement in statements_of(nest)
        for access in statement.accesses
        if access.kind != "read" and access.name in program.buffers
    }
    return list(found)


def _check_store(program: Program, nest: Nest, statement: Statement, access: Access) -> None:
    """Raises Refused where the statement is not a plain store of a vector loop to neighbouring elements."""
    if access.kind != "write" or not isinstance(statement.node, ast.Assign):
        raise refuse(
            f"{access.text} is updated: it is read before it is written",
            nest,
            statement.path,
            NOTE,
            way_out=_scalar_replaced(program, access.name),
        )
    lanes = next(
        (
            node
            for node in enclosing(nest.body, statement.path)
            if isinstance(node, ast.For) and kind_of(node) == "vector"
        ),
        None,
    )
    if lanes is None:
        raise refuse(
            f"{access.text} is stored one element at a time",
            nest,
            statement.path,
            NOTE,
            way_out=_lanes(program, statement, access.name),
        )
    lane = variable_of(lanes)
    if isinstance(at(nest.body, statement.path[:-1]), ast.If):
        raise refuse(
            f"{access.text} is stored by some lanes only",
            nest,
            statement.path,
            NOTE,
            way_out="store both cases by a select",
        )
    target = statement.node.targets[0]
    assert isinstance(target, ast.Subscript)
    ranges = ranges_at(nest.body, statement.path)
    if memory_stride(program.buffers[access.name], subscripts(target), lane, ranges) != 1:
        raise refuse(
            f"lanes of {access.text} are not neighbours in memory",
            nest,
            statement.path,
            NOTE,
            way_out="the lanes must be those of the dimension that is innermost in memory",
        )


def _lanes(program: Program, statement: Statement, buffer: str) -> Callable[[], str | None]:
    """The loops around a statement that can become lanes which store neighbours."""
    stored = step("stream", buffer)
    around = [loop.var for loop in statement.loops[::-1] if loop.kind == "range"]
    return tried(program, *((step("vectorize", var), stored) for var in around))


def _scalar_replaced(program: Program, buffer: str) -> Callable[[], str | None]:
    """scalar_replace, if it leaves one store of the final value."""
    return tried(program, (step("scalar_replace", buffer), step("stream", buffer)))


def _check_last(program: Program, nest: Nest, known: Sequence[Statement], statement: Statement, access: Access) -> None:
    """Raises Refused where the nest reads or writes the element again, after the store."""
    store = replace(statement, accesses=(access,))
    for other in known:
        again = tuple(a for a in other.accesses if a.name == access.name)
        if not again:
            continue
        try:
            conflict = _touched_after(store, replace(other, accesses=again))
        except NotProved:
            raise refuse(
                "not proved within the time allowed that the element is not touched again", nest, statement.path, NOTE
            ) from None
        if conflict is not None:
            raise refuse(
                f"{access.text} is touched again: it would have to come back from memory",
                nest,
                statement.path,
                NOTE,
                witness=conflict,
                way_out=_scalar_replaced(program, access.name),
            )


def _touched_after(store: Statement, other: Statement) -> Conflict | None:
    return find(store, other, [before(store, other)], reductions=True)
