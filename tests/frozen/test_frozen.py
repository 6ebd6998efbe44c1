"""Kernels, layouts, outcomes of commands and values of some nets are unchanged: see ``records``.

``make frozen`` compares all forty, which takes too long for every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from swirl.target.machine import why_not
from swirl.target.targets import TARGETS, get_target
from tests.frozen.records import LIBRARY, Record, normalised, read_records, record
from tests.frozen.specifications import specifications

SPECIFICATIONS = specifications()


frozen = cache(read_records)


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """The differences between two records, one line each."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from differences(before.get(key), after.get(key), f"{where}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, f"{where}[{number}]")
    elif before != after:
        yield f"{where}: was {before!r}, is {after!r}"


SOME = ("conv, batch norm, ReLU: few filters", "reorders", "refused: a race")


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_has_changed(name: str, target: str) -> None:
    if reason := why_not(get_target(target)):
        pytest.skip(f"{target}: {reason}")
    found = record(SPECIFICATIONS[name], target)
    before = frozen(target)["records"][name]
    if frozen(target)["library"] != LIBRARY:
        before, found = (_without_values(one) for one in (before, found))
    assert not list(differences(before, found))


def _without_values(one: Record) -> Record:
    return {
        key: {k: v for k, v in part.items() if k != "values"} if isinstance(part, dict) else part
        for key, part in one.items()
    }


def test_renaming_is_no_difference_and_anything_else_is() -> None:
    source = 'extern "C" void kernel_1(void *const *buffers) {\n    float x_t = expf(buffers[0]); // e\n  x_t += x;\n}'
    assert normalised(source) == normalised(source.replace("x_t", "other").replace("kernel_1", "kernel_2"))
    for old, new in (("expf", "logf"), ("+=", "-="), ("+= x;", "+= x_t;"), ("[0]", "[1]"), ("float", "double")):
        assert normalised(source) != normalised(source.replace(old, new)), new


def test_records_are_those_of_the_specifications() -> None:
    for target in TARGETS:
        assert set(frozen(target)["records"]) == set(SPECIFICATIONS)
    assert len(SPECIFICATIONS) == 40
