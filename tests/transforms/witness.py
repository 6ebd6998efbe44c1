"""Whether the two instances that a refusal names do touch the element it names."""

from __future__ import annotations

import ast
import re
from fractions import Fraction
from typing import Any

import numpy as np

from swirl.errors import Refused
from swirl.ir.nest import Nest, Program, clone, loop_of


class _Touched:
    """An array that notes which elements are used."""

    def __init__(self, name: str, array: np.ndarray, seen: set[tuple[str, tuple[int, ...]]]):
        self.name, self.array, self.seen = name, array, seen

    def _at(self, index: Any) -> tuple[int, ...]:
        index = tuple(map(int, index if isinstance(index, tuple) else (index,)))
        self.seen.add((self.name, index))
        return index

    def __getitem__(self, index: Any) -> Any:
        return self.array[self._at(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[self._at(index)] = value


class _Fixed(ast.NodeTransformer):
    """Loops of which only one iteration runs."""

    def __init__(self, values: dict[str, int]):
        self.values = values

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        var = loop_of(node).var
        assert isinstance(node.iter, ast.Call)
        if var in self.values:
            node.iter = ast.parse(f"[{self.values[var]}]", mode="eval").body
        return node


def touched(nest: Nest, arrays: dict[str, np.ndarray], values: dict[str, int]) -> set[tuple[str, tuple[int, ...]]]:
    """The elements that the statement instances with these values of the loop variables touch."""
    seen: set[tuple[str, tuple[int, ...]]] = set()
    function = ast.fix_missing_locations(_Fixed(values).visit(clone(nest.function)))
    scope: dict[str, Any] = {"parallel": range, "vector": range, "unrolled": range, "float32": Fraction}
    exec(compile(ast.Module([function], []), "nest", "exec"), scope)
    scope[nest.label](*(_Touched(name, arrays[name], seen) for name in nest.arguments))
    return seen


def assert_witness(before: Program, refusal: Refused) -> None:
    """Executes the two instances and checks whether both touch the element."""
    witness = str(refusal.witness)
    # "y=0, k=1 and y=1, k=0 both update e" or "i=0 writes e, which i=1 reads"
    found = re.fullmatch(r"(.*) (?:and (.*) both \w+ (.*)|\w+ (.*), which (.*) \w+)", witness)
    assert found, witness
    first, second = found[1], found[2] or found[5]
    element = found[3] or found[4]
    instances = [{var: int(value) for var, value in re.findall(r"(\w+)=(\d+)", text)} for text in (first, second)]
    assert instances[0].keys() == instances[1].keys() and instances[0] != instances[1]
    shared = {n.id: 0 for n in ast.walk(ast.parse(element)) if isinstance(n, ast.Name)}
    buffer, index = element[:-1].split("[")
    where = eval(f"({index},)", dict(shared))
    for instance in instances:
        reached = set()
        for nest in before.nests:
            arrays = {n: np.ones(b.shape, dtype=object) for n, b in before.buffers.items()}
            reached |= touched(nest, arrays, {**{v: x for v, x in shared.items() if v != buffer}, **instance})
        assert (buffer, where) in reached, (instance, reached)
