"""Random programs: the derived gradients are the differences, or the program is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest

from swirl.errors import DerivativeError
from swirl.ir.validate import validate
from tests.ir.test_autodiff_differences import Case, run

EXTENT = 3
BUFFERS = ("value", "inputs", "w", "u", "v")


class Writer:
    """Writes a program of one seed: locals, inner loops, branches, updates of whole and shared elements."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.locals = 0

    def expression(self, names: list[str], depth: int) -> str:
        if depth == 0 or self.random.random() < 0.2:
            return self.random.choice([*names, "0.5", "1.5"])
        a, b, c, d = (self.expression(names, depth - 1) for _ in range(4))
        forms = [f"({a} + {b})", f"({a} - {b})", f"{a} * {b}", f"tanh({a})", f"max({a}, {b})", f"-{a}"]
        forms += [f"({a} if {b} > {c} else {d})", f"{a} / (2.5 + {b} * {b})", f"exp(0.1 * {a})"]
        return self.random.choice(forms)

    def block(self, indent: int, names: list[str], targets: list[str], depth: int) -> list[str]:
        lines, known, pad = [], list(names), "    " * indent
        own: list[str] = [name for name in names if name.startswith("t")]
        for _ in range(self.random.randrange(1, 4)):
            kind = self.random.random()
            if kind < 0.25:
                name = f"t{self.locals}"
                self.locals += 1
                lines.append(f"{pad}{name}: float32 = {self.expression(known, 2)}")
                known.append(name)
                own.append(name)
            elif kind < 0.4 and own:
                sign = self.random.choice(["=", "+=", "-=", "*="])
                lines.append(f"{pad}{self.random.choice(own)} {sign} {self.expression(known, 1)}")
            elif kind < 0.5 and depth:
                lines.append(f"{pad}for q in range(2):")
                lines += self.block(indent + 1, known, targets, 0)
            elif kind < 0.6 and depth:
                lines.append(f"{pad}if {self.expression(known, 1)} > 0.1:")
                lines += self.block(indent + 1, known, targets, 0)
            else:
                sign = self.random.choice(["=", "+=", "+=", "-=", "*="])
                lines.append(f"{pad}{self.random.choice(targets)} {sign} {self.expression(known, 2)}")
        return lines

    def program(self) -> str:
        lines = []
        for name in ("u", "v", "value"):
            start = self.random.choice(["0.0", "inputs[i]", "w[i]", "0.5"])
            lines += [f"for i in range({EXTENT}):", f"    {name}[i] = {start}"]
        for _ in range(self.random.randrange(1, 4)):
            names = ["inputs[i]", "w[i]", "u[i]", "v[i]", "inputs[2 - i]", "w[0]"]
            if self.random.random() < 0.3:
                names += ["u[max(i - 1, 0)]", "v[0]", "value[i]"]
            lines.append(f"for i in range({EXTENT}):")
            lines += self.block(1, names, ["u[i]", "v[i]", "value[i]"], 1)
        lines += [f"for i in range({EXTENT}):", "    value[i] += u[i] * v[i]"]
        return "\n".join(lines) + "\n"


@pytest.mark.parametrize("seed", range(60))
def test_random_program(seed: int) -> None:
    case = Case(Writer(seed).program(), dict.fromkeys(BUFFERS, (EXTENT,)), "inputs", "w")
    try:
        derived = case.derive()
    except DerivativeError:
        return  # refused is right too; the messages are tested elsewhere
    start = case.start()
    seeded = np.random.default_rng(2).normal(size=EXTENT)
    after = run(validate(derived.forward), start)
    for name, value in run(case.program(), start).items():
        np.testing.assert_array_equal(after[name], value)
    gradients = {}
    for program, name in ((derived.update, "w"), (derived.backward, "inputs")):
        given = {**after, "grad": seeded, "accumulate": np.zeros(1, np.int32)}
        got = run(validate(program), given) if program is not None else {}
        gradients[name] = got.get(f"grad_{name}", np.zeros(EXTENT))
    for name, gradient in gradients.items():
        for index in range(EXTENT):

            def slope(step: float, name: str = name, index: int = index) -> float:
                moved = [
                    {**start, name: start[name] + sign * step * np.eye(EXTENT)[index]} for sign in (1, -1)
                ]
                up, down = ((run(derived.forward, known)["value"] * seeded).sum() for known in moved)
                return (up - down) / (2 * step)

            coarse, fine = slope(1e-6), slope(2e-7)
            if abs(coarse - fine) > 1e-4 * (1 + abs(coarse)):
                continue  # a branch or maximum changes sides within the step
            assert abs(gradient[index] - coarse) < 1e-5 * (1 + abs(coarse)), case.source
