"""Profiles: what they count, what they leave as it was, and every form in which they are shown."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from latte import (
    BatchNormLayer,
    ConvLayer,
    FullyConnectedLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.ensemble import Ensemble
from latte.errors import CommandError, DataError, TrainingError
from latte.profiling.nests import loop_nests
from latte.profiling.profile import Profile
from latte.profiling.rows import COMPUTE, MEMORY, Row
from latte.tools.cli import main
from latte.tools.synthetic_data import synthetic_batch
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, make_nest, parse_program
from swirl.ir.separate import separate

PLAIN = "def forward(s, target): pass\ndef backward(s, target): pass\ndef update(s, target): pass\n"
BATCH, CHANNELS, HEIGHT, WIDTH, FILTERS = 2, 3, 5, 4, 6


def declared() -> Net:
    """conv → ReLU → fully connected → loss, each by itself."""
    net = Net(BATCH, seed=1, keep="all")
    data, label = MemoryDataLayer(net, (CHANNELS, HEIGHT, WIDTH)), MemoryDataLayer(net, (1,))
    relu = ReLULayer(net, ConvLayer(net, data, num_filters=FILTERS, kernel=3, stride=1, pad=1))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, relu, 3), label)
    return net


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Net:
    plain = tmp_path_factory.mktemp("recipes") / "plain.py"
    plain.write_text(PLAIN)
    made = declared()
    for kind in ("conv", "relu", "fully_connected"):  # loops as they are declared: to be counted by hand
        made.use_recipe(kind, plain)
    made.compile(target="portable", threads=1)
    made.set_batch(np.random.default_rng(0).normal(size=(BATCH, CHANNELS, HEIGHT, WIDTH)), [0, 2])
    return made


@pytest.fixture(scope="module")
def found(net: Net) -> Profile:
    return net.profile(repeat=3)


def row(profile: Profile, ensemble: str, phase: str) -> Row:
    (wanted,) = (row for row in profile.rows if (row.ensemble, row.phase) == (ensemble, phase))
    return wanted


# --- what is counted ----------------------------------------------------------------------------------------
def test_every_kernel_of_a_training_step_has_a_row(net: Net, found: Profile) -> None:
    order = net.executable.order
    steps = [*order["forward"], *order["backward"]]
    assert [(row.ensemble, row.phase) for row in found.rows] == [(step.unit.name, step.phase) for step in steps]
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    assert found.seconds == pytest.approx(sum(row.seconds for row in found.rows))
    assert (found.target, found.threads, found.batch_size, found.repeat) == ("portable", 1, BATCH, 3)
    assert found.machine and found.peak > 0 and found.bandwidth > 0


def test_a_convolution_is_counted_as_by_hand(found: Profile) -> None:
    # A 3 × 3 kernel on one zero around: of 3 rows (columns), the first and the last position lose one.
    products = BATCH * FILTERS * CHANNELS * (3 * HEIGHT - 2) * (3 * WIDTH - 2)
    inputs, values = BATCH * CHANNELS * HEIGHT * WIDTH, BATCH * FILTERS * HEIGHT * WIDTH
    forward = row(found, "conv1", "forward")
    assert forward.operations == 2 * products
    assert forward.bytes == 4 * (inputs + values + FILTERS * CHANNELS * 9 + FILTERS)
    assert forward.exact


def test_a_relu_is_counted_as_by_hand(found: Profile) -> None:
    values = BATCH * FILTERS * HEIGHT * WIDTH
    forward, backward = row(found, "relu1", "forward"), row(found, "relu1", "backward")
    assert (forward.operations, forward.bytes) == (values, 4 * 2 * values)  # one maximum each
    assert (backward.operations, backward.bytes) == (0, 4 * 3 * values)
    assert backward.bound == MEMORY and backward.intensity == 0


def test_rates_and_limits_follow_from_the_counts(found: Profile) -> None:
    every = [*found.rows, *(nest for row in found.rows for nest in row.nests)]
    for one in every:
        compute, memory = one.operations / found.peak, one.bytes / found.bandwidth
        assert one.limit == max(compute, memory)
        assert one.bound == (COMPUTE if compute > memory else MEMORY)
        assert one.of_limit == pytest.approx(one.limit / one.seconds)
        assert one.gflop_per_second == pytest.approx(one.operations / one.seconds / 1e9)
        assert one.gb_per_second == pytest.approx(one.bytes / one.seconds / 1e9)
        assert one.share == pytest.approx(one.seconds / found.seconds)
        assert one.spread[0] <= one.seconds <= one.spread[1]


# --- nests --------------------------------------------------------------------------------------------------
def test_nests_are_listed_below_their_layer(net: Net, found: Profile) -> None:
    loss = row(found, "softmax_loss1", "forward")
    (step,) = (step for step in net.executable.order["forward"] if step.unit.name == "softmax_loss1")
    assert [nest.nest for nest in loss.nests] == [nest.label for nest in step.program.nests]
    assert len(loss.nests) == 3
    assert all("value" in nest.writes for nest in loss.nests) and "prob" in loss.nests[1].writes
    assert sum(nest.operations for nest in loss.nests) == loss.operations
    assert loss.separately == pytest.approx(sum(nest.seconds for nest in loss.nests))
    assert len(row(found, "relu1", "forward").nests) == 1


def separated(text: str) -> list[list[str]]:
    """The bodies of the programs that a nest of these statements is taken apart into."""
    buffers = {name: Buffer(name, (4,)) for name in "abc"}
    statements = [nest.body[0] for nest in parse_program(text, buffers).nests]
    program = Program("layer.forward", (make_nest("layer_forward_0", statements, buffers),), buffers)
    return [part.nests[0].body_text.splitlines() for _, part in separate(program)]


def test_a_nest_of_several_loops_is_taken_apart() -> None:
    first, second = ["for i in range(4):", "    a[i] = 0.0"], ["for i in range(4):", "    b[i] = a[i]"]
    assert separated("\n".join([*first, *second])) == [first, second]
    # A local that a loop declares is its own.
    first = ["for i in range(4):", "    t: float32 = b[i]", "    a[i] = t"]
    assert separated("\n".join([*first, *first])) == [first, first]


def test_straight_statements_stay_with_a_loop() -> None:
    loop = ["for i in range(4):", "    a[i] = 0.0"]
    around = ["b[0] = 0.0", *loop, "c[0] = 1.0"]
    assert separated("\n".join(around)) == [around]
    assert separated("\n".join([*around, *loop])) == [around[:-1], [around[-1], *loop]]
    assert separated("b[0] = 0.0\nc[0] = 1.0") == [["b[0] = 0.0", "c[0] = 1.0"]]


def test_loops_that_share_a_local_stay_together() -> None:
    before = ["for i in range(4):", "    c[i] = 0.0"]
    sharing = ["t: float32 = 0.0", "for i in range(4):", "    t += b[i]", "for i in range(4):", "    a[i] = t"]
    after = ["for i in range(4):", "    b[i] = a[i]"]
    assert separated("\n".join([*before, *sharing, *after])) == [before, sharing, after]


def test_labels_tell_the_loops_of_a_nest_apart() -> None:
    buffers = {name: Buffer(name, (4,)) for name in "ab"}
    text = "for i in range(4):\n    a[i] = 0.0\nfor i in range(4):\n    b[i] = 0.0"
    statements = [nest.body[0] for nest in parse_program(text, buffers).nests]
    program = Program("layer.forward", (make_nest("layer_forward_0", statements, buffers),), buffers)
    assert [label for label, _ in separate(program)] == ["layer_forward_0, loop 1", "layer_forward_0, loop 2"]


@pytest.fixture(scope="module")
def chained() -> tuple[Net, dict[str, Ensemble]]:
    """conv → batch norm → ReLU with the shipped recipes, after a training step."""
    net = Net(3, seed=1)
    conv = ConvLayer(net, MemoryDataLayer(net, (2, 6, 6)), num_filters=5, kernel=3, pad=1)
    norm = BatchNormLayer(net, conv)
    relu = ReLULayer(net, norm)
    net.compile(threads=2)
    generator = np.random.default_rng(0)
    net.set_batch(generator.normal(size=(3, 2, 6, 6)))
    relu.set_grad(generator.normal(size=(3, 5, 6, 6)))
    net.forward()
    net.clear_grad()
    net.backward()
    return net, {"conv": conv, "norm": norm, "relu": relu}


def contents(net: Net) -> dict[str, np.ndarray]:
    """All that may be read, as it is stored."""
    executable = net.executable
    return {name: executable.arrays[name].copy() for name, b in executable.buffers.items() if b.role != "temporary"}


def test_nests_apart_compute_what_the_layers_do(chained: tuple[Net, dict[str, Ensemble]]) -> None:
    """Bit for bit, from the same states."""
    net, _ = chained
    executable, arrays, runner = net.executable, net.executable.arrays, net.session.runner
    executable.pin_all()  # their contents are compared
    steps = [*executable.order["forward"], *executable.order["backward"]]
    nests = [nest for several in loop_nests(steps, executable.plan.target) for nest in several]
    assert len(nests) > len(steps)
    tables = [[arrays[nest.program.buffers[name].name] for name in nest.buffers] for nest in nests]
    apart = runner.phase([(nest.kernel, table) for nest, table in zip(nests, tables, strict=True)])
    given = {"data1.value", "relu1.grad"}
    before = contents(net)

    def after(run: Callable[[], None]) -> dict[str, np.ndarray]:
        for name, buffer in executable.buffers.items():
            if buffer.role in ("value", "grad") and name not in given:
                executable.write(name, np.ones(buffer.shape))
        run()
        result = contents(net)
        for name, array in before.items():
            arrays[name][...] = array
        return result

    def together() -> None:
        executable.run("forward")
        executable.run("backward")

    wanted = after(together)
    found = after(apart.run)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert any((wanted[name] != array).any() for name, array in before.items())  # a state, for one


# --- what is left as it was ---------------------------------------------------------------------------------
def test_nothing_in_the_net_changes(chained: tuple[Net, dict[str, Ensemble]]) -> None:
    """Values stay those of the parameters that ``forward`` has seen, whatever a solver has made of them since."""
    net, layers = chained
    layers["conv"].set_weights(2 * layers["conv"].get_weights())
    before, has_run, missing = contents(net), set(net.executable.has_run), set(net.executable.missing)
    shown = net.profile(repeat=1)
    assert {row.phase for row in shown.rows} == {"forward", "backward", "update"}
    for name, array in contents(net).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    assert (net.executable.has_run, net.executable.missing) == (has_run, missing)


def fully_connected() -> tuple[Net, Ensemble, Ensemble]:
    """Two layers and no loss."""
    net = Net(2, seed=1, keep="all")
    scores = FullyConnectedLayer(net, MemoryDataLayer(net, (4,)), 5)
    return net, scores, ReLULayer(net, scores)


@pytest.mark.usefixtures("as_lowered")
def test_a_profile_needs_no_forward_and_claims_none() -> None:
    net, _, relu = fully_connected()
    net.compile(target="portable")
    net.set_batch(np.ones((2, 4)))
    relu.set_grad(np.ones((2, 5)))
    assert net.profile(1).rows
    with pytest.raises(TrainingError, match="forward"):
        net.backward()


@pytest.mark.usefixtures("as_lowered")
def test_gradients_of_the_user_stay() -> None:
    """Also that of an inner layer, to which backward adds."""
    net, scores, relu = fully_connected()
    net.compile(target="portable")
    net.set_batch(np.ones((2, 4)))
    relu.set_grad(np.arange(10).reshape(2, 5))
    scores.set_grad(np.ones((2, 5)))
    net.forward()
    net.backward()
    before = contents(net)
    net.profile(2)
    for name, array in contents(net).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


# --- forms --------------------------------------------------------------------------------------------------
def test_a_profile_as_text(found: Profile) -> None:
    text = str(found)
    assert text.startswith(f"training step, batch size {BATCH}, portable, 1 thread of {found.machine}\n")
    assert "multiply-adds in registers" in text and "median of 3 rounds" in text
    for one in found.rows:
        assert one.ensemble in text and one.bound in text
    assert "  softmax_loss1_forward_1 → " in text and "100.0%" in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_narrow_terminal_gets_fewer_columns(found: Profile) -> None:
    shown = {}
    for width in (80, 120):
        text = io.StringIO()
        found.print(Console(file=text, width=width, force_terminal=True, color_system=None))
        shown[width] = text.getvalue()
        assert max(map(len, shown[width].splitlines())) <= width
        assert "softmax_loss1" in shown[width] and "of limit" in shown[width]
    assert "apart:" in shown[120] and "spread" in shown[120]
    assert "apart:" not in shown[80] and "spread" not in shown[80] and "kernels of their own" in shown[80]


def test_a_profile_goes_through_json(found: Profile) -> None:
    text = found.to_json()
    assert Profile.from_json(text) == found
    first = json.loads(text)["rows"][0]
    assert first["ensemble"] == "conv1" and first["of_limit"] == found.rows[0].of_limit
    assert first["nests"][0]["nest"] == "conv1_forward_0"


@pytest.mark.parametrize("text", ["", "3", "[]", "{}", '{"seconds": 1, "rows": [{}]}'])
def test_other_json_is_not_a_profile(text: str) -> None:
    with pytest.raises(DataError, match=r"not the JSON of a profile\n  Profile.to_json"):
        Profile.from_json(text)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_profile_as_a_page(found: Profile) -> None:
    page = found._repr_html_()
    for one in found.rows:
        assert f">{one.ensemble}</td><td>{one.phase}</td>" in page
    assert found.title in page and "softmax_loss1_forward_1 → " in page
    tags = _Tags()
    tags.feed(page)
    assert not tags.open


def test_a_profile_as_a_plot(found: Profile, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "roofline.png")
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG\r\n")
    found.plot(str(tmp_path / "roofline.svg"))
    drawn = (tmp_path / "roofline.svg").read_text()
    for one in found.rows:
        assert f"{one.ensemble} {one.phase}" in drawn
    assert found.title in drawn


# --- bad calls ----------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("as_lowered")
def test_calls_that_come_too_early() -> None:
    net = declared()
    with pytest.raises(TrainingError, match=r"not compiled\n  call net.compile\(\)"):
        net.profile()
    net.compile(target="portable")
    with pytest.raises(DataError, match=r"not set: data1, data2\n  call net.set_batch") as caught:
        net.profile()
    assert caught.value.location is not None and "test_profile.py" in caught.value.location
    net.ensembles[1].set_value(np.zeros((BATCH, 1)))
    with pytest.raises(DataError, match=r"not set: data1\n"):
        net.profile()


@pytest.mark.parametrize("repeat", [0, -1, 1.5, True, "3", None])
def test_numbers_of_rounds_that_do_not_exist(net: Net, repeat: object) -> None:
    with pytest.raises(CommandError, match="profile: repeat must be a whole number, at least 1, not"):
        net.profile(repeat)  # type: ignore[arg-type]


def test_plots_that_cannot_be(found: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="the path of a plot is a string or a Path, not 3"):
        found.plot(3)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(CommandError, match=r"needs matplotlib, which is not installed\n  pip install matplotlib"):
            found.plot(tmp_path / "roofline.png")
    pytest.importorskip("matplotlib")
    with pytest.raises(CommandError, match=r"roofline.txt: a plot's format(.|\n)*png"):
        found.plot(tmp_path / "roofline.txt")
    with pytest.raises(CommandError, match="there is no folder"):
        found.plot(tmp_path / "no_such" / "roofline.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(CommandError, match=r"folder.png cannot be written"):
        found.plot(tmp_path / "folder.png")


# --- command line -------------------------------------------------------------------------------------------
FILE = """
from latte import FullyConnectedLayer, MemoryDataLayer, Net, SoftmaxLossLayer

def net():
    net = Net(2, seed=1)
    data, label = MemoryDataLayer(net, (5,)), MemoryDataLayer(net, (1,))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, data, 4), label)
    return net
"""


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["profile", *map(str, arguments)])
    return result.exit_code, result.output


def test_the_command_shows_and_writes(tmp_path: Path) -> None:
    file, kept = tmp_path / "mine.py", tmp_path / "profile.json"
    file.write_text(FILE)
    status, output = call(file, "--repeat", 1, "--target", "portable", "--json", kept)
    assert status == 0, output
    assert "fully_connected1" in output and "update" in output
    profile = Profile.from_json(kept.read_text())
    assert output == f"{profile}\n"


def test_the_command_refuses_before_it_measures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "mine.py"
    file.write_text("raise SystemExit('it ran')")
    status, output = call(file, "--plot", tmp_path / "plot.txt")
    assert status == 1 and "a plot's format" in output
    file.write_text(FILE)
    status, output = call(file, "--repeat", 0, "--target", "portable")
    assert status == 1 and "at least 1, not 0" in output
    status, output = call(file, "--repeat", 1, "--target", "portable", "--json", tmp_path / "no_such" / "kept.json")
    assert status == 2 and "there is no folder" in output


def test_made_up_labels_are_class_numbers(net: Net) -> None:
    images, labels = synthetic_batch(net)
    assert images.shape == (BATCH, CHANNELS, HEIGHT, WIDTH) and labels.shape == (BATCH, 1)
    assert set(labels.ravel()) <= {0, 1, 2}


# --- beside the model ---------------------------------------------------------------------------------------
def test_each_nest_has_the_time_that_the_model_predicts(net: Net, found: Profile) -> None:
    for one in found.rows:
        assert one.predicted == pytest.approx(sum(nest.predicted for nest in one.nests))
        for nest in one.nests:
            assert nest.demand is not None and nest.slowest
            assert nest.demand.memory >= nest.bytes  # what is written counts twice
    assert found.level2 > 0 and found.level3 > 0
    products = BATCH * FILTERS * CHANNELS * (3 * HEIGHT - 2) * (3 * WIDTH - 2)
    (forward,) = row(found, "conv1", "forward").nests
    assert forward.demand is not None
    assert forward.demand.multiply_adds == products  # one by one
    assert forward.demand.lanes == pytest.approx(1 / 8)


def test_an_explanation_shows_measured_times_beside_the_model(net: Net, found: Profile) -> None:
    alone = net.explain("conv1")
    both = found.beside(alone)
    for phase in both.phases:
        measured = [nest.measured for nest in phase.nests]
        if phase.phase == "inference":
            assert measured == [None] * len(measured)
            continue
        rows = {nest.nest: nest for nest in row(found, "conv1", phase.phase).nests}
        assert measured == [rows[nest.label].seconds for nest in phase.nests]
        assert [nest.predicted for nest in phase.nests] == [rows[nest.label].predicted for nest in phase.nests]
    assert all(nest.measured is None for phase in alone.phases for nest in phase.nests)
    assert "model, µs" in str(both) and "model, µs" not in str(alone)
    assert "multiply-adds" in alone.summary() and "model, µs" in both._repr_html_()


def test_a_profile_of_another_net_is_refused(found: Profile) -> None:
    other = Net(BATCH, seed=1)
    other.force_backward = True
    ConvLayer(other, MemoryDataLayer(other, (CHANNELS, HEIGHT + 1, WIDTH)), num_filters=FILTERS, kernel=3, pad=1)
    other.compile(target="portable", threads=1)
    with pytest.raises(DataError, match="this profile is of another net: its nest conv1_forward_0"):
        found.beside(other.explain("conv1"))


def test_a_profile_from_before_the_model_has_no_times_for_it(net: Net, found: Profile) -> None:
    facts = json.loads(found.to_json())
    del facts["level2"], facts["level3"]
    for row in facts["rows"]:
        for one in (row, *row["nests"]):
            del one["demand"], one["predicted"], one["slowest"]
    before = Profile.from_json(json.dumps(facts))
    assert str(before.beside(net.explain("conv1"))) == str(net.explain("conv1"))


def test_explain_measures_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "small.py"
    file.write_text(
        "from latte import *\n"
        "net = Net(2, seed=1)\n"
        "net.force_backward = True\n"
        "ReLULayer(net, MemoryDataLayer(net, (3, 8)))\n"
    )
    shown = CliRunner().invoke(main, ["explain", str(file), "relu1", "--measure", "--target", "portable"])
    assert shown.exit_code == 0, shown.output
    assert "of the model" in shown.output
    alone = CliRunner().invoke(main, ["explain", str(file), "relu1", "--target", "portable"])
    assert "lanes used" in alone.output and "of the model" not in alone.output
