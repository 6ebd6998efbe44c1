"""TTiLE's tables, without their measurements."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import ttile
from searched import Bench, convolution

from latte.tools.tune.session import Machine
from swirl.cost.time import Rates
from swirl.target.targets import TARGETS
from swirl.tune.ttile.schemes import Texct, Tvar, ULambda

MACHINE = Machine(TARGETS["avx512"], 1, Rates(1e11, 1e11, 5e10, 1e10), 2**25, "", "")
BENCH = Bench(MACHINE, None, None, Path())
WORK = convolution("small", "1", (1, 16, 12, 12, 32, 3, 1, 1), MACHINE)


def test_sizes_are_those_of_the_thesis() -> None:
    assert {net: len(layers) for net, layers in ttile.NETS.items()} == {"yolo9000": 11, "resnet18": 12}
    (work,) = ttile.works(BENCH, {"yolo9000": ["12"]}, "")
    assert work.shape == (1, 256, 34, 34, 512, 3, 1, 1) and work.operations == 2 * 34 * 34 * 512 * 256 * 9


def test_a_space_without_pairs_has_none() -> None:
    every, single = (ttile.schemes(WORK, BENCH, space) for space in (ttile.SPACES[0], ttile.SPACES[2]))
    assert any(kernel.along for kernel in every.kernels)
    assert single.kernels and not any(kernel.along for kernel in single.kernels)
    assert not any(isinstance(atom, ULambda) for _ in range(20) for atom in single.draw(Random(_)).atoms)


@pytest.mark.parametrize("space", ttile.SPACES)
def test_draws_are_different(space: str) -> None:
    made = ttile.schemes(WORK, BENCH, space)
    points = ttile.random_points(made, 4, Random(1), divide=space != ttile.SPACES[3])
    assert len({point.key for point in points}) == 4
    partial = ["Texct" in point.origin and "Tvar" in point.origin for point in points]
    assert all(partial) if space == ttile.SPACES[3] else not any(partial)


def test_sizes_that_do_not_divide() -> None:
    made, random = ttile.schemes(WORK, BENCH, ttile.SPACES[3]), Random(2)
    changed = [found for _ in range(50) if (found := ttile.undivided(made.draw(random), made, random)) is not None]
    assert changed
    for scheme in changed:
        kinds = [type(atom) for atom in scheme.atoms]
        assert kinds.count(Texct) == kinds.count(Tvar) == 1


def test_the_metric_orders_draws() -> None:
    made = ttile.schemes(WORK, BENCH, ttile.SPACES[0])
    points = ttile.ranked_points(made, 3, Random(3))
    assert len({point.key for point in points}) == 3


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    row = ttile.Row("yolo9000", "4", (1,), 10**9, 1, 1e10, "all", (0.2, 0.4), (0.125,), 0.25, 0.5)
    ttile.show_layers([row])
    ttile.show_spaces([row])
    told = capsys.readouterr().out
    assert all(text in told for text in ("50%", "80%", "40%", "20%", "2.00×", "4.00×", "50%, 33%", "none"))
