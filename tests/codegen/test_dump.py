"""Dumped stages: each runs by itself, consecutive ones agree, and a wrong one is found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from latte import BatchNormLayer, ConvLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.layers.fully_connected import FullyConnectedLayer
from swirl.dump import standalone
from swirl.dump.compare import compare_stages, differences
from swirl.dump.read import read_stage
from swirl.dump.write import contents, stage_text
from swirl.errors import LatteError
from swirl.ir.arithmetic import calls, philox
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import parse_program
from swirl.ir.operations import FUNCTIONS

RECIPES = {
    "conv": """
def forward(s, target):
    s.tile("value", dim=0, factor=4)
    s.interchange("forward", loop_vars=["y", "x"])
    s.parallelize("forward", "n")
""",
    "batch_norm": """
def forward(s, target):
    s.parallelize("forward", "c")
""",
    "fully_connected": "def forward(s, target): s.parallelize('forward', 'n')",
}


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the stages of a small net; its convolution has six channels in blocks of four."""
    folder = tmp_path_factory.mktemp("dump")
    recipes = tmp_path_factory.mktemp("recipes")
    for kind, text in RECIPES.items():
        (recipes / f"{kind}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWIRL_DUMP", str(folder))
        patch.setenv("LATTE_RECIPES", str(recipes))
        net = Net(2, seed=1)
        data, label = MemoryDataLayer(net, (3, 5, 4)), MemoryDataLayer(net, (1,))
        conv = ConvLayer(net, data, num_filters=6, kernel=3, stride=1, pad=1)
        norm = BatchNormLayer(net, conv)
        SoftmaxLossLayer(net, FullyConnectedLayer(net, norm, 3), label)
        net.compile(target="portable")
        yield folder


PHASES = [
    ("conv1", "forward"),
    ("conv1", "update"),
    ("batch_norm1", "forward"),
    ("batch_norm1", "backward"),
    ("batch_norm1", "update"),
    ("softmax_loss1", "forward"),
    ("softmax_loss1", "backward"),
]


def stages(dumped: Path, ensemble: str, phase: str) -> list[Path]:
    return sorted((dumped / ensemble / phase).glob("*.py"))


def test_every_stage_and_command_has_a_file(dumped: Path) -> None:
    names = [path.name for path in stages(dumped, "conv1", "forward")]
    first = "00_lowered.py 01_canonical.py 02_tile.py 03_interchange.py 04_parallelize.py 05_recipe.py"
    assert names[:6] == first.split()
    assert names[-1].endswith("_physical.py")
    folder = dumped / "conv1" / "forward"
    assert 'extern "C"' in (folder / "kernel.cpp").read_text()
    assert "kernel.cpp" in (folder / "command.txt").read_text()
    assert "interchange('forward', loop_vars=['y', 'x'])" in (folder / "03_interchange.py").read_text()


@pytest.mark.parametrize(("ensemble", "phase"), PHASES)
def test_consecutive_stages_agree(dumped: Path, ensemble: str, phase: str) -> None:
    files = stages(dumped, ensemble, phase)
    assert len(files) > 5
    for before, after in pairwise(files):
        found = compare_stages(before, after)
        assert found.agree, str(found)
        assert found.differences


@pytest.mark.parametrize(("ensemble", "phase"), PHASES)
def test_made_up_contents_are_worth_comparing(dumped: Path, ensemble: str, phase: str) -> None:
    stage = read_stage(stages(dumped, ensemble, phase)[0])
    given = stage.arrays()
    after = stage.run(given)
    changed = [name for name in given if not np.array_equal(given[name], after[name])]
    assert changed
    assert all(np.isfinite(after[name]).all() for name in changed)


def test_a_stage_runs_with_numpy_alone(dumped: Path, tmp_path: Path) -> None:
    """In a Python without other packages; stages print the same lines."""
    files = stages(dumped, "conv1", "forward")
    blocked = tmp_path / "swirl.py"
    blocked.write_text("raise ImportError('a dumped stage must not need swirl')")
    printed = {}
    for path in (files[0], files[-1]):
        command = [sys.executable, str(path), "--seed", "3", "--save", str(tmp_path / f"{path.stem}.npz")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        printed[path] = done.stdout
    first, last = (printed[path].splitlines() for path in (files[0], files[-1]))
    assert [line for line in last if line not in first] == [last[-1]] and last[-1].startswith("  items")
    assert len(last) == len(first) + 1
    assert "* value" in printed[files[0]] and "  weights" in printed[files[0]]
    saved = np.load(tmp_path / "00_lowered.npz")
    assert saved["conv1.value"].shape == (2, 6, 5, 4)


def test_a_stage_takes_what_another_one_saved(dumped: Path, tmp_path: Path) -> None:
    """Backward on the values that forward computed: buffers go by storage names."""
    saved = tmp_path / "forward.npz"
    forward, backward = (stages(dumped, "batch_norm1", phase)[0] for phase in ("forward", "backward"))
    run(forward, "--save", str(saved))
    assert run(backward, "--load", str(saved)) != run(backward)


def run(path: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(path), *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_stage_is_compiled_and_checked(dumped: Path) -> None:
    printed = run(stages(dumped, "conv1", "forward")[-1], "--check", "--compile")
    assert "compiled for portable" in printed
    assert printed.count("the same bits") == 5


def test_a_wrong_stage_is_named(dumped: Path, tmp_path: Path) -> None:
    right = dumped / "batch_norm1" / "forward" / "01_canonical.py"
    wrong = tmp_path / "wrong.py"
    wrong.write_text(right.read_text().replace("gamma[c] * ", "gamma[0] * "))
    assert wrong.read_text() != right.read_text()
    found = compare_stages(right, wrong)
    assert not found.agree and found.wrong is not None
    assert (found.wrong.name, found.wrong.first) == ("value", (0, 1, 0, 0))
    assert "first in value[0, 1, 0, 0]" in str(found)
    assert not compare_stages(right, wrong, target="portable").agree


def test_stages_of_an_earlier_compilation_are_replaced(tmp_path: Path) -> None:
    from swirl.dump.write import dump_stages
    from swirl.schedule.pipeline import Stage

    program = parse_program("for i in range(4): x[i] = 1.0", {"x": Buffer("x", (4,))})
    (tmp_path / "mine.txt").write_text("stays")
    dump_stages(tmp_path, [Stage("lowered", program, 0.0), Stage("canonical", program, 0.0)])
    dump_stages(tmp_path, [Stage("lowered", program, 0.0)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00_lowered.py", "mine.txt"]


def test_locals_and_layouts_come_back(tmp_path: Path) -> None:
    """Declarations are made explicit in the file, and are those of the grammar again when it is read."""
    buffers = {"x": Buffer("s.x", (3, 5), layout=Layout(((1, 4),))), "i": Buffer("s.i", (3,), "int32")}
    text = """
for n in parallel(3, schedule='dynamic,1'):
    acc: float32[2] = empty(2)
    count: int32[1] = empty(1)
    flag: bool = n > 0
    half: float32 = 0.5
    count[0] = 1
    acc[0] = half
    if flag:
        acc[0] += x[i[n], 1]
    x[n, 4] = acc[0]
"""
    program = parse_program(text, buffers)
    path = tmp_path / "stage.py"
    path.write_text(stage_text(program, 'a "title" \\ of it', buffers, False, contents(program)))
    stage = read_stage(path)
    assert stage.program.text == program.text
    assert stage.arrays()["i"].max() < 3
    assert compare_stages(path, path).agree


def test_the_padding_of_blocks_is_watched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    buffer = Buffer("s.x", (5,), layout=Layout(((0, 4),)))
    program = parse_program("for i in range(8): x[i // 4, i % 4] = 1.0", {"x": Buffer("s.x", (2, 4))})
    path = tmp_path / "stage.py"
    path.write_text(stage_text(program, "title", {"x": buffer}, True, {}))
    stage = read_stage(path)
    stage.run(stage.arrays())
    assert "the padding of x is no longer zero" in capsys.readouterr().err


def test_calls_mean_what_they_mean_in_the_compiler() -> None:
    theirs = calls("typed")
    nan = np.float32("nan")
    for dtype in (np.float32, np.float64):
        for name in ("abs", *(name for name, function in FUNCTIONS.items() if function.arguments == 1)):
            own = getattr(standalone, name)(dtype(2.6))
            assert own == theirs[name](dtype(2.6)) and type(own) is dtype
        assert standalone.pow(dtype(2.1), dtype(0.5)) == theirs["pow"](dtype(2.1), dtype(0.5))
    for name in ("min", "max"):
        assert np.isnan(getattr(standalone, name)(1.0, nan)) and np.isnan(getattr(standalone, name)(nan, 1.0))
        assert getattr(standalone, name)(1, 2, 3) == theirs[name](1, 2, 3)
    assert standalone.rand(7, 1, 2, 3) == np.float32((philox(7, 1, 2, 3) >> 8) * 2.0**-24)
    for number in (-1.5, 3e9, float("nan"), float("-inf")):
        assert standalone.int32(number) == theirs["int32"](number)


@pytest.mark.parametrize(
    ("text", "message"),
    [("x = 1", "is not a dumped stage"), ("raise ValueError('oh')", "ValueError: oh"), ("x = (", "SyntaxError")],
)
def test_files_that_are_no_stages(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "stage.py"
    path.write_text(text)
    with pytest.raises(LatteError, match=message):
        read_stage(path)
    with pytest.raises(LatteError, match="cannot be read"):
        read_stage(tmp_path / "missing.py")


def test_stages_without_a_common_buffer(dumped: Path, tmp_path: Path) -> None:
    first, second = stages(dumped, "conv1", "update")[0], stages(dumped, "softmax_loss1", "forward")[0]
    with pytest.raises(LatteError, match="compare stages of one ensemble and phase"):
        compare_stages(first, second)
    renamed = tmp_path / second.name
    renamed.write_text(second.read_text().replace("softmax_loss1_forward", "conv1_update").replace("inputs", "scores"))
    with pytest.raises(LatteError, match="have no buffer in common\n  compare stages of one ensemble and phase"):
        compare_stages(first, renamed)


def test_stages_of_different_programs(dumped: Path) -> None:
    """Layers with buffers of the same names and extents are still different."""
    first, second = stages(dumped, "conv1", "forward")[0], stages(dumped, "conv1", "inference")[0]
    with pytest.raises(LatteError) as caught:
        compare_stages(first, second)
    assert str(caught.value).splitlines() == [
        f"{first} is a stage of conv1_forward, {second} one of conv1_inference",
        "  compare stages of one ensemble and phase",
    ]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    from swirl.dump.write import dump_stages
    from swirl.schedule.pipeline import Stage

    (tmp_path / "file").write_text("")
    program = parse_program("for i in range(4): x[i] = 1.0", {"x": Buffer("x", (4,))})
    with pytest.raises(LatteError, match="cannot be written"):
        dump_stages(tmp_path / "file" / "conv1", [Stage("lowered", program, 0.0)])


def test_nan_and_infinity_are_compared() -> None:
    values = np.array([1.0, np.nan, np.inf], np.float32)
    (same,) = differences({"x": values}, {"x": values.copy()})
    assert same.same_bits
    (other,) = differences({"x": values}, {"x": np.array([1.0, 2.0, np.inf], np.float32)})
    assert other.first == (1,) and other.largest == np.inf
