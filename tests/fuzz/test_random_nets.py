"""Random nets: the results of PyTorch, whatever the target and the recipes. A fixed budget; ``make fuzz NETS=1`` goes
on for as long as one likes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from tests.fuzz.checks import random_pick
from tests.fuzz.net_batch import failing, net_test, run_nets, shrink_net
from tests.fuzz.net_cases import Layer, NetCase, NetMaker, shapes_of
from tests.fuzz.net_library import KINDS

SEED = int(os.environ.get("FUZZ_SEED", "40000"))
"""Of the first net."""


@pytest.mark.parametrize("part", range(3))
def test_random_nets(part: int) -> None:
    seed = SEED + part
    print(f"seed {seed}")
    found = run_nets(seed, 1, optimized=False)
    assert not found["wrong"], "\n\n".join(wrong["test"] for wrong in found["wrong"])


def test_every_kind_is_made_and_fits() -> None:
    made: list[NetCase] = []
    rare = set(KINDS)
    while len(made) < 150 or rare and len(made) < 1500:
        made.append(NetMaker(random_pick(len(made))).make(len(made)))
        rare -= {layer.kind for layer in made[-1].layers}
    assert not rare
    assert all(shapes_of(case) is not None for case in made)
    assert any(case.exact for case in made) and any(case.recipes for case in made)
    for case in made:
        text = net_test(case, "plain", "differs", "again")
        scope: dict[str, Any] = {"NetCase": NetCase, "Layer": Layer, "assert_net": lambda *given: given}
        exec(text.replace("    assert_net", "    return assert_net"), scope)
        assert scope["test_again"]() == (case, "plain")


def test_a_wrong_layer_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    right = KINDS["doubled"]
    monkeypatch.setitem(KINDS, "doubled", replace(right, formula=lambda f, name, xs, p: 2 * xs[0] + 1))
    layers = (Layer("scaled", (0,)), Layer("doubled", (1,)), Layer("fully_connected", (2,), {"num_outputs": 3}))
    recipes = {(1,): "def forward(s, target):\n    pass\n"}
    case = NetCase(batch=2, shape=(3,), layers=layers, keep="all", recipes=recipes)
    fails = failing("plain")
    assert (fails(case) or "").startswith("differs: ")
    smaller = shrink_net(case, fails)
    assert [layer.kind for layer in smaller.layers] == ["doubled"]
    assert smaller.batch * smaller.shape[0] == 1 and not smaller.recipes
    assert 'Layer("doubled", (0,), {})' in net_test(smaller, "plain", fails(smaller) or "", "doubled")
