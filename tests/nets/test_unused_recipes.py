"""Files in a folder of recipes whose names are nobody's are told, and those that are for other nets are not."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from latte import BatchNormLayer, ConvLayer, MemoryDataLayer, Net, ReLULayer
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.model.library_kinds import LIBRARY_KINDS
from latte.neuron import Neuron
from latte.planning.unused_recipes import unused_recipes
from latte.runtime.report import RecipeUnused
from latte.tools.bench.shipped_layers import SHIPPED
from latte.tools.library.entries import VOCABULARY

FORWARD = "def forward(s, target):\n    s.parallelize('forward', 'n')\n"
CHAIN = 'chain = ("conv", "relu")\n\ndef forward(s, target):\n    s.fuse_layers("forward")\n'


class TwiceAsMuchNeuron(Neuron):
    def forward(self) -> None:
        self.value = 2.0 * self.input


def net() -> Net:
    net = Net(2, seed=1)
    layer = ConvLayer(net, MemoryDataLayer(net, (2, 5, 5)), num_filters=3, kernel=3, pad=1)
    ReLULayer(net, BatchNormLayer(net, layer))
    return net


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LATTE_RECIPES", str(tmp_path))
    return tmp_path


def told(folder: Path, name: str, text: str = FORWARD) -> str:
    """What is said about a file of that name, alone in the folder; "" where nothing is."""
    file = folder / f"{name}.py"
    file.write_text(text)
    found = unused_recipes(net().graph)
    file.unlink()
    assert len(found) <= 1
    return str(found[0]).removeprefix(str(folder) + "/") if found else ""


def test_names_that_are_nobodys(folder: Path) -> None:
    nobody = "no kind of layer, and no chain of this net, is called"
    assert told(folder, "conv_batch_nrm") == (
        f"conv_batch_nrm.py: {nobody} 'conv_batch_nrm'; "
        "did you mean conv_batch_norm.py or conv_batch_norm_relu.py or batch_norm.py?"
    )
    assert told(folder, "mine") == (
        f"mine.py: {nobody} 'mine'; layers of this net are of the kinds batch_norm, conv, relu"
    )
    assert told(folder, "conv1") == (
        "conv1.py: files are named after kinds, not layers; conv.py, or net.use_recipe('conv1', path)"
    )
    assert told(folder, "conv_rel", CHAIN) == (
        "conv_rel.py: it declares the chain conv, relu, whose recipe has another name; call it conv_relu.py"
    )
    assert told(folder, "conv_batch_norm") == (
        "conv_batch_norm.py: it has the name of a chain, and declares none; chain = ('conv', 'batch_norm') at its top"
    )


def test_what_others_may_need_is_not_told(folder: Path) -> None:
    assert not told(folder, "conv")  # of this net
    assert not told(folder, "lstm")  # of the library
    assert not told(folder, "twice_as_much")  # of a class of this process
    assert not told(folder, "conv_relu", CHAIN)  # a chain that this net does not have
    assert not told(folder, "depthwise_gate", CHAIN.replace("conv", "depthwise").replace("relu", "gate"))
    assert not told(folder, "fully_connected_batch_norm_twice_as_much")  # which is refused where it is one
    assert not told(folder, "_tiles")
    assert not told(folder, "tiles", "WIDTH = 8\n")
    assert not told(folder, "not_python", "def forward(s, target:\n")
    (folder / "conv.py").write_text("from halves import forward\n")
    assert not told(folder, "halves")  # which a recipe imports


def test_a_kind_of_an_own_class(folder: Path) -> None:
    (folder / "twice_as_much.py").write_text(FORWARD)
    (folder / "twice_as_mush.py").write_text(FORWARD)
    own = Net(2)
    source = MemoryDataLayer(own, (3,))
    own.add_one_to_one_connections(source, own.add_ensemble(ActivationEnsemble(TwiceAsMuchNeuron, (3,))))
    assert [each.way_out for each in unused_recipes(own.graph)] == ["did you mean twice_as_much.py?"]


def test_it_is_told_once(folder: Path) -> None:
    for name in ("mine", "theirs"):
        (folder / f"{name}.py").write_text(FORWARD)
    made = net()
    with pytest.warns(
        RecipeUnused, match=r"no layer gets: .*mine\.py: .*\(and 1 more, in net\.report\.unused\)"
    ) as given:
        made.compile(target="portable")
    assert Path(given[0].filename).name == Path(__file__).name
    assert [each.path.name for each in made.report.unused] == ["mine.py", "theirs.py"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecipeUnused)
        made.session._for(1)  # another batch size is compiled, and nothing said
    assert len(made.report.unused) == 2


def test_nothing_is_told_without_a_folder_or_a_schedule(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.py").write_text(FORWARD)
    monkeypatch.setenv("LATTE_SCHEDULE", "0")
    assert not unused_recipes(net().graph)
    monkeypatch.delenv("LATTE_SCHEDULE")
    monkeypatch.delenv("LATTE_RECIPES")
    assert not unused_recipes(net().graph)


@pytest.mark.parametrize("name", list(SHIPPED))
def test_every_kind_of_the_library_is_known(name: str) -> None:
    case, made = SHIPPED[name], Net(2)
    words = {"dtype": "int32", "below": VOCABULARY} if case.source == "words" else {}
    case.declare(made, MemoryDataLayer(made, case.item(16, 4), **words))
    assert {layer.kind for layer in made.ensembles} - {"data"} <= LIBRARY_KINDS


def test_every_kind_of_a_class_of_the_library_is_known() -> None:
    of_library = [each for each in Ensemble.__subclasses__() if each.__module__.startswith("latte.layers")]
    assert of_library and {each.kind for each in of_library if each.kind} <= LIBRARY_KINDS
