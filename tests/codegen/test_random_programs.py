"""Random vector loops: compiled = executed, bit for bit, on every target, special values among the data.

Inputs are only read and outputs are written at the loops' own index, so every program is legal.
"""

import random

import numpy as np

from swirl.ir.buffers import Buffer
from tests.codegen.conftest import together
from tests.fuzz.floats import data

ROWS, LANES = 3, 40


class Programs:
    """Makes expressions of each type out of inputs, locals, lanes and literals."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.locals: dict[str, list[str]] = {"float32": [], "int32": [], "bool": []}
        self.count = 0

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def index(self) -> str:
        near = self.pick("v", "v + 3", "v", "7", "index[v]")
        return self.pick(near, near, "2 * v", "39 - v", "index[i * 7 + v]", "(v * 5 + i) % 40", "v // 3")

    def element(self, name: str) -> str:
        row = self.pick("i", "2 - i", "1", "v % 3")
        return f"{name}[{row}, {self.index()}]"

    def floating(self, depth: int) -> str:
        if depth == 0:
            local = self.locals["float32"]
            return self.pick(self.element("x"), "a[i]", "0.5", "-1.25", "3.0", *local, *local)
        one, two = self.floating(depth - 1), self.floating(depth - 1)
        return self.pick(
            f"({one} + {two})",
            f"({one} - {two})",
            f"{one} * {two}",
            f"({one} + {one} * {two})",
            f"(-{one})",
            f"({one} * {two} - {self.floating(0)})",
            f"({two} - {one} * {two})",
            f"{one} / ({two} + 2.0)",
            f"max({one}, {two})",
            f"min(1.0, {one}, {two})",
            f"max(0.0, {two})",
            f"sqrt(abs({one}))",
            f"({one} if {self.truth(depth - 1)} else {two})",
            f"float32({self.integer(depth - 1)})",
            f"floor({one})",
            f"float32({self.truth(depth - 1)})",
        )

    def integer(self, depth: int) -> str:
        if depth == 0:
            return self.pick(self.element("n"), "v", "i", "3", "index[v]", *self.locals["int32"])
        one, two = self.integer(depth - 1), self.integer(depth - 1)
        return self.pick(
            f"({one} + {two})",
            f"({one} - {two})",
            f"({one} % 64) * ({two} % 16)",
            f"{one} // 4",
            f"{one} % 5",
            f"max({one}, {two})",
            f"min({one}, 7, {two})",
            f"({one} if {self.truth(depth - 1)} else {two})",
            f"int32({self.truth(depth - 1)})",
            f"abs({one})",
            f"(-{one})",
            f"({one} // 3)",
        )

    def truth(self, depth: int) -> str:
        if depth == 0:
            return self.pick(self.element("m"), "v < 11", "a[i] > 0.0", "v % 2 == 1", *self.locals["bool"])
        operator = self.pick("<", "<=", ">", ">=", "==", "!=")
        return self.pick(
            f"({self.floating(depth - 1)} {operator} {self.floating(depth - 1)})",
            f"({self.integer(depth - 1)} {operator} {self.integer(depth - 1)})",
            f"({self.truth(depth - 1)} and {self.truth(depth - 1)})",
            f"({self.truth(depth - 1)} or {self.truth(depth - 1)})",
            f"(not {self.truth(depth - 1)})",
        )

    def expression(self, dtype: str) -> str:
        return {"float32": self.floating, "int32": self.integer, "bool": self.truth}[dtype](2)

    def statements(self, depth: int, indent: str) -> list[str]:
        lines = []
        outer = {dtype: list(names) for dtype, names in self.locals.items()}
        for _ in range(self.random.randint(2, 4)):
            dtype = self.pick("float32", "float32", "int32", "bool")
            target = {"float32": "y[i, v]", "int32": "k[i, v]", "bool": "b[i, v]"}[dtype]
            match self.random.randrange(5 if depth else 4):
                case 0:
                    name = f"t{self.count}"
                    self.count += 1
                    lines.append(f"{indent}{name}: {dtype} = {self.expression(dtype)}")
                    self.locals[dtype].append(name)
                case 1 if self.locals[dtype]:
                    lines.append(f"{indent}{self.pick(*self.locals[dtype])} = {self.expression(dtype)}")
                case 2 if dtype == "float32":
                    lines.append(f"{indent}{target} {self.pick('+=', '-=', '*=')} {self.expression(dtype)}")
                case 4:
                    lines.append(f"{indent}if {self.truth(1)}:")
                    lines += self.statements(depth - 1, indent + "    ")
                    if self.random.random() < 0.5:
                        lines.append(f"{indent}else:")
                        lines += self.statements(depth - 1, indent + "    ")
                case _:
                    lines.append(f"{indent}{target} = {self.expression(dtype)}")
        self.locals = outer
        return lines

    def program(self) -> str:
        lines = []
        for _ in range(3):
            lanes = self.pick("16", "8", "5", "17", "min(16, 11 + i)", "1", "20", "min(20, 14 + 3 * i)")
            lines += [
                f"for i in parallel({ROWS}):",
                f"    for v in vector({lanes}):",
                *self.statements(2, " " * 8),
            ]
        return "\n".join(lines)


@together(seed=range(12))
def test_random_vector_loops(check, seed):
    shape = (ROWS, LANES)
    buffers = {
        "x": Buffer("x", shape),
        "n": Buffer("n", shape, "int32"),
        "m": Buffer("m", shape, "bool"),
        "y": Buffer("y", shape),
        "k": Buffer("k", shape, "int32"),
        "b": Buffer("b", shape, "bool"),
        "a": Buffer("a", (ROWS,)),
        "index": Buffer("index", (LANES,), "int32"),
    }
    text = Programs(seed).program()
    index = np.random.default_rng(seed).integers(0, LANES, LANES).astype(np.int32)
    check(text, buffers, {"index": index})
    for style in ("special", "zeros"):
        check(text, buffers, data(buffers, seed, style, {"index": LANES}))
