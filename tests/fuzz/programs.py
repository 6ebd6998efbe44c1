"""Random programs and random commands, made of choices that Hypothesis or a plain random generator takes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from swirl.ir.affine import bounds
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, expr, loop_of, loops, parse_program, walk
from swirl.transforms.base import loop_names
from swirl.transforms.parts import combination

T = TypeVar("T")
Pick = Callable[[Sequence[T]], T]
"""Takes one of a sequence; the first is the simplest."""

RANKS = {"x": 2, "w": 1, "y": 2, "z": 1, "u": 2, "s": 1}
READ_ONLY = ("x", "w")
WRITTEN = ("y", "z", "u", "s")
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
        return self.element(self.pick((*WRITTEN, "x")), scope)

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
        return form.format(
            v=self.value(scope), i=self.input(scope), j=self.input(scope), c=self.condition(scope, True)
        )

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
        return f"{self.input(scope)} > 0.0" if data else "1 > 0"

    def target(self, scope: _Scope) -> str:
        return self.element(self.pick(WRITTEN), scope)

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
        kind = self.chance(12, 1, 1, 2 if names else 0, 1 if names else 0)
        if kind == 0:
            return str(extent), 0, extent - 1, extent
        if kind == 1:
            return f"1, {extent + 1}", 1, extent, extent
        if kind == 2:
            return f"0, {extent}, 2", 0, extent - 1, extent
        outer = self.pick(names)
        high = scope.ranges[outer][1]
        if kind == 3:  # a window that is clipped at the borders
            return f"max(0, 1 - {outer}), min(3, {high + 2} - {outer})", 0, 2, 3
        return f"{outer} + 1", 0, high, high + 1

    def map(self) -> list[str]:
        """A nest that assigns each element of an array once: what most commands apply to."""
        rows, columns, target = self.pick(EXTENTS), self.pick(EXTENTS), self.pick(("y", "u"))
        scope = _Scope().inside("i", 0, rows - 1, rows).inside("j", 0, columns - 1, columns)
        self.extents[target] = [max(pair) for pair in zip(self.extents[target], (rows, columns), strict=True)]
        x = f"x[{self.pick(('i', 'i // 2', '0'))}, {self.pick(('j', 'j + 1', 'j + i', '1'))}]"
        self.extents["x"] = [max(pair) for pair in zip(self.extents["x"], (rows, rows + columns), strict=True)]
        value = f"{x} * {self.input(scope)} + 1.0" if self.chance(1, 1) else f"{x} + 0.5"
        return [f"for i in range({rows}):", f"    for j in range({columns}):", f"        {target}[i, j] = {value}"]

    def program(self) -> Program:
        lines: list[str] = []
        for _ in range(1 + self.chance(2, 2, 1)):
            lines += self.loop(_Scope(), "", 0) if self.chance(5, 1) == 0 else self.map()
        buffers = {name: Buffer(f"net.{name}", tuple(extents), role="param") for name, extents in self.extents.items()}
        return parse_program("\n".join(lines), buffers)


def local_names(program: Program) -> list[str]:
    """Every local of the program."""
    nodes = (node for nest in program.nests for _, node in walk(nest.body))
    return sorted({ast.unparse(node.target) for node in nodes if isinstance(node, ast.AnnAssign)})


Command = tuple[str, tuple[Any, ...], dict[str, Any]]


def _stored_by_lanes(program: Program) -> list[str]:
    """Buffers that a vector loop assigns."""
    lanes = (loop for nest in program.nests for _, loop in loops(nest.body) if loop_of(loop).kind == "vector")
    assignments = (node for loop in lanes for node in ast.walk(loop) if isinstance(node, ast.Assign))
    names = (ast.unparse(node.targets[0]).split("[")[0] for node in assignments)
    return [name for name in dict.fromkeys(names) if name in program.buffers]


def make_command(program: Program, pick: Pick[Any]) -> Command:
    """A command with arguments that name things of the program."""
    names = loop_names(program) or ["i"]
    name = pick(
        (
            "vectorize",
            "unroll",
            "unroll_and_jam",
            "tile_loop",
            "parallelize",
            "interchange",
            "fuse",
            "distribute",
            "scalar_replace",
            "hoist",
            "split",
            "reorder",
            "tile",
            "stream",
            "prefetch",
            "privatize",
            "reindex",
            "pack",
            "canonicalise",
            "tidy",
            "scalar_replace",
            "reverse",
            "scalar_expand",
            "if_convert",
            "factor",
            "moments",
            "partial_sums",
        )
    )
    options: dict[str, Any] = {}
    if name in ("interchange", "reorder"):
        count = 2 if name == "interchange" else pick((2, 3))
        return name, ([pick(names) for _ in range(count)],), options
    if name == "scalar_expand":
        return name, (pick(local_names(program) or ["t0"]),), {} if pick((True, False)) else {"loop_var": pick(names)}
    if name in ("parallelize", "distribute", "fuse", "moments", "partial_sums", "reverse"):
        return name, (pick(names),), options
    if name == "reindex":
        form = pick(("{a} + {b}", "2 * {a} + {b}", "{a} - {b} + 1", "3 - {a}", "3 * {a} - {b}", "{a} + 2 * {b}"))
        return name, (), {"r": form.format(a=pick(names), b=pick(names))}
    if name == "pack":
        return name, (pick(list(RANKS)),), pick((options, {"at": pick(names)}))
    if name == "factor":
        return name, (pick(names),), {"keep_differences": pick((False, True))}
    if name in ("hoist", "if_convert"):
        return name, (() if pick((True, False)) else (pick(names),)), options
    if name == "scalar_replace":
        return name, (() if pick((True, False)) else (pick(list(RANKS)),)), options
    if name in ("tile_loop", "unroll", "unroll_and_jam") and pick((False, False, True)):
        var = pick(names)
        heads = [loop_of(node) for nest in program.nests for _, node in loops(nest.body)]
        extent = min((head.extent for head in heads if head.var == var and head.extent), default=3)
        return name, (var, combination(extent, pick((2, 3, 4)))), options
    if name == "privatize":
        return name, (pick(WRITTEN), pick(names)), {"copies": pick((2, 3, 8))}
    if name == "prefetch":
        return name, (pick(list(RANKS)), pick(names), pick((1, 2, 9)), pick((1, 0))), options
    if name == "stream":
        return name, (pick(_stored_by_lanes(program) or list(WRITTEN)),), options
    if name == "tile_loop":
        return name, (pick(names), pick((2, 3, 4))), {"tail": pick(("min", "mask", "peel"))}
    if name == "tile":
        return name, (pick(list(RANKS)), pick((0, 1)), pick((2, 3, 4))), options
    if name == "split":
        return name, (pick(names), pick(([1], [2], [1, 2], [1, 3]))), options
    if name == "vectorize":
        return name, (pick(names), pick((4, 2, 8))), {} if pick((True, False)) else {"strided": "gather"}
    if name in ("unroll", "unroll_and_jam"):
        return name, (pick(names), pick((2, 3, 4, 1))), {"unroll_type": pick((0, 0, 1))}
    return name, (), options
