"""PolyDL's tables, without their measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polydl
from click.testing import CliRunner
from searched import Bench

from latte.tools.tune.session import Machine
from swirl.cost.time import Rates
from swirl.target.targets import TARGETS
from swirl.tune.log import MEASURED, CandidateLine, Log, SubjectLine
from swirl.tune.polydl.caches import Hierarchy, Level
from swirl.tune.polydl.ranker import Ranker, layer_shapes
from swirl.tune.polydl.variants import Variants
from swirl.tune.ttile.microkernels import fitting

MACHINE = Machine(TARGETS["avx2"], 2, Rates(1e11, 1e11, 5e10, 1e10), 2**25, "", "")
CACHES = Hierarchy((Level(2**15, 1e-9, 2e11), Level(2**20, 4e-9, 1e11), Level(2**25, 2e-8, 5e10)), Level(0, 9e-8, 1e10))


def test_sizes_are_those_of_the_paper() -> None:
    assert {name: len(layers) for name, layers in polydl.NETS.items()} == {
        "resnet-50": 19,
        "fastrcnn": 25,
        "maskrcnn": 34,
    }
    for layers in polydl.NETS.values():
        assert all(channels % 16 == filters % 16 == 0 for _, _, channels, filters, *_ in layers)
    for rows, columns, length in polydl.PRODUCTS.values():
        assert 2 * rows * columns * length < 68e9


def test_products_have_a_default_order_and_a_micro_kernel_alone() -> None:
    for work in polydl.products("GNMT", MACHINE):
        space = Variants(work.subject, work.known.commands, tuple(fitting(16)), 2, CACHES, most=3)
        assert work.operations == 2 * np.prod(work.shape)
        tables = polydl.Tables(Bench(MACHINE, None, None, Path()), CACHES, 3, None)
        alone = tables._alone(space)
        assert alone is not None and alone.origin.count("_i") >= 2 and alone.knobs == {"alone": True}
        tile = dict(space.in_blocks(16).slot)
        assert tile == {"k": 16, "i": 16, "j": 16}
        assert space.scheme(space.default) in [each.scheme for each in space.drawn]


def test_a_convolution_has_one_image_a_thread() -> None:
    (work,) = polydl.convolutions(["resnet-50"], "19", 0, MACHINE)
    assert work.shape == (2, 2048, 7, 7, 512, 1, 1, 0)
    assert work.operations == 2 * 2 * 2048 * 7 * 7 * 512


def test_shares_of_the_fastest_variant() -> None:
    row = polydl.Row("net", "1", (1,), 10**9, 1.0, 4.0, 2.0, 0.0, 1.25, 0.0, 0.5, 0.8, 0.01, 5, 1)
    assert polydl.shares(row) == [0.25, 0.5, 0.0, 0.8, 0.0, 2.0, 2.0, 1.25]


def test_training_and_comparing(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for net in ("one", "other"):
        log.tell(SubjectLine(net, f"{net}/1", ("conv",), "forward", "avx2", 2, "this", "gcc", 2, {}, None))
        for number in range(5):
            knobs = {"statistics": [1.0, 2.0, 3.0, float(number)], "cost": 5 - number, "default": number == 1}
            log.tell(CandidateLine(net, str(number), "", knobs, [], MEASURED, "", [number + 1.0], [1.0]))
    log.close()
    weights = tmp_path / "weights.json"
    done = CliRunner().invoke(polydl.main, ["train", str(tmp_path), "--weights", str(weights), "--epochs", "2"])
    assert done.exit_code == 0, done.output
    found = Ranker.read(weights.read_text(), str(weights))
    assert [each.shape for each in found.weights] == layer_shapes() and found.card["trained on"] == {
        "one": 1,
        "other": 1,
    }
    done = CliRunner().invoke(polydl.main, ["compare", str(tmp_path), "--weights", str(weights)])
    assert done.exit_code == 0 and "equation 1" in done.output and "0.200" in done.output  # the dearest is the fastest
