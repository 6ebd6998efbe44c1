"""Random programs, made of choices that Hypothesis or a plain random generator takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from swirl.ir.affine import bounds
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, expr, parse_program
from tests.fuzz.chains import CHAIN, Chains
from tests.fuzz.expressions import KINDS, Expressions, Scope
from tests.fuzz.shapes import SHAPES, Shapes

T = TypeVar("T")
Pick = Callable[[Sequence[T]], T]
"""Takes one of a sequence; the first is the simplest."""

RANKS = {
    "x": 2,
    "w": 1,
    "y": 2,
    "z": 1,
    "u": 2,
    "s": 1,
    "f": 3,
    "g": 3,
    "m": 1,
    "d": 2,
    "e": 2,
    "h": 3,
    "n": 2,
    "q": 2,
    "p": 1,
    "b": 2,
    "c": 1,
    "a": 1,
    "o": 2,
}
TYPES = {
    "m": "int32",
    "n": "int32",
    "q": "int32",
    "p": "int32",
    "b": "bool",
    "c": "bool",
    "a": "float64",
    "o": "float64",
}
"""The types of the elements; the others have the program's floating-point type."""
PARAMETERS = ("w", "s", "f", "g")
"""The others are values: their first dimension is the batch, which stays as it is in memory."""
WRITTEN = ("y", "z", "u", "s", "g")
OTHERS = {"float32": WRITTEN, "int32": ("q", "p"), "bool": ("c",), "float64": ("o",)}
"""What is written, by type."""
BETWEEN = "d"
"""A buffer that only the program needs: its first nest sets it, the others read it."""
PRIVATE = (BETWEEN, "e", "h")
"""All buffers that only the program needs; the others are between the nests of chains."""
INDICES = "m"
"""An array of int32, which holds subscripts below :data:`INDEX_LIMIT`."""
INDEX_LIMIT = 3
LOCALS = ("t", "v", "t1", "l", "k", "inverse", "total", "j_outer", "s_lanes", "i")
"""Names of locals: few, so that most are used again; some are those of loops elsewhere, or that commands would take."""
EXTENTS = (3, 1, 2, 4, 5, 7, 8, 9)


class ProgramMaker:
    """Makes one program: 1 to 3 nests of 1 to 4 loops with strides, clipped bounds, reductions, conditions,
    locals."""

    def __init__(self, pick: Pick[Any]):
        self.pick = pick
        self.extents: dict[str, list[int]] = {name: [1] * rank for name, rank in RANKS.items()}
        self.expressions = Expressions(pick, self.element, {**OTHERS, "float32": (*WRITTEN, "x", BETWEEN)})
        self.chance = self.expressions.chance
        self.tangled = False
        """Whether locals are many: declared again under one name, deciding conditions, carried over iterations."""

    # Subscripts are made to lie inside: the buffers grow to fit.
    def subscript(self, scope: Scope) -> str:
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
                f"{INDICES}[{{v}}]",
            )
        )
        if form.startswith(f"{INDICES}["):
            self.extents[INDICES][0] = max(self.extents[INDICES][0], scope.ranges[var][1] + 1)
        return form.format(v=var, o=self.pick(names))

    def element(self, name: str, scope: Scope) -> str:
        indices = []
        for dim in range(RANKS[name]):
            text = self.subscript(scope)
            limits = (0, INDEX_LIMIT - 1) if text.startswith(f"{INDICES}[") else bounds(expr(text), scope.ranges)
            assert limits is not None
            if limits[0] < 0:
                text, limits = f"{text} + {-limits[0]}", (0, limits[1] - limits[0])
            self.extents[name][dim] = max(self.extents[name][dim], limits[1] + 1)
            indices.append(text)
        return f"{name}[{', '.join(indices)}]"

    def assignment(self, scope: Scope) -> str:
        kind = self.chance(4, 4, 1, 1, 1)
        make = self.expressions
        dtype = self.pick(make.types) if make.mixed and self.chance(1, 1) else "float32"
        names = [*OTHERS[dtype], *OTHERS[dtype], *([BETWEEN] if dtype == "float32" else [])]
        target = self.element(self.pick(names), scope)
        scalars = scope.locals_of(dtype)
        if scalars and self.chance(2, 1):
            target = self.pick(scalars)
        if dtype == "bool":
            return f"{target} = {make.of(dtype, scope)}"
        if kind == 0:
            return f"{target} = {make.of(dtype, scope)}"
        if kind == 1:
            return f"{target} += {make.of(dtype, scope)}"
        if kind == 2:
            call = self.pick(("max", "min"))
            return f"{target} = {call}({target}, {make.of(dtype, scope)})"
        if kind == 3:
            return f"{target} -= {make.of(dtype, scope)}"
        return f"{target} *= {make.input(scope, dtype)}"

    def fresh(self, scope: Scope) -> str | None:
        """A name for a local that nothing has here; most are used elsewhere too."""
        free = [name for name in LOCALS if name not in scope.ranges and name not in scope.scalars]
        return self.pick(free[:3] if self.tangled else free) if free else None

    def declaration(self, scope: Scope, indent: str, dtype: str | None = None) -> list[str]:
        """A local of some type, or nothing where no name is free."""
        name = self.fresh(scope)
        if name is None:
            return []
        make = self.expressions
        dtype = dtype or (self.pick(make.types) if make.mixed and self.chance(1, 1) else "float32")
        line = f"{indent}{name}: {dtype} = {make.of(dtype, scope)}"
        scope.scalars[name] = dtype
        return [line]

    def carried(self, scope: Scope, indent: str) -> list[str]:
        """A local that a loop carries and that decides what the loop does; then its value is stored."""
        lines = self.declaration(scope, indent, self.pick(self.expressions.types) if self.chance(3, 1) else "float32")
        var = next((name for name in "lkji" if name not in scope.ranges and name not in scope.scalars), None)
        if not lines or var is None:
            return lines
        t = next(reversed(scope.scalars))
        inside = scope.inside(var, 0, 3, 4)
        e, c = self.expressions.input(inside), self.expressions.simple(inside, True)
        forms = [
            [f"if {t} < {e}:", f"    {t} += {e}"],
            [f"{t} = max({t} + {e}, 0.0)"],
            [f"{t} = {t} * 0.5 + {e}"],
            [f"if {var} < {t}:", f"    {self.assignment(inside)}", f"{t} += {e}"],
            [f"if {c}:", f"    {t} = {e}"],
            [f"if {t} != {t} or {c}:", f"    {t} = 0.0", f"{t} += {e}"],
        ]
        lines += [f"{indent}for {var} in range(4):", *(f"{indent}    {line}" for line in self.pick(forms))]
        return [*lines, f"{indent}{self.element(self.pick(WRITTEN), scope)} {self.pick(('=', '+='))} {t}"]

    def statements(self, scope: Scope, indent: str, depth: int) -> list[str]:
        lines: list[str] = []
        scope = scope.copy()
        condition = self.expressions.condition
        for _ in range(2 + self.chance(2, 1) if self.tangled else 1 + self.chance(3, 2, 1)):
            kind = self.chance(3, 3, 4, 4) if self.tangled else self.chance(5, 1, 2, 1)
            if kind >= 2 and depth < 4:
                lines += self.declaration(scope, indent) if kind == 2 else self.carried(scope, indent)
            elif kind == 1:
                inner = scope.copy()
                lines.append(f"{indent}if {condition(scope, True)}:")
                lines += self.declaration(inner, indent + "    ") if self.tangled or self.chance(3, 1) else []
                lines += [f"{indent}    {self.assignment(inner)}" for _ in range(1 + self.chance(3, 1))]
                if self.chance(2, 1):
                    inner = scope.copy()
                    lines.append(f"{indent}else:")
                    lines += self.declaration(inner, indent + "    ") if self.tangled or self.chance(3, 1) else []
                    lines.append(f"{indent}    {self.assignment(inner)}")
            else:
                lines.append(indent + self.assignment(scope))
            if depth < 4 and scope.work < 300 and self.chance(depth + 1, 2 if depth < 3 else 1):
                lines += self.loop(scope, indent, depth)
        return lines or [indent + self.assignment(scope)]

    def loop(self, scope: Scope, indent: str, depth: int) -> list[str]:
        free = [name for name in ("i", "j", "k", "l", "t") if name not in scope.ranges and name not in scope.scalars]
        if not free:
            return []
        var = free[0] if self.chance(4, 1) == 0 else free[-1]
        head, low, high, extent = self.bounds(scope)
        inside = scope.inside(var, low, high, extent)
        lines = [f"{indent}for {var} in range({head}):"]
        if depth < 3 and inside.work < 300 and self.chance(1, 2):
            inner = self.loop(inside, indent + "    ", depth + 1)
            if inner:
                return lines + inner
        return lines + self.statements(inside, indent + "    ", depth + 1)

    def bounds(self, scope: Scope) -> tuple[str, int, int, int]:
        """The loop's arguments, its least and greatest value, and about how often it runs."""
        extent = self.pick(EXTENTS)
        names = list(scope.ranges)
        kind = self.chance(12, 1, 1, 2 if names else 0, 1 if names else 0, 1, 1 if names else 0)
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
        if kind == 6:  # the other triangles, and a band
            heads = {f"{outer}, {high + 1}": high, f"{high + 1} - {outer}": high, f"{outer}, {outer} + 3": high + 2}
            head = self.pick(list(heads))
            return head, 0, heads[head], 3
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
        kinds = KINDS[self.pick(("floats", "floats", "mixed", "mixed", "all types"))]
        own = len(lines)
        for _ in range(self.pick((0, 1, 0, 1)) if shape else 1 + self.chance(2, 2, 1)):
            self.expressions.types = kinds
            self.tangled = self.chance(2, 1) == 1
            lines += self.known() if not self.tangled and self.chance(1, 1) else self.loop(Scope(), "", 0)
        alone = shape == CHAIN and len(lines) == own  # it sets them itself
        if not alone and any(f"{BETWEEN}[" in line for line in lines):
            lines = [*self.between(), *lines]
        dtype = self.pick(("float32",) * 9 + ("float64",)) if len(kinds) == 1 else "float32"
        roles = dict.fromkeys(PARAMETERS, "param") | dict.fromkeys(PRIVATE, "temporary")
        buffers = {
            name: Buffer(f"net.{name}", tuple(extents), TYPES.get(name, dtype), roles.get(name, "value"))
            for name, extents in self.extents.items()
        }
        return parse_program("\n".join(lines).replace("float32", dtype), buffers)

    def between(self) -> list[str]:
        """A nest that sets all of the buffer that only the program needs: by a formula, or by a sum."""
        rows, columns = self.extents[BETWEEN]
        scope = Scope().inside("i", 0, rows - 1, rows).inside("j", 0, columns - 1, columns)
        self.expressions.types = KINDS["floats"]
        lines = [f"for i in range({rows}):", f"    for j in range({columns}):"]
        value, other = self.expressions.input(scope), self.pick(("1.0", self.expressions.input(scope)))
        lines.append(f"        {BETWEEN}[i, j] = {value} + {other}")
        if self.chance(2, 1):
            lines += ["        for k in range(3):", f"            {BETWEEN}[i, j] += {self.expressions.input(scope)}"]
        return lines
