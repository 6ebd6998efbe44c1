"""The space of configurations: what it lists, what its points are, whom it is refused."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from swirl.cost.time import Rates
from swirl.errors import CommandError
from swirl.target.targets import TARGETS
from swirl.tune.automcl.complexity import CONV, CONVOPT, DNMM332, LPMM, RPMMV, TMM
from swirl.tune.automcl.convolutions import ConvTiling
from swirl.tune.automcl.factors import Filter, Tiling, kept_space
from swirl.tune.automcl.space import Configurations, configuration_of, tiling_of
from swirl.tune.candidates import Subject
from swirl.tune.spaces import Listed, ListedPool
from tests.support import assert_same, program
from tests.tune.automcl.test_convolutions import convolution, convolutions
from tests.tune.automcl.test_products import fully_connected, product_program

AVX2 = TARGETS["avx2"]


def space(m: int, n: int, k: int, **options: object) -> Configurations:
    subject = Subject.alone(product_program(m, n, k), "forward", ("net.", "program."), AVX2)
    return Configurations(subject, (), 2, **options)  # type: ignore[arg-type]


def test_it_lists_what_the_filter_leaves_of_four_schedules() -> None:
    found = space(12, 32, 8)
    filtered = Filter.of(AVX2)
    wanted = [
        configuration_of(schedule, tiling)
        for schedule in (DNMM332, RPMMV, LPMM, TMM)
        for tiling in kept_space(schedule, 12, 8, 32, 2, filtered)
    ]
    assert list(found.configurations()) == wanted
    assert found.size() == len(wanted) == len({str(each) for each in wanted})


@pytest.mark.parametrize("tiling", [Tiling(2, 3, 4, 8, 5), ConvTiling(3, 4, 8, True)])
def test_configurations_are_their_tilings(tiling: Tiling | ConvTiling) -> None:
    assert tiling_of(configuration_of(TMM, tiling)) == tiling


def test_points_are_commands_that_compute_the_same() -> None:
    found, random = space(12, 32, 8), Random(4)
    drawn = [point for point in (found.sample(random) for _ in range(4)) if point is not None]
    near = list(islice(found.neighbours(drawn[0], random), 2))
    for point in (*drawn, *near):
        assert_same(product_program(12, 32, 8), point.candidate.program, seeds=(0,))
        assert point.origin == point.knobs["schedule"]
        assert found.subject.after(point.candidate.commands).key == point.key
    for point in near:
        assert sum(point.knobs[name] != value for name, value in drawn[0].knobs.items()) == 1


def test_a_pool_lists_them_and_knows_what_was_drawn() -> None:
    pool = ListedPool(space(6, 16, 4), AVX2, Rates(1e11, 1e11, 1e10, 1e10), 2, 2**25)
    assert isinstance(pool, Listed)
    (first, *_) = pool.configurations()
    draw = pool.at(first)
    assert draw is not None and draw.point.knobs == first and draw.predicted > 0
    assert pool.at(first) is None


def test_a_chosen_schedule() -> None:
    assert {each["schedule"] for each in space(12, 32, 8, schedules=(RPMMV,)).every} == {RPMMV}


def test_convolutions_have_conv_opt() -> None:
    before = convolution(1, 16, 4, 2, 4, 3)
    subject = Subject.alone(before, "forward", ("net.", "program."), AVX2)
    found = Configurations(subject, (), 1)
    assert {each["schedule"] for each in found.every} == {CONVOPT}
    both = Configurations(subject, (), 1, (CONV, CONVOPT))
    assert both.size() == 3 * found.size()  # CONV's taps are copies, or not
    point = found.at(found.every[-1])
    assert point is not None and "parallel(" not in point.candidate.program.text
    assert_same(before, point.candidate.program, seeds=(0,))


@pytest.mark.parametrize("name", ["conv1_relu1 forward", "conv2 update"])
def test_tiles_do_not_cross_the_blocks_of_arrays(name: str) -> None:
    tunable = convolutions()[name]
    found = Configurations(tunable.subject, tunable.known.commands, 2)
    points = [found.at(each) for each in Random(1).sample(found.every, 3)]
    assert any(point is not None for point in points)


def test_products_in_blocks() -> None:
    tunable = fully_connected()["1 forward"]
    found = Configurations(tunable.subject, tunable.known.commands, 2)
    for each in Random(2).sample(found.every, 3):
        point = found.at(each)
        assert point is not None and point.candidate.layouts == tunable.known.layouts


def test_no_space_is_told() -> None:
    text = "for i in range(8):\n y[i] = x[i]"
    with pytest.raises(CommandError, match="no contraction"):
        Configurations(Subject.alone(program(text, x=(8,), y=(8,)), "forward", (), AVX2), (), 1)
    with pytest.raises(CommandError, match=r"no tile sizes fit program: .* no tile fits 2 cache lines"):
        space(8, 8, 8, filtered=Filter(8, 2))
