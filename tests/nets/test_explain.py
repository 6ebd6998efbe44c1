"""What the compiler did, in words, as JSON, and in times."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from latte import BatchNormLayer, ConvLayer, FullyConnectedLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.ensemble import Ensemble
from latte.explain.explanation import LoopFact, loop_facts
from latte.explain.showing import loop_lines
from swirl.analysis.work import Work
from swirl.errors import CommandError, TrainingError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program

RECIPE = """
def forward(s, target):
    s.tile("value", dim=0, factor=4)
    s.parallelize("forward", "n")
    s.vectorize("forward", "c", 16, optional=True)

def update(s, target):
    s.parallelize("update", "k")
"""


def declared(batch_size: int = 2) -> tuple[Net, dict[str, Ensemble]]:
    net = Net(batch_size, seed=1)
    layers: dict[str, Ensemble] = {
        "data": MemoryDataLayer(net, (3, 5, 4)),
        "label": MemoryDataLayer(net, (1,)),
    }
    layers["conv"] = ConvLayer(net, layers["data"], num_filters=6, kernel=3, stride=1, pad=1)
    layers["norm"] = BatchNormLayer(net, layers["conv"])
    layers["scores"] = FullyConnectedLayer(net, layers["norm"], 3)
    SoftmaxLossLayer(net, layers["scores"], layers["label"])
    return net, layers


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, dict[str, Ensemble], Path]:
    path = tmp_path_factory.mktemp("recipes") / "mine.py"
    path.write_text(RECIPE)
    plain = path.with_name("plain.py")
    plain.write_text("def update(s, target): pass")
    net, layers = declared()
    net.use_recipe("conv", path)
    for kind in ("batch_norm", "fully_connected"):  # the shipped ones are not part of this test
        net.use_recipe(kind, plain)
    net.compile(target="portable")
    generator = np.random.default_rng(0)
    net.set_batch(generator.normal(size=(2, 3, 5, 4)), np.array([0, 2]))
    return net, layers, path


def test_commands_come_with_their_outcome_and_place(compiled) -> None:
    net, layers, path = compiled
    found = net.explain(layers["conv"])
    facts = {(fact.text.split("(")[0], fact.phase): fact for fact in found.commands}
    assert facts["tile", ""].status == "applied"
    assert facts["tile", ""].location == f"{path}:3"
    assert facts["parallelize", "update"].status == "applied"
    skipped = facts["vectorize", "forward"]
    assert skipped.status == "skipped" and skipped.reason
    assert found.recipe == str(path)
    text = str(found)
    assert "skipped  vectorize('forward', 'c', 16, optional=True)" in text
    assert f"{path}:5" in text


def test_one_phase(compiled) -> None:
    net, *_ = compiled
    found = net.explain("conv1", "update")
    assert [phase.phase for phase in found.phases] == ["update"]
    assert [fact.text for fact in found.commands] == [
        "tile('value', dim=0, factor=4)",
        "parallelize('update', 'k')",
    ]
    assert net.explain("conv1", "update_internal") == found
    inference = net.explain("conv1", "inference")
    assert "parallelize('forward', 'n')" in [fact.text for fact in inference.commands]


def test_nests_loops_listing_and_command(compiled) -> None:
    net, *_ = compiled
    (forward,) = net.explain("conv1", "forward").phases
    assert forward.stages[:2] == ("lowered", "canonical") and forward.stages[-1] == "physical"
    assert "for n in parallel(2):" in forward.after_recipe
    assert "value[n, k_outer * 4 + k_inner, y, x]" in forward.after_recipe
    assert "value[n, k_outer, y, x, k_inner]" in forward.final
    assert forward.loops[0].variable == "n" and forward.loops[0].kind == "parallel" and forward.loops[0].trips == 2
    assert "#pragma omp parallel for" in forward.listing and "void conv1_forward(" in forward.listing
    assert "kernel.cpp -o kernel.so" in forward.command
    assert (Path(forward.folder) / "kernel.cpp").exists()
    (value,) = [buffer for buffer in forward.buffers if buffer.name == "value"]
    assert value.blocks == ((1, 4),) and "in blocks of 4" in str(forward)


def test_trip_counts() -> None:
    program = parse_program(
        """
for x in range(6):
    for k in range(max(0, 1 - x), min(3, 7 - x)):
        for i in range(2, 9, 3):
            y[x] += 1.0
""",
        {"y": Buffer("y", (6,))},
    )
    facts = [(fact.variable, fact.depth, fact.trips, fact.exact) for fact in loop_facts(program)]
    assert facts == [("x", 0, 6, True), ("k", 1, 3, False), ("i", 2, 3, True)]


def test_operations_and_bytes(compiled) -> None:
    net, *_ = compiled
    (forward,) = net.explain("conv1", "forward").phases
    rows, columns = 5 * 3 - 2, 4 * 3 - 2  # taps inside, per axis
    assert forward.work.exact and forward.work.operations == 2 * 2 * 6 * 3 * rows * columns
    bytes_of = {touched.buffer: touched.bytes for touched in forward.work.touched}
    # Six channels are in two blocks of four, but only the six are touched.
    assert bytes_of == {"value": 2 * 6 * 20 * 4, "inputs": 2 * 3 * 20 * 4, "weights": 6 * 27 * 4, "bias": 24}
    assert forward.loops[0].work.operations == forward.work.operations
    text = str(net.explain("conv1", "forward"))
    assert "in all:\n    9.36 kflop, 2.11 kB: value* 960 B, weights 648 B, inputs 480 B, bias 24 B" in text


class Balanced(HTMLParser):
    """Collects the text of a page, and notices tags that are not closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(("name", "phase"), [("conv1", None), ("conv1", "update"), ("data1", None)])
def test_a_notebook_shows_a_page(compiled, name: str, phase: str | None) -> None:
    net, *_ = compiled
    found = net.explain(name, phase)
    read = Balanced(found._repr_html_())
    assert not read.open
    for shown in found.phases:
        storage = (buffer.storage for buffer in shown.buffers)
        for text in (shown.listing, shown.final, shown.after_recipe, shown.command, *storage):
            assert text in read.text  # escaped, so that "<" and "&" arrive
    for command in found.commands:
        assert command.text in read.text and command.reason in read.text


def test_what_backward_keeps_is_told(compiled) -> None:
    net, *_ = compiled
    notes = net.executable.plan.notes["softmax_loss1"]
    found = net.explain("softmax_loss1")
    assert found.notes == notes
    assert all(note in str(found) for note in notes)


def test_commands_on_the_ensemble(compiled) -> None:
    net, layers = declared()
    layers["norm"].parallelize("forward", "c")
    for kind in ("conv", "batch_norm", "fully_connected"):
        net.use_recipe(kind, compiled[2].with_name("plain.py"))
    net.compile(target="portable")
    found = net.explain("batch_norm1", "forward")
    assert found.recipe.startswith("commands of batch_norm1")
    assert found.commands[0].location is not None and "test_explain.py" in found.commands[0].location


def test_json_holds_the_same(compiled) -> None:
    net, *_ = compiled
    found = net.explain("conv1", "forward")
    read = json.loads(found.to_json())
    assert read["ensemble"] == "conv1" and read["shape"] == [6, 5, 4]
    assert read["phases"][0]["listing"] == found.phases[0].listing
    assert read["commands"][0]["status"] == "applied"


def test_a_data_layer_computes_nothing(compiled) -> None:
    net, *_ = compiled
    assert "nothing is computed here" in str(net.explain("data1"))
    with pytest.raises(CommandError, match="data1 has no phase 'forward'"):
        net.explain("data1", "forward")


def test_wrong_names(compiled) -> None:
    net, *_ = compiled
    with pytest.raises(CommandError, match=r"no ensemble named 'conv'(.|\n)*did you mean 'conv1'\?(.|\n)*batch_norm1"):
        net.explain("conv")
    with pytest.raises(CommandError, match=r"conv1 has no phase 'forwards'(.|\n)*did you mean 'forward'\?"):
        net.explain("conv1", "forwards")
    other, layers = declared()
    with pytest.raises(CommandError, match="is not in this net"):
        net.explain(layers["conv"])
    with pytest.raises(TrainingError, match="not compiled"):
        other.explain("conv1")


# --- times --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("phase", ["forward", "inference", "backward"])
def test_timings_have_every_layer_and_change_nothing(compiled, phase: str) -> None:
    net, *_ = compiled
    net.forward()
    net.clear_grad()
    net.backward()
    before = {name: array.copy() for name, array in net.executable.arrays.items()}
    found = net.timings(phase, repeat=3)
    expected = [(item.ensemble.name, item.phase) for item in net.executable.order[phase]]
    assert [(layer.ensemble, layer.phase) for layer in found.layers] == expected
    assert sum(layer.share for layer in found.layers) == pytest.approx(1.0)
    assert sum(found.shares().values()) == pytest.approx(1.0)
    assert found.seconds == pytest.approx(sum(layer.seconds for layer in found.layers))
    for name, buffer in net.executable.buffers.items():
        if buffer.role in ("param", "param_grad", "state"):
            np.testing.assert_array_equal(net.executable.arrays[name], before[name], err_msg=name)


@pytest.mark.usefixtures("as_lowered")
def test_timings_need_no_forward_and_claim_none() -> None:
    net, _ = declared()
    net.compile(target="portable")
    assert net.timings("backward", 1).layers
    with pytest.raises(TrainingError, match="forward"):
        net.backward()


def test_timings_as_text_and_json(compiled) -> None:
    net, *_ = compiled
    found = net.timings(repeat=2)
    text = str(found)
    assert text.startswith("forward, batch size 2, ") and "median of 2 runs" in text
    assert "batch_norm1" in text and "%" in text
    assert json.loads(found.to_json())["layers"][0]["ensemble"] == "conv1"


def test_timings_refuse_what_they_cannot_do(compiled) -> None:
    net, *_ = compiled
    with pytest.raises(CommandError, match="no phase named 'update'"):
        net.timings("update")
    with pytest.raises(CommandError, match="at least 1"):
        net.timings(repeat=0)
    with pytest.raises(TrainingError, match="not compiled"):
        declared()[0].timings()


def test_columns_of_loops_stand_below_each_other_however_deep() -> None:
    work = Work(1, 1, True, ())
    facts = [LoopFact("nest", depth, "a_rather_long_name", "range", "", 2, True, work) for depth in (0, 9)]
    header, _, *lines = loop_lines(facts)
    assert len({line.index("1 flop") for line in lines}) == 1
    assert all(line.rindex("flop") + 4 == header.index("operations") + len("operations") for line in lines)
