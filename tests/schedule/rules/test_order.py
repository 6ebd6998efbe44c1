"""The list of rules says what each of them is; each has a docstring that shows what it does, and tests."""

from __future__ import annotations

import re
from inspect import getdoc
from pathlib import Path

import pytest

from swirl.schedule.rules.engine import Rule
from swirl.schedule.rules.order import NEST, PHASE
from tests.schedule.rules.applied import every_rule

RULES = {rule.name: rule for rule in every_rule() if rule.name != "nest"}
"""All rules by name, but for that which runs those of a nest."""


def test_names_mean_one_rule() -> None:
    """A rule may run twice; another one has another name, which decisions may have."""
    assert all(rule == RULES[rule.name] for rule in every_rule() if rule.name in RULES)
    assert all(re.fullmatch(r"[a-z_]+", name) for name in RULES)
    assert len({rule.what for rule in RULES.values()}) == len(RULES)


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_a_rule_shows_what_it_does(rule: Rule) -> None:
    """A loop nest before and after, and the reason."""
    shown = getdoc(rule.apply) or ""
    before, rewrite, after = shown.partition("\nrewrite")
    assert rewrite and before.strip(), f"the docstring of {rule.apply.__name__} has no 'rewrite:'"
    nests, hardware, why = after.partition("Hardware: ")
    assert re.search(r"\S.* → ", nests) and nests.count(" = ") + nests.count(" += ") >= 2, nests
    assert hardware and len(why.split()) > 5, f"the docstring of {rule.apply.__name__} has no 'Hardware:'"


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_a_rule_has_tests(rule: Rule) -> None:
    """In a module of the same name, where it is applied alone."""
    module = rule.apply.__module__.rpartition(".")[2]
    path = Path(__file__).with_name(f"test_{module}.py")
    assert path.exists(), f"{path} has the tests of {rule.name}"
    assert f'by_rule("{rule.name}", ' in path.read_text(), f"{path} tests {rule.name} by_rule"


def test_the_list_is_short() -> None:
    """Each rule has one line to say what it does."""
    assert all(len(rule.what) <= 80 for rule in RULES.values())
    assert PHASE[-1].rules[-1].name == "nest" and NEST
