"""Whether arithmetic on whole numbers stays within the 32 bits that it is computed in.

Loop variables have ranges, and so may data: those that declare ``below=``, arrays of the surrounding Python,
remainders. What is computed from these alone has a range, which this follows through locals, fields, conditions and
loops. Where it passes 32 bits, the body is refused: it would wrap. What has no known range is left alone; it wraps as
NumPy's does.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_

from latte.frontend.locals import first_use, written
from latte.frontend.number_ranges import ANY, TRUTH, Range, combined, compared, of_call
from latte.frontend.scope import BodyScope
from swirl.analysis.integers import LARGEST
from swirl.ir.affine import loop_range
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Loop, constant, loop_of, names_in, subscripts
from swirl.ir.printing import unparse
from swirl.ir.trees import name_of, nodes, targets_in

PASSES = 100
"""How often a loop is followed that changes what its next iteration reads: what grows by a quarter each time is out of
32 bits after fewer."""
MOST = 10_000
"""Statements that are looked at in all; a body that needs more is left alone."""

Values = dict[str, Range]
"""Name of a local or of an array, or text of an element that a condition has compared → what it may be."""
Step = dict[str, tuple[float, float]]
"""Name → what an iteration adds to the least and to the greatest value."""


class _GivenUp(Exception):
    """The body takes too long to follow."""


class _Wraps(Exception):
    """An operation that may pass 32 bits: itself, where it is written, and its range."""

    def __init__(self, node: ast.expr, place: ast.AST, found: Range):
        super().__init__()
        self.node, self.place, self.found = node, place, found


def check_whole_numbers(
    scope: BodyScope, blocks: Sequence[list[ast.stmt]], buffers: Mapping[str, Buffer], computed: Collection[str]
) -> None:
    """Refuse arithmetic on whole numbers whose range passes 32 bits.

    Args:
        scope: of the body.
        blocks: its statements, with declared locals and casts.
        buffers: that they touch.
        computed: fields that the phase computes from nothing.

    Raises:
        BodyError: with the line and the range.
    """
    follower = _Follower(scope, buffers, computed)
    try:
        follower.block([statement for block in blocks for statement in block], dict(follower.start))
    except _GivenUp:
        return
    except _Wraps as wraps:
        limit = LARGEST if wraps.found.high > LARGEST else -LARGEST - 1
        scope.fail(
            wraps.place,
            f"{written(wraps.node)} may be {wraps.found}, which passes {limit:,}, and whole numbers have 32 bits",
            "float32(…) around a part of it computes it in floating point; % or min(…, …) before it, or a smaller "
            "below=, keeps it small",
        )


class _Follower:
    """Follows the ranges of whole numbers through statements."""

    def __init__(self, scope: BodyScope, buffers: Mapping[str, Buffer], computed: Collection[str]):
        self.scope, self.buffers, self.computed, self.left = scope, buffers, computed, MOST
        self.loops: dict[str, tuple[int, int]] = {}

    @cached_property
    def start(self) -> Values:
        """What arrays hold before the first statement."""
        found: Values = {}
        for name, buffer in self.buffers.items():
            if buffer.dtype == "bool":
                found[name] = TRUTH
            elif buffer.dtype != "int32":
                continue
            elif (below := self.scope.below.get(name)) is not None:
                found[name] = Range(0, below - 1)
            elif buffer.role == "constant" and name in self.scope.ensemble.declared_fields():
                values = self.scope.ensemble.initial(name, self.scope.batch_size)
                found[name] = Range(int(values.min()), int(values.max()))
            elif buffer.role == "temporary" or name in self.computed:
                found[name] = Range(0, 0)
        return found

    # --- statements -----------------------------------------------------------------------------------------
    def block(self, body: Sequence[ast.stmt], values: Values) -> None:
        """Follow statements; ``values`` are those before, and become those after."""
        for node in body:
            self.left -= 1
            if self.left < 0:
                raise _GivenUp
            self._statement(node, values)

    def _statement(self, node: ast.stmt, values: Values) -> None:
        match node:
            case ast.AnnAssign(ast.Name(name), _, value):
                found = ANY if value is None else self.of(value, values, node)
                _forget(name, values)
                values[name] = found
            case ast.Assign([target], value):
                self._store(target, self.of(value, values, node), values, node)
            case ast.AugAssign(target, operation, value):
                whole = ast.BinOp(target, operation, value)
                found = combined(operation, self._read(target, values), self.of(value, values, node))
                self._store(target, _checked(whole, found, node), values, node)
            case ast.For():
                self._loop(node, values)
            case ast.If(test, body, orelse):
                self.of(test, values, node)
                sides = []
                for holds, side in ((True, body), (False, orelse)):
                    if (here := self._where(test, holds, values)) is not None:
                        self.block(side, here)
                        sides.append(here)
                for name in values:
                    values[name] = reduce(or_, (here.get(name, ANY) for here in sides))

    def _store(self, target: ast.expr, found: Range, values: Values, place: ast.AST) -> None:
        name = name_of(target)
        _forget(name, values)
        if isinstance(target, ast.Name):
            values[name] = found
            return
        for index in subscripts(target):  # type: ignore[arg-type]
            self.of(index, values, place)
        buffer = self.buffers[name]
        if name in values and buffer.dtype == "int32" and name not in self.scope.below:
            is_local = buffer.role == "temporary" and buffer.shape == (1,)
            values[name] = found if is_local else values[name] | found

    # --- loops ----------------------------------------------------------------------------------------------
    def _loop(self, node: ast.For, values: Values) -> None:
        loop, outer = loop_of(node), self.loops
        self.loops = {**outer, **loop_range(loop, outer)}
        try:
            self._iterations(node, loop, values)
        finally:
            self.loops = outer

    def _iterations(self, node: ast.For, loop: Loop, values: Values) -> None:
        found = self.loops.get(loop.var)
        times = None if found is None else (found[1] - found[0]) // abs(loop.step) + 1
        own, entry = self._of_one_iteration(node, loop.var), dict(values)
        before, last, done = dict(entry), None, 0
        while done < PASSES and (times is None or done < times):
            now = dict(before)
            self.block(node.body, now)
            for name in values:
                values[name] |= now.get(name, ANY)
            now = {name: entry[name] if name in own else now.get(name, ANY) for name in entry}
            if now == before:
                return
            done += 1
            step = _step(before, now)
            steady = step is not None and step == last and times is not None and times > done
            if steady and self._goes_on(node, now, step, times - done, values):  # type: ignore[arg-type, operator]
                return
            before, last = now, step
        if times is None or done < times:  # it is not followed to its end
            for name in _changed(node) & values.keys() - self.scope.below.keys():
                values[name] = ANY
            self.block(node.body, dict(values))

    def _goes_on(self, node: ast.For, now: Values, step: Step, more: int, values: Values) -> bool:
        """Whether the iterations that are left add what the last two did; the last one is followed then.

        Raises:
            _Wraps: an operation passes 32 bits on the way there.
        """
        wraps: _Wraps | None = None
        while more > 0:
            before = {name: found.shifted(step[name], more - 1) for name, found in now.items()}
            after = dict(before)
            try:
                self.block(node.body, after)
            except _Wraps as error:
                wraps, more = error, more // 2
                continue
            reached = _step(before, after)
            if reached is None or any(reached[name] != each for name, each in step.items() if any(each)):
                return False  # it stops to grow: by a condition, a remainder, min
            break
        if wraps is not None:
            raise wraps
        for name in values:
            values[name] |= after.get(name, ANY)
        return True

    def _of_one_iteration(self, node: ast.For, var: str) -> set[str]:
        """What an iteration of a loop does not pass on to the next: locals that it assigns before it reads them, and
        arrays of which it touches elements of its own."""
        changed = _changed(node)
        elements = [part for part in nodes(node) if isinstance(part, ast.Subscript) and name_of(part) in changed]
        shared = {name_of(part) for part in elements if not any(var in names_in(i) for i in subscripts(part))}
        locals_ = {name for name in changed - self.buffers.keys() if first_use(node.body, name) == "store"}
        return locals_ | (changed & self.buffers.keys()) - shared

    # --- expressions ----------------------------------------------------------------------------------------
    def of(self, node: ast.expr, values: Values, place: ast.AST) -> Range:
        """What an expression may be; of floats it is not known.

        Raises:
            _Wraps: it passes 32 bits, or a part of it.
        """
        place = node if hasattr(node, "lineno") else place
        if (number := constant(node)) is not None:
            return Range(number, number)
        match node:
            case ast.Constant(bool(truth)):
                return Range(int(truth), int(truth))
            case ast.Name():
                return self._read(node, values)
            case ast.Subscript():
                for index in subscripts(node):
                    self.of(index, values, place)
                return self._read(node, values)
            case ast.UnaryOp(ast.USub(), operand):
                return _checked(node, -self.of(operand, values, place), place)
            case ast.BinOp(left, operation, right):
                found = combined(operation, self.of(left, values, place), self.of(right, values, place))
                return _checked(node, found, place)
            case ast.BoolOp(operation, parts):
                here: Values | None = values
                for part in parts:
                    if here is not None:
                        self.of(part, here, place)
                        here = self._where(part, isinstance(operation, ast.And), here)
                return TRUTH
            case ast.IfExp(test, body, orelse):
                self.of(test, values, place)
                chosen = [
                    self.of(side, here, place)
                    for holds, side in ((True, body), (False, orelse))
                    if (here := self._where(test, holds, values)) is not None
                ]
                return reduce(or_, chosen)
            case ast.Compare(left, _, rights):
                for side in (left, *rights):
                    self.of(side, values, place)
                return TRUTH
            case ast.UnaryOp(_, operand):
                self.of(operand, values, place)
                return TRUTH
            case ast.Call(ast.Name(name), arguments):
                found = of_call(name, [self.of(argument, values, place) for argument in arguments])
                return _checked(node, found, place)
        return ANY

    def _read(self, node: ast.expr, values: Values) -> Range:
        """What an element or a local may be."""
        name = name_of(node)
        if name in self.loops:
            return Range(*self.loops[name])
        found = values.get(name, ANY)
        return found.both(values.get(unparse(node), ANY)) or found if isinstance(node, ast.Subscript) else found

    def _where(self, test: ast.expr, holds: bool, values: Values) -> Values | None:
        """``values`` with what a condition says of the elements and locals that it compares; None where it is certainly
        otherwise."""
        values = dict(values)
        match test:
            case ast.UnaryOp(ast.Not(), operand):
                return self._where(operand, not holds, values)
            case ast.BoolOp(operation, parts) if isinstance(operation, ast.And) == holds:
                for part in parts:
                    found = self._where(part, holds, values)
                    if found is None:
                        return None
                    values = found
            case ast.Compare(left, [operation], [right]):
                try:
                    one, two = self.of(left, values, test), self.of(right, values, test)
                except _Wraps:  # which is told where the condition is
                    return values
                for side, own, other in ((left, one, two), (right, two, one)):
                    narrowed = own.both(compared(operation, holds, other, swapped=side is right))
                    if narrowed is None:
                        return None
                    if isinstance(side, (ast.Name, ast.Subscript)) and name_of(side) not in self.loops:
                        values[unparse(side)] = narrowed
        return values


def _checked(node: ast.expr, found: Range, place: ast.AST) -> Range:
    if not found.fits:
        raise _Wraps(node, place, found)
    return found


def _forget(name: str, values: Values) -> None:
    """What conditions have said of elements does not hold where a name in them has changed."""
    for text in [text for text in values if "[" in text and name in text]:
        del values[text]


def _changed(node: ast.stmt) -> set[str]:
    """The locals and arrays that a statement, or one inside, stores to."""
    return {name_of(target) for target in targets_in([node])}


def _step(before: Values, after: Values) -> Step | None:
    """What an iteration has added; None where an end is known before it or after it only."""
    found = {}
    for name, one in before.items():
        step = after.get(name, ANY).beyond(one)
        if step is None:
            return None
        found[name] = step
    return found
