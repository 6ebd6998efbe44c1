"""A batch of random nets in one process; and a failing one reduced: fewer layers, recipes, items, channels."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from swirl.target.machine import why_not
from swirl.target.targets import TARGETS
from tests.fuzz.checks import random_pick
from tests.fuzz.net_cases import Layer, NetCase, NetMaker, shapes_of
from tests.fuzz.net_checks import NetRefused, problem_of_net
from tests.fuzz.shrink import way_of

Failing = Callable[[NetCase], str | None]
"""What is wrong with a net, or None."""

VECTORS = [target.name for target in TARGETS.values() if target.isa_flags and why_not(target) is None]


def ways_of(seed: int) -> list[str]:
    """How a net is compiled: for each target with vectors, and by turns without any recipe or for the portable
    target."""
    return [*VECTORS, "plain" if seed % 2 else "portable"]


def run_nets(first: int, count: int, optimized: bool) -> dict[str, Any]:
    """Counts, and what went wrong, of the nets of seeds ``first`` … ``first + count - 1``."""
    counts = Counter[str]()
    wrong = []
    optimize = "-O3" if optimized else "-O0"
    for seed in range(first, first + count):
        case = NetMaker(random_pick(seed)).make(seed)
        counts["cases"] += 1
        counts["exact"] += case.exact
        counts["with recipes of their own"] += bool(case.recipes)
        for way in ways_of(seed):
            fails = failing(way, optimize)
            try:
                what = problem_of_net(case, way, optimize)
            except NetRefused:
                counts[f"refused {way}"] += 1
                continue
            counts[f"compiled {way}"] += 1
            if what is not None:
                start = time.monotonic()
                smaller = shrink_net(case, fails)
                what = f"{way} {fails(smaller) or what}"
                test = net_test(smaller, way, what, f"net_found_by_fuzzing_{seed}")
                wrong.append({"seed": seed, "what": what, "test": test, "shrinking": time.monotonic() - start})
                break
    return {"counts": dict(counts), "wrong": wrong}


def failing(way: str, optimize: str = "-O0") -> Failing:
    """A function that tells whether a net goes wrong; one that is refused does not."""

    def problem(case: NetCase) -> str | None:
        try:
            return problem_of_net(case, way, optimize)
        except NetRefused:
            return None

    return problem


# --- making small ---------------------------------------------------------------------------------------------
def shrink_net(case: NetCase, fails: Failing, seconds: float = 180) -> NetCase:
    """The smallest net found that still fails in the same way, by the first word of what is wrong."""
    end = time.monotonic() + seconds
    way = way_of(fails(case))
    changed = way is not None
    while changed and time.monotonic() < end:
        changed = False
        for smaller in _smaller(case):
            if time.monotonic() > end:
                break
            if shapes_of(smaller) is not None and way_of(fails(smaller)) == way:
                case, changed = smaller, True
                break
    return case


def _smaller(case: NetCase) -> Iterator[NetCase]:
    for number in range(len(case.layers), 0, -1):
        if len(case.layers) > 1:
            yield _without(case, number)
    for numbers, text in case.recipes.items():
        yield replace(case, recipes={key: other for key, other in case.recipes.items() if key != numbers})
        lines = text.splitlines(keepends=True)
        for index, line in enumerate(lines):
            if line.startswith("    ") and sum(other.startswith("    ") for other in lines) > 1:
                yield replace(case, recipes={**case.recipes, numbers: "".join(lines[:index] + lines[index + 1 :])})
    for simpler in ({"smaller": 0}, {"classes": False}, {"force": False}, {"keep": None}):
        if any(getattr(case, key) != value for key, value in simpler.items()):
            yield replace(case, **simpler)  # type: ignore[arg-type]
    for batch in _less(case.batch):
        yield replace(case, batch=batch, smaller=min(case.smaller, max(0, batch - 1)))
    for dim, extent in enumerate(case.shape):
        for less in _less(extent):
            yield replace(case, shape=(*case.shape[:dim], less, *case.shape[dim + 1 :]))
    for index, layer in enumerate(case.layers):
        for name, value in layer.options.items():
            for simpler_value in _simpler(name, value):
                changed = Layer(layer.kind, layer.sources, {**layer.options, name: simpler_value})
                yield replace(case, layers=(*case.layers[:index], changed, *case.layers[index + 1 :]))


def _less(number: int) -> list[int]:
    return sorted({1, 2, number // 2, number - 1} & set(range(1, number)))


def _simpler(name: str, value: Any) -> list[Any]:
    if isinstance(value, bool):
        return []
    if isinstance(value, tuple):
        return list(value)
    return [0] if name == "pad" and value else _less(value) if name != "pad" else []


def _without(case: NetCase, gone: int) -> NetCase:
    """The net without a layer: its readers read its source."""
    source = case.layers[gone - 1].sources[0]

    def moved(number: int) -> int:
        return source if number == gone else number - (number > gone)

    layers = tuple(
        Layer(layer.kind, tuple(map(moved, layer.sources)), layer.options)
        for number, layer in enumerate(case.layers, 1)
        if number != gone
    )
    recipes = {tuple(map(moved, numbers)): text for numbers, text in case.recipes.items() if gone not in numbers}
    return replace(case, layers=layers, recipes=recipes)


# --- as a test ------------------------------------------------------------------------------------------------
def net_test(case: NetCase, way: str, problem: str, name: str) -> str:
    """The text of a test that fails as long as the net does."""
    shown = []
    for field in fields(case):
        value = getattr(case, field.name)
        if field.name in ("batch", "shape") or value != field.default and value != {}:
            shown.append(f"{field.name}={_layers(value) if field.name == 'layers' else repr(value)}")
    parts = ",\n        ".join(shown)
    return "\n".join(
        [
            f"def test_{name}() -> None:",
            f"    # {problem.splitlines()[0]}",
            f"    case = NetCase(\n        {parts},\n    )",
            f'    assert_net(case, "{way}")',
        ]
    )


def _layers(layers: Sequence[Layer]) -> str:
    lines = (f'Layer("{layer.kind}", {layer.sources}, {layer.options}),' for layer in layers)
    return "(\n            " + "\n            ".join(lines) + "\n        )"
