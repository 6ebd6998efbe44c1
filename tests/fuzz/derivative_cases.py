"""Random bodies for autodiff: text of one forward program of a seed.

They have what people write: sums, products and maxima over a loop, locals assigned again and names used again, local
arrays, recurrences in fields, exponentials divided in place by their sum, shifted subscripts, loops inside loops and
backwards, conditions on data and on subscripts, subscripts from an index field, several outputs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ROWS, STEPS = 3, 4
SHAPES: Mapping[str, tuple[int, ...]] = {
    "value": (ROWS, STEPS),
    "inputs": (ROWS, STEPS),
    "w": (STEPS,),
    "h": (ROWS, STEPS),
    "s": (ROWS,),
    "u": (STEPS,),
    "powers": (STEPS,),
}
WRITTEN = ("h", "s", "u", "value")
NAMES = ("a", "b", "c", "m", "t", "q")


@dataclass
class Scope:
    """What a statement sees: loop variables with the values they take, scalar locals, truth values, counters, local
    arrays."""

    loops: dict[str, range] = field(default_factory=dict)
    locals: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    arrays: list[str] = field(default_factory=list)

    def inner(self, **loops: range) -> Scope:
        return Scope({**self.loops, **loops}, list(self.locals), list(self.flags), list(self.counts), list(self.arrays))

    @property
    def names(self) -> set[str]:
        return {*self.loops, *self.locals, *self.flags, *self.counts, *self.arrays}


class Writer:
    """Writes the program of one seed.

    Args:
        seed: of the program.
        layer: for a layer's body, which has no local arrays and no loops that count down.
    """

    def __init__(self, seed: int, layer: bool):
        self.random = random.Random(seed)
        self.layer = layer

    def program(self) -> str:
        lines = []
        for name in WRITTEN:
            lines += self.start(name)
        for _ in range(self.pick(1, 1, 2)):
            rows = self.random.random() < 0.8
            variable, values = ("n", range(ROWS)) if rows else ("i", range(STEPS))
            lines.append(f"for {variable} in range({len(values)}):")
            lines += self.block(1, Scope({variable: values}), 3, self.random.randrange(2, 5))
        lines += [
            f"for n in range({ROWS}):",
            f"    for i in range({STEPS}):",
            f"        value[n, i] {self.pick('+=', '-=', '*=')} h[n, i] + s[n] * u[i]",
        ]
        return "\n".join(lines) + "\n"

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def start(self, name: str) -> list[str]:
        """What a field holds at first."""
        rows, steps = f"for n in range({ROWS}):", f"for i in range({STEPS}):"
        if name == "s":
            return [rows, f"    s[n] = {self.pick('0.0', '0.5', 'inputs[n, 0]')}"]
        if name == "u":
            return [steps, f"    u[i] = {self.pick('0.0', 'w[i]', 'w[i] * w[0]')}"]
        value = self.pick("0.0", "inputs[n, i]", "w[i]", "inputs[n, i] * w[i]", "0.5")
        return [rows, f"    {steps}", f"        {name}[n, i] = {value}"]

    # --- expressions ----------------------------------------------------------------------------------------
    def index(self, scope: Scope, extent: int) -> str:
        options = [str(self.random.randrange(extent))]
        for name, values in scope.loops.items():
            if max(values) < extent:
                options += [name, name, name, f"{extent - 1} - {name}", f"max({name} - 1, 0)"]
                options += [f"min({name} + 1, {extent - 1})", f"{name} // 2"]
        return self.pick(*options[1:], options[0]) if len(options) > 1 else options[0]

    def element(self, scope: Scope, name: str) -> str:
        indices = [self.index(scope, extent) for extent in SHAPES[name]]
        if SHAPES[name][-1] == STEPS and self.random.random() < 0.06:
            indices[-1] = f"powers[{indices[-1]}]"
        return f"{name}[{', '.join(indices)}]"

    def leaf(self, scope: Scope) -> str:
        draw = self.random.random()
        if scope.locals and draw < 0.4:
            return self.pick(*scope.locals)
        if scope.arrays and draw < 0.55:
            return f"{self.pick(*scope.arrays)}[{self.index(scope, STEPS)}]"
        if draw < 0.63:
            return self.pick("0.5", "1.5", "2.0", "0.25", *(f"0.25 * {name}" for name in scope.counts))
        shifted = [name for name, values in scope.loops.items() if max(values) < STEPS]
        if shifted and draw < 0.7:
            i = self.pick(*shifted)
            return self.pick(f"(w[{i} - 1] if {i} > 0 else 0.5)", f"(u[{i} + 1] if {i} + 1 < {STEPS} else w[0])")
        return self.element(scope, self.pick("inputs", "inputs", "w", "w", "h", "s", "u", "value"))

    def expression(self, scope: Scope, depth: int) -> str:
        if depth == 0 or self.random.random() < 0.15:
            return self.leaf(scope)
        a, b, c = (self.expression(scope, depth - 1) for _ in range(3))
        forms = [f"({a} + {b})", f"({a} - {b})", f"{a} * {b}", f"{a} * {b}", f"-{self.leaf(scope)}", f"tanh({a})"]
        forms += [f"max({a}, {b})", f"min({a}, {b})", f"max({a}, 0.0)", f"abs({a})", f"exp(0.3 * {self.leaf(scope)})"]
        forms += [f"{a} / (2.5 + {b} * {b})", f"sqrt(1.0 + {a} * {a})", f"log(1.5 + abs({a}))"]
        forms += [f"({a} if {self.condition(scope, 1)} else {b})", f"{a} / {b}", f"max({a}, {b}, {c})"]
        forms += [f"(sqrt({a}) if {a} > 0.0 else {b})", f"(1.0 / {a} if {a} != 0.0 else {b})"]
        exponent = self.pick("2.0", "3.0", "1.0", "0.0", f"powers[{self.index(scope, STEPS)}]", *scope.loops)
        forms += [f"pow({a}, {exponent})", f"(log({a}) if {a} > 0.1 else 0.0)"]
        forms += [f"{self.pick('erf', 'sin', 'cos', 'expm1', 'atan')}({a})", f"log1p({a} * {a})"]
        return self.pick(*forms)

    def condition(self, scope: Scope, depth: int) -> str:
        if depth and self.random.random() < 0.35:
            a, b = self.condition(scope, depth - 1), self.condition(scope, depth - 1)
            return self.pick(f"({a} and {b})", f"({a} or {b})", f"not {a}")
        draw = self.random.random()
        if scope.flags and draw < 0.15:
            return self.pick(*scope.flags)
        if draw < 0.3:
            variable = self.pick(*scope.loops, *scope.counts)
            return f"{variable} {self.pick('<', '>=', '==', '!=', '>')} {self.random.randrange(STEPS)}"
        a, b = self.leaf(scope), self.leaf(scope)
        if draw < 0.4:
            return f"{self.pick('-0.5', '0.0', '-1.0')} < {a} < {self.pick('0.7', '1.0')}"
        return f"{a} {self.pick('<', '>', '>=', '<=')} {self.pick(b, '0.1', f'{b} * {self.leaf(scope)}')}"

    # --- statements -----------------------------------------------------------------------------------------
    def block(self, indent: int, scope: Scope, depth: int, count: int) -> list[str]:
        """Statements of a block; what they declare is seen by those after them."""
        lines: list[str] = []
        for _ in range(count):
            made = self.statement(scope, depth)
            lines += ["    " * indent + line for line in made]
        return lines

    def statement(self, scope: Scope, depth: int) -> list[str]:
        kinds = ["declare", "store", "store", "update", "update", "update", "choose"]
        kinds += ["loop", "loop", "loop", "if", "if", "array", "recurrence", "extreme", "shares"] if depth else []
        kinds += ["flag", "count"]
        kind = self.pick(*kinds)
        free = sorted(set(NAMES) - scope.names)
        if kind == "array" and free and not self.layer:
            return self.array(scope, self.pick(*free))
        if kind == "declare" or (kind in ("update", "choose") and not scope.locals):
            if not free:
                return [self.store(scope)]
            value = self.pick("0.0", "1.0", "-3e38", self.expression(scope, 2), self.expression(scope, 2))
            name = self.pick(*free)
            line = f"{name}: float64 = {value}"
            first = f"{name} = max({name}, {self.expression(scope, 1)})"
            scope.locals.append(name)
            return [line, first] if value == "-3e38" else [line]
        if kind in ("flag", "count"):
            return self.other(scope, kind)
        if kind == "update":
            return [self.update(scope, self.pick(*scope.locals))]
        if kind == "choose":
            return self.choose(scope)
        if kind == "loop":
            return self.loop(scope, depth)
        if kind == "if":
            return self.branch(scope, depth)
        if kind == "recurrence":
            return self.recurrence(scope)
        if kind == "extreme":
            return self.extreme(scope)
        if kind == "shares" and free:
            return self.shares(scope, self.pick(*free))
        return [self.store(scope)]

    def other(self, scope: Scope, kind: str) -> list[str]:
        """A truth value or a counter is declared or changes."""
        known = scope.flags if kind == "flag" else scope.counts
        free = sorted({"f", "g", "e", "o"} - scope.names)
        if known and (not free or self.random.random() < 0.7):
            name = self.pick(*known)
            if kind == "flag":
                return [f"{name} = {self.pick(self.condition(scope, 1), f'{name} or {self.condition(scope, 0)}')}"]
            return [f"{name} {self.pick('+= 1', '-= 2', f'= {name} + {self.pick(*scope.loops)}')}"]
        if not free:
            return [self.store(scope)]
        name = self.pick(*free)
        value = self.condition(scope, 1) if kind == "flag" else self.pick("0", "1", *scope.loops)
        known.append(name)
        return [f"{name}: {'bool' if kind == 'flag' else 'int32'} = {value}"]

    def update(self, scope: Scope, name: str) -> str:
        value = self.expression(scope, 1)
        forms = [f"{name} {self.pick('=', '+=', '-=', '*=')} {value}", f"{name} = max({name} + {value}, 0.0)"]
        forms += [f"{name} = {name} * {self.leaf(scope)} + {value}"]
        forms += [f"{name} = max({name}, {value})", f"{name} = min({name}, {value})"]
        forms += [f"{name} = 0.9 * {name} + 0.1 * {value}", f"{name} = tanh({name} * {self.leaf(scope)} + {value})"]
        forms += [f"{name} = {value} - {name}", f"{name} += {value}", f"{name} /= 2.0 + abs({value})"]
        return self.pick(*forms)

    def choose(self, scope: Scope) -> list[str]:
        """The largest, or the two largest, of a sequence."""
        first, value = self.pick(*scope.locals), self.expression(scope, 1)
        sign = self.pick(">", "<", ">=")
        others = [name for name in scope.locals if name != first]
        if not others or self.random.random() < 0.5:
            return [f"if {value} {sign} {first}:", f"    {first} = {value}"]
        second = self.pick(*others)
        return [
            f"if {value} {sign} {first}:",
            f"    {second} = {first}",
            f"    {first} = {value}",
            f"elif {value} {sign} {second}:",
            f"    {second} = {value}",
        ]

    def store(self, scope: Scope) -> str:
        if scope.arrays and self.random.random() < 0.4:
            target = f"{self.pick(*scope.arrays)}[{self.index(scope, STEPS)}]"
        else:
            target = self.element(scope, self.pick(*WRITTEN))
        draw = self.random.random()
        if draw < 0.15:
            return f"{target} = {self.pick('max', 'min')}({target}, {self.expression(scope, 1)})"
        return f"{target} {self.pick('=', '=', '+=', '+=', '-=', '*=')} {self.expression(scope, 2)}"

    def loop(self, scope: Scope, depth: int) -> list[str]:
        variable = next((name for name in ("i", "j", "k") if name not in scope.names), None)
        if variable is None:
            return [self.store(scope)]
        heads: list[tuple[str, range]] = [
            (f"range({STEPS})", range(STEPS)),
            (f"range({STEPS})", range(STEPS)),
            (f"range(1, {STEPS})", range(1, STEPS)),
            (f"range(0, {STEPS}, 2)", range(0, STEPS, 2)),
            (f"range({STEPS - 1}, -1, -1)", range(STEPS)),
            (f"range({STEPS - 1}, 0, -2)", range(1, STEPS, 2)),
        ]
        if self.layer:
            heads = heads[:3]
        outer = self.pick(*scope.loops)
        if max(scope.loops[outer]) < STEPS:
            heads += [(f"range({outer}, {STEPS})", range(STEPS)), (f"range({outer} + 1)", range(STEPS))]
            heads.append((f"range(max({outer} - 1, 0), min({outer} + 2, {STEPS}))", range(STEPS)))
        head, values = self.random.choice(heads)
        body = self.block(1, scope.inner(**{variable: values}), depth - 1, self.random.randrange(1, 4))
        return [f"for {variable} in {head}:", *body]

    def branch(self, scope: Scope, depth: int) -> list[str]:
        lines = [f"if {self.condition(scope, 2)}:"]
        lines += self.block(1, scope.inner(), depth - 1, self.random.randrange(1, 3))
        if self.random.random() < 0.2:
            lines.append(f"elif {self.condition(scope, 1)}:")
            lines += self.block(1, scope.inner(), depth - 1, 1)
        if self.random.random() < 0.5:
            lines += ["else:", *self.block(1, scope.inner(), depth - 1, self.random.randrange(1, 3))]
        return lines

    def array(self, scope: Scope, name: str) -> list[str]:
        variable = next((v for v in ("i", "j", "k", "l") if v not in scope.names), "r")
        inner = scope.inner(**{variable: range(STEPS)})
        value = self.expression(inner, 1)
        scope.arrays.append(name)
        return [
            f"{name}: float64[{STEPS}] = empty({STEPS})",
            f"for {variable} in range({STEPS}):",
            f"    {name}[{variable}] = {value}",
        ]

    def recurrence(self, scope: Scope) -> list[str]:
        """A field along its steps."""
        variable = next((v for v in ("i", "j", "k") if v not in scope.names), None)
        if variable is None:
            return [self.store(scope)]
        inner = scope.inner(**{variable: range(1, STEPS)})
        row = self.index(scope, ROWS)
        name, old = self.pick(
            (f"h[{row}, {variable}]", f"h[{row}, {variable} - 1]"), (f"u[{variable}]", f"u[{variable} - 1]")
        )
        value = self.expression(inner, 1)
        form = self.pick(
            f"tanh({self.leaf(inner)} * {old} + {value})",
            f"max({old} + {value}, 0.0)",
            f"0.5 * {old} + {value}",
            f"{old} * {value}",
        )
        return [f"for {variable} in range(1, {STEPS}):", f"    {name} = {form}"]

    def shares(self, scope: Scope, total: str) -> list[str]:
        """Exponentials, divided in place by their sum, which is a local or an element."""
        variable = next((v for v in ("i", "j", "k") if v not in scope.names), None)
        if variable is None:
            return [self.store(scope)]
        row = self.index(scope, ROWS)
        loop = f"for {variable} in range({STEPS}):"
        element = self.pick(f"h[{row}, {variable}]", f"value[{row}, {variable}]", f"u[{variable}]")
        inner = scope.inner(**{variable: range(STEPS)})
        power = f"exp(0.3 * {self.leaf(inner)})"
        power = self.pick(power, power, f"({power} if {self.condition(inner, 0)} else {self.pick('0.0', '0.5')})")
        sum_ = self.pick(total, total, f"s[{row}]")
        first = f"{total}: float64 = {self.pick('0.0', '0.0', '1.0')}" if sum_ == total else f"{sum_} = 0.0"
        lines = [first, loop]
        if self.random.random() < 0.3 and (part := next((v for v in NAMES if v != total and v not in scope.names), "")):
            lines += [f"    {part}: float64 = {power}", f"    {sum_} += {part}", f"    {element} = {part}"]
        else:
            lines += [f"    {element} = {power}", f"    {sum_} += {element}"]
        if self.random.random() < 0.2:
            more = self.pick(f"2.0 * {sum_}", f"{sum_} + {self.leaf(scope)} * {self.leaf(scope)}")
            lines.append(f"{sum_} = {more}")
        quotient = f"{element} = {element} / {sum_}"
        divided = self.pick(f"{element} /= {sum_}", quotient, quotient)
        heads = (loop, loop, f"for {variable} in range({STEPS - 1}, -1, -1):" if not self.layer else loop)
        lines += [self.pick(*heads), f"    {divided}"]
        if sum_ == total:
            scope.locals.append(total)
        return lines

    def extreme(self, scope: Scope) -> list[str]:
        """Greatest or least value over a loop or two, in an element or two that may hold something before."""
        free = [v for v in ("i", "j", "k") if v not in scope.names]
        if not free:
            return [self.store(scope)]
        variables = free[: self.pick(1, 1, 2)]
        inner = scope.inner(**{variable: range(STEPS) for variable in variables})
        lines = [f"{'    ' * depth}for {variable} in range({STEPS}):" for depth, variable in enumerate(variables)]
        for _ in range(self.pick(1, 1, 2)):
            target = (
                self.element(scope, self.pick(*WRITTEN))
                if self.random.random() < 0.7 or not scope.locals
                else (self.pick(*scope.locals))
            )
            value, call = self.expression(inner, 1), self.pick("max", "min")
            guarded = [f"if {value} {'>' if call == 'max' else '<'} {target}:", f"    {target} = {value}"]
            made = self.pick([f"{target} = {call}({target}, {value})"], guarded)
            lines += ["    " * len(variables) + line for line in made]
        if self.random.random() < 0.3:
            guard = f"if {self.pick(*scope.loops)} {self.pick('>=', '<', '!=')} {self.random.randrange(STEPS)}:"
            lines = [guard, *("    " + line for line in lines)]
        return lines
