"""Random programs, made of choices that Hypothesis or a plain random generator takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from swirl.ir.affine import bounds
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, expr, parse_program
from tests.fuzz.chains import CHAIN, Chains
from tests.fuzz.shapes import SHAPES, Shapes

T = TypeVar("T")
Pick = Callable[[Sequence[T]], T]
"""Takes one of a sequence; the first is the simplest."""

RANKS = {"x": 2, "w": 1, "y": 2, "z": 1, "u": 2, "s": 1, "f": 3, "g": 3, "m": 1, "d": 2, "e": 2, "h": 3}
READ_ONLY = ("x", "w", "f")
PARAMETERS = ("w", "s", "f", "g")
"""The others are values: their first dimension is the batch, which stays as it is in memory."""
WRITTEN = ("y", "z", "u", "s", "g")
BETWEEN = "d"
"""A buffer that the program alone needs: its first nest sets it, the others read it."""
PRIVATE = (BETWEEN, "e", "h")
"""All that the program alone needs; the others are between the nests of chains."""
INDICES = "m"
"""An array of int32, which holds subscripts below :data:`INDEX_LIMIT`."""
INDEX_LIMIT = 3
EXTENTS = (3, 1, 2, 4, 5, 7, 8, 9)


@dataclass
class _Scope:
    """What is visible at a place: loop variables with their ranges, scalars, and the product of the
    extents."""

    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    scalars: list[str] = field(default_factory=list)
    work: int = 1

    def inside(self, var: str, low: int, high: int, extent: int) -> _Scope:
        return _Scope({**self.ranges, var: (low, high)}, list(self.scalars), self.work * max(1, extent))


class ProgramMaker:
    """Makes one program: 1 to 3 nests of 1 to 4 loops with strides, clipped bounds, reductions, conditions,
    locals."""

    def __init__(self, pick: Pick[Any]):
        self.pick = pick
        self.extents: dict[str, list[int]] = {name: [1] * rank for name, rank in RANKS.items()}
        self.locals = 0

    def chance(self, *weights: int) -> int:
        """An index, as likely as its weight."""
        return self.pick([index for index, weight in enumerate(weights) for _ in range(weight)])

    # Subscripts are made to lie inside: the buffers grow to fit.
    def subscript(self, scope: _Scope) -> str:
        names = list(scope.ranges)
        if not names or self.chance(9, 1):
            return str(self.pick((0, 1)))
        var = self.pick(names)
        form = self.pick(
            (
                "{v}",
                "{v}",
                "{v}",
                "{v}",
                "{v} + 1",
                "{v} + {o}",
                "2 * {v}",
                "{v} + 2 * {o}",
                "{v} // 2",
                "{v} - 1",
                "max(0, {v} - 1)",
                "3 - {v}",
                "{v} % 3",
            )
        )
        return form.format(v=var, o=self.pick(names))

    def element(self, name: str, scope: _Scope) -> str:
        indices = []
        for dim in range(RANKS[name]):
            text = self.subscript(scope)
            limits = bounds(expr(text), scope.ranges)
            assert limits is not None
            if limits[0] < 0:
                text, limits = f"{text} + {-limits[0]}", (0, limits[1] - limits[0])
            self.extents[name][dim] = max(self.extents[name][dim], limits[1] + 1)
            indices.append(text)
        return f"{name}[{', '.join(indices)}]"

    def input(self, scope: _Scope) -> str:
        return self.element(self.pick(READ_ONLY), scope)

    def value(self, scope: _Scope) -> str:
        if scope.scalars and self.chance(1, 1):
            return self.pick(scope.scalars)
        return self.element(self.pick((*WRITTEN, "x", BETWEEN)), scope)

    def expression(self, scope: _Scope) -> str:
        form = self.pick(
            (
                "{i}",
                "{v}",
                "{v} + {i}",
                "{v} * {i}",
                "{i} * {j} + {v}",
                "({v} - {i}) / 4.0",
                "{v} / sqrt({i} + 0.5)",
                "{i} / sqrt({j})",
                "max({v}, {i})",
                "({v} if {c} else {i})",
                "0.0",
                "{v} - {v} * {i}",
                "exp({i}) + {v}",
            )
        )
        return form.format(v=self.value(scope), i=self.input(scope), j=self.input(scope), c=self.condition(scope, True))

    def condition(self, scope: _Scope, data: bool) -> str:
        names = list(scope.ranges)
        if names and self.chance(3, 1) == 0:
            one, two = self.pick(names), self.pick(names)
            return self.pick(
                (
                    f"{one} < 2",
                    f"{one} > 0",
                    f"{one} == 1",
                    f"{one} + {two} < 4",
                    f"1 <= {one} and {two} < 3",
                    f"{one} % 2 == 0",
                )
            )
        if not data:
            return "1 > 0"
        if scope.scalars and self.chance(1, 1):
            return f"{self.pick(scope.scalars)} > {self.pick((*scope.scalars, self.input(scope)))}"
        return f"{self.input(scope)} > 0.0"

    def target(self, scope: _Scope) -> str:
        return self.element(self.pick((*WRITTEN, *WRITTEN, BETWEEN)), scope)

    def assignment(self, scope: _Scope) -> str:
        kind = self.chance(4, 4, 1, 1, 1)
        target = self.target(scope)
        if scope.scalars and self.chance(2, 1):
            target = self.pick(scope.scalars)
        if kind == 0:
            return f"{target} = {self.expression(scope)}"
        if kind == 1:
            return f"{target} += {self.expression(scope)}"
        if kind == 2:
            call = self.pick(("max", "min"))
            return f"{target} = {call}({target}, {self.expression(scope)})"
        if kind == 3:
            return f"{target} -= {self.expression(scope)}"
        return f"{target} *= {self.input(scope)}"

    def statements(self, scope: _Scope, indent: str, depth: int) -> list[str]:
        lines: list[str] = []
        scope = _Scope(dict(scope.ranges), list(scope.scalars), scope.work)
        for _ in range(1 + self.chance(3, 2, 1)):
            kind = self.chance(5, 1, 2)
            if kind == 2 and depth < 4:
                name = f"t{self.locals}"
                self.locals += 1
                lines.append(f"{indent}{name}: float32 = {self.expression(scope)}")
                scope.scalars.append(name)
            elif kind == 1:
                lines.append(f"{indent}if {self.condition(scope, True)}:")
                lines += [f"{indent}    {self.assignment(scope)}" for _ in range(1 + self.chance(3, 1))]
                if self.chance(2, 1):
                    lines += [f"{indent}else:", f"{indent}    {self.assignment(scope)}"]
            else:
                lines.append(indent + self.assignment(scope))
            if depth < 4 and scope.work < 300 and self.chance(depth + 1, 2 if depth < 3 else 1):
                lines += self.loop(scope, indent, depth)
        return lines

    def loop(self, scope: _Scope, indent: str, depth: int) -> list[str]:
        var = next(name for name in "ijkl" if name not in scope.ranges)
        if self.chance(4, 1):
            var = next(name for name in "lkji" if name not in scope.ranges)
        head, low, high, extent = self.bounds(scope)
        inside = scope.inside(var, low, high, extent)
        lines = [f"{indent}for {var} in range({head}):"]
        if depth < 3 and inside.work < 300 and self.chance(1, 2):
            return lines + self.loop(inside, indent + "    ", depth + 1)
        return lines + self.statements(inside, indent + "    ", depth + 1)

    def bounds(self, scope: _Scope) -> tuple[str, int, int, int]:
        """The loop's arguments, its least and greatest value, and about how often it runs."""
        extent = self.pick(EXTENTS)
        names = list(scope.ranges)
        kind = self.chance(12, 1, 1, 2 if names else 0, 1 if names else 0, 1)
        if kind == 0:
            return str(extent), 0, extent - 1, extent
        if kind == 1:
            return f"1, {extent + 1}", 1, extent, extent
        if kind == 2:
            return f"0, {extent}, 2", 0, extent - 1, extent
        if kind == 5:
            return f"{extent - 1}, -1, -1", 0, extent - 1, extent
        outer = self.pick(names)
        high = scope.ranges[outer][1]
        if kind == 3:  # a window that is clipped at the borders
            return f"max(0, 1 - {outer}), min(3, {high + 2} - {outer})", 0, 2, 3
        return f"{outer} + 1", 0, high, high + 1

    def known(self, shape: str | None = None) -> list[str]:
        """Nests of a known shape, or any: what layers are made of."""
        shape = shape or self.pick((*SHAPES, CHAIN))
        lines, extents = Chains(self.pick).make() if shape == CHAIN else Shapes(self.pick).make(shape)
        for name, own in extents.items():
            self.extents[name] = [max(pair) for pair in zip(self.extents[name], own, strict=True)]
        return lines

    def program(self, shape: str | None = None) -> Program:
        """A program; where a shape is given, mostly nests of that alone."""
        lines: list[str] = self.known(shape) if shape else []
        own = len(lines)
        for _ in range(self.pick((0, 0, 0, 1)) if shape else 1 + self.chance(2, 2, 1)):
            lines += self.loop(_Scope(), "", 0) if self.chance(1, 1) == 0 else self.known()
        alone = shape == CHAIN and len(lines) == own  # it sets them itself
        if not alone and any(f"{BETWEEN}[" in line for line in lines):
            lines = [*self.between(), *lines]
        dtype = self.pick(("float32",) * 9 + ("float64",))
        roles = dict.fromkeys(PARAMETERS, "param") | dict.fromkeys(PRIVATE, "temporary")
        buffers = {
            name: Buffer(
                f"net.{name}", tuple(extents), "int32" if name == INDICES else dtype, roles.get(name, "value")
            )
            for name, extents in self.extents.items()
        }
        return parse_program("\n".join(lines).replace("float32", dtype), buffers)

    def between(self) -> list[str]:
        """A nest that sets the buffer that the program alone needs, whole: by a formula, or by a sum."""
        rows, columns = self.extents[BETWEEN]
        scope = _Scope().inside("i", 0, rows - 1, rows).inside("j", 0, columns - 1, columns)
        lines = [f"for i in range({rows}):", f"    for j in range({columns}):"]
        lines.append(f"        {BETWEEN}[i, j] = {self.input(scope)} + {self.pick(('1.0', self.input(scope)))}")
        if self.chance(2, 1):
            lines += ["        for k in range(3):", f"            {BETWEEN}[i, j] += {self.input(scope)}"]
        return lines
