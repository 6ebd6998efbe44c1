"""Layouts are those of the recipe whatever is found: its functions for later phases build on them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from latte import ConvLayer, MemoryDataLayer, Net
from latte.tools.tune.files import new_entry, write_entries
from latte.tools.tune.session import Found
from latte.tools.tune.subjects import tunables
from swirl.cost.time import Rates
from swirl.target.targets import TARGETS
from swirl.transforms import LAYOUT_COMMANDS
from swirl.tune.spaces import Point, Pool

RATES = Rates(1e11, 1e11, 5e10, 1e10)


def net(**options: Path) -> Net:
    found = Net(2, seed=1, **options)
    layer = ConvLayer(found, MemoryDataLayer(found, (16, 6, 6)), num_filters=16, kernel=3, pad=1)
    ConvLayer(found, layer, num_filters=16, kernel=3, pad=1)
    return found


@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_an_entry_for_forward_leaves_backward_the_layouts_that_it_builds_on(tmp_path: Path, target: str) -> None:
    (forward,), _ = tunables(net(), TARGETS[target], 1, ["conv2"], ["forward"])
    point = forward.default or Point(forward.known)
    assert point.candidate.layouts == forward.known.layouts
    found = Found(forward, point, 1.0, 2.0, 0.0, 0.5, 1, 0)
    write_entries(tmp_path, [new_entry(found, target, 1, True, "random", 0)])
    after, _ = tunables(net(recipes=tmp_path), TARGETS[target], 1, ["conv2"])  # backward's commands apply
    assert after[0].known.key == point.key
    before, _ = tunables(net(), TARGETS[target], 1, ["conv2"])
    assert [each.known.key for each in after[1:]] == [each.known.key for each in before[1:]]


def test_points_with_other_layouts_are_not_drawn() -> None:
    (forward,), _ = tunables(net(), TARGETS["avx2"], 1, ["conv2"], ["forward"])
    plain = forward.subject.after([each for each in forward.known.commands if each.name not in LAYOUT_COMMANDS])
    assert plain.layouts != forward.known.layouts

    class Both:
        def sample(self, random: Random) -> Point:
            return Point(random.choice([plain, forward.known]))

    pool = Pool(Both(), TARGETS["avx2"], RATES, 1, 2**25, forward.known.layouts)  # type: ignore[arg-type]
    drawn = pool.draw(Random(0))
    assert drawn is not None and drawn.point.candidate is forward.known
    assert pool.draw(Random(0)) is None
