"""What is refused, from declaration to run: the error says where and how to go on, and leaves nothing half done."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latte.planning.plan
from latte import FullyConnectedLayer, MaxPoolingLayer, MemoryDataLayer, Net, ReLULayer, SoftmaxLossLayer
from latte.autodiff.partials import Partials
from latte.ensemble import Ensemble
from latte.errors import (
    BodyError,
    CommandError,
    DeclarationError,
    DerivativeError,
    LatteError,
    MappingError,
    RecipeError,
    Refused,
    TargetError,
    UnknownName,
)
from latte.neuron import Neuron, eachindex
from latte.solver import SGD
from swirl.codegen.context import Unsupported
from swirl.codegen.emit import KernelSource
from swirl.ir.nest import Program
from swirl.schedule.pipeline import generate

HERE = Path(__file__).name


class Double(Neuron):
    def forward(self) -> None:
        self.value = 2.0 * self.inputs[0]


class Product(Neuron):
    def forward(self) -> None:
        product = 1.0
        for i in eachindex(self.inputs):
            product = product * self.inputs[i]
        self.value = product


class Printing(Neuron):
    def forward(self) -> None:
        print(self.inputs[0])


def relu_net() -> tuple[Net, Ensemble, Ensemble]:
    """data (4) → relu, not compiled."""
    net = Net(2, seed=1)
    data = MemoryDataLayer(net, (4,))
    return net, data, ReLULayer(net, data)


def runs(net: Net) -> None:
    """The net compiles and computes a ReLU of its data."""
    net.compile(threads=1)
    data, relu = net.ensembles[0], next(e for e in net.ensembles if e.kind == "relu")
    x = np.array([[-1, 0, 1, 2], [3, -4, 5, -6]], np.float32)
    data.set_value(x)
    net.forward()
    np.testing.assert_array_equal(relu.get_value(), np.maximum(x, 0))


def check(caught: pytest.ExceptionInfo[LatteError], *words: str, location: str | None = HERE) -> None:
    """The message has the words and the way out; the place names a line of the file that asked."""
    text = str(caught.value)
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
    if location is not None:
        assert caught.value.location is not None, text
        assert location in caught.value.location, caught.value.location


# --- declarations ------------------------------------------------------------------------------------------
MAPPINGS: dict[str, tuple[Callable[..., Any], str]] = {
    "not affine": (lambda c: (range(c * c, c * c + 1),), "affine"),
    "a comparison": (lambda c: (range(c, c + 1) if c > 2 else range(1),), "affine"),
    "leaves its source": (lambda c: (range(c, c + 2),), "leaves its source"),
    "two ranges for one dimension": (lambda c: (range(c, c + 1), range(1)), "range"),
    "no ranges": (lambda c: "all", "range"),
    "two arguments": (lambda c, y: (range(c, c + 1),), "argument"),
}


@pytest.mark.parametrize("case", MAPPINGS)
def test_mappings(case: str) -> None:
    mapping, word = MAPPINGS[case]
    net, data, _ = relu_net()
    ensemble = net.add_ensemble(Ensemble(Double, (4,), ("c",)))
    with pytest.raises(MappingError) as caught:
        net.add_connections(data, ensemble, mapping)
    check(caught, word)
    assert not ensemble.connections and len(net.connections) == 1
    net.add_connections(data, ensemble, lambda c: (range(c, c + 1),))  # mended
    runs(net)
    np.testing.assert_array_equal(ensemble.get_value()[0], [-2, 0, 2, 4])


def test_layers_that_are_refused_leave_no_trace() -> None:
    net, data, relu = relu_net()
    label = MemoryDataLayer(net, (1,))
    count = len(net.ensembles)
    for wrong in (
        lambda: MaxPoolingLayer(net, data),
        lambda: FullyConnectedLayer(net, relu, 0),
        lambda: SoftmaxLossLayer(net, relu, data),
        lambda: SoftmaxLossLayer(net, label, label),
        lambda: SoftmaxLossLayer(Net(2), relu, label),
        lambda: FullyConnectedLayer(net, "relu1", 3),
    ):
        with pytest.raises(DeclarationError) as caught:
            wrong()
        check(caught)
        assert len(net.ensembles) == count
    runs(net)


def test_a_cycle() -> None:
    net = Net(1)
    first, second = (net.add_ensemble(Ensemble(Double, (2,), ("c",))) for _ in range(2))
    net.add_one_to_one_connections(first, second)
    with pytest.raises(DeclarationError) as caught:
        net.add_one_to_one_connections(second, first)
    check(caught, "cycle", "double1 → double2 → double1")
    assert len(net.connections) == 1


@pytest.mark.parametrize("batch", [0, -1, 1.5, True, "2", None, 2**31])
def test_batch_size(batch: Any) -> None:
    with pytest.raises(DeclarationError) as caught:
        Net(batch)
    check(caught, "positive integer", repr(batch))


# --- compiling ---------------------------------------------------------------------------------------------
def test_an_empty_net_and_an_ensemble_that_reads_nothing() -> None:
    net = Net(2, seed=1)
    with pytest.raises(DeclarationError, match="no layers"):
        net.compile()
    data = MemoryDataLayer(net, (4,))
    lonely = net.add_ensemble(Ensemble(Double, (4,), ("c",)))
    with pytest.raises(DeclarationError, match=r"reads nothing(.|\n)*add_connections"):
        net.compile()
    assert not net.compiled
    net.add_connections(data, lonely, lambda c: (range(c, c + 1),))
    ReLULayer(net, data)
    runs(net)


def test_a_body_that_is_no_neuron_s() -> None:
    net, data, _ = relu_net()
    printing = net.add_ensemble(Ensemble(Printing, (4,), ("c",)))
    net.add_connections(data, printing, lambda c: (range(c, c + 1),))
    with pytest.raises(BodyError) as caught:
        net.compile(threads=1)
    check(caught, "print")
    assert not net.compiled


def test_what_cannot_be_differentiated_can_still_run_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_derivative(self: Partials, node: ast.expr, *_: object) -> None:
        raise DerivativeError(f"no derivative of `{ast.unparse(node)}`")

    monkeypatch.setattr(Partials, "walk", no_derivative)
    net, data, _ = relu_net()
    product = net.add_ensemble(Ensemble(Product, (1,), ("c",)))
    net.add_connections(data, product, lambda c: (range(1, 4),))
    net.force_backward = True
    with pytest.raises(DerivativeError) as caught:
        net.compile(threads=1)
    check(caught, "`value[n, c] = product` cannot be differentiated", location=f"{HERE}:49")
    net.force_backward = False  # no gradient is wanted
    runs(net)
    np.testing.assert_array_equal(product.get_value(), [[0], [120]])


def test_once_compiled_the_net_is_closed() -> None:
    net, data, relu = relu_net()
    runs(net)
    for forbidden, error in (
        (lambda: net.compile(), CommandError),
        (lambda: relu.parallelize("forward", "n"), CommandError),
        (lambda: relu.tile("value", 0, 8), CommandError),
        (lambda: net.use_recipe("relu", "relu.py"), CommandError),
        (lambda: ReLULayer(net, data), DeclarationError),
        (lambda: net.add_connections(data, relu, lambda c: (range(c, c + 1),)), DeclarationError),
    ):
        with pytest.raises(error) as caught:
            forbidden()
        check(caught, "compiled already", location=None)
    assert len(net.ensembles) == 2 and not relu.commands
    net.forward()


def test_nothing_runs_before_compile() -> None:
    net, data, relu = relu_net()
    x = np.zeros((2, 4))
    for early in (
        net.forward,
        net.test,
        net.backward,
        lambda: net.set_batch(x),
        lambda: net.evaluate(x, x),
        lambda: net.fit(x, x, solver=None),
        lambda: SGD(net),
        relu.get_value,
        relu.get_value_view,
        lambda: data.set_value(x),
        lambda: relu.set_grad(x),
    ):
        with pytest.raises(LatteError) as caught:
            early()
        check(caught, "compiled", "net.compile()", location=None)
    runs(net)


def test_target_and_threads() -> None:
    net, _, _ = relu_net()
    with pytest.raises(TargetError) as caught:
        net.compile(target="avx1024")
    check(caught, "avx1024", "avx512", "avx2", "portable", location=None)
    for threads in (0, -1, 1.5, "2", 10**6):
        with pytest.raises(LatteError) as caught:
            net.compile(threads=threads)
        check(caught, "threads", repr(threads), location=None)
    runs(net)


# --- commands ----------------------------------------------------------------------------------------------
def test_unknown_names_show_the_nearest() -> None:
    net, _, relu = relu_net()
    with pytest.raises(UnknownName) as caught:
        relu.paralelize("forward", "n")
    check(caught, "paralelize", "did you mean 'parallelize'?", "interchange")
    with pytest.raises(UnknownName) as caught:
        relu.get_valeu()
    check(caught, "valeu", "did you mean 'value'?", "grad")
    assert not hasattr(relu, "paralelize") and not hasattr(relu, "get_valeu")
    with pytest.raises(CommandError) as caught:
        relu.parallelize("foreward", "n")
    check(caught, "no phase named 'foreward'", "did you mean 'forward'?", "backward", "update")
    assert not relu.commands
    runs(net)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (lambda relu: relu.parallelize("forward", "m"), ("no loop named 'm'", "n", "c", "parallelize")),
        (lambda relu: relu.tile("valeu", 0, 8), ("no buffer named 'valeu'", "value", "inputs")),
        (lambda relu: relu.tile("value", 3, 8), ("value has dimensions 0 to 0, not 3",)),
        (lambda relu: relu.tile_loop("forward", "c", 0), ("tile_loop", "0")),
        (lambda relu: relu.vectorize("forward"), ("vectorize",)),
        (lambda relu: relu.vectorize("forward", "n", 16), ("vectorize",)),
        (lambda relu: relu.interchange("forward", "n", "n"), ("interchange",)),
    ],
)
def test_commands_that_fail_at_compile(command: Callable[[Ensemble], None], words: tuple[str, ...]) -> None:
    """They name the line that asked; without them the same net compiles."""
    net, _, relu = relu_net()
    command(relu)
    with pytest.raises((CommandError, LatteError)) as caught:
        net.compile(threads=1)
    check(caught, *words)
    assert not net.compiled
    relu.commands.clear()
    runs(net)


@pytest.mark.parametrize("phase", ["inference", "forward", "backward"])
def test_what_has_no_code_names_the_layer_and_its_body(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(program: Program, *arguments: Any, **options: Any) -> KernelSource:
        if program.name.endswith(f".{phase}"):
            raise Unsupported("no such vectors", ast.Name("x"), "another target")
        return generate(program, *arguments, **options)

    monkeypatch.setattr(latte.planning.plan, "generate", none)
    monkeypatch.setenv("SWIRL_MEMO", "0")  # nothing is known of such layers
    net = Net(2, seed=1)
    net.force_backward = True
    double = net.add_ensemble(Ensemble(Double, (4,), name="doubled"))
    data = MemoryDataLayer(net, (4,))
    net.add_connections(data, double, lambda k: (range(k, k + 1),))
    with pytest.raises(Unsupported) as caught:
        net.compile(target="portable", threads=1)
    line = Double.forward.__code__.co_firstlineno
    assert str(caught.value) == f"{__file__}:{line}: doubled, {phase}: no such vectors: x\n  another target"


def test_a_race_is_refused_with_its_witness() -> None:
    net = Net(2, seed=1)
    data = MemoryDataLayer(net, (4,))
    layer = FullyConnectedLayer(net, data, 3)
    layer.parallelize("update", "n")
    with pytest.raises(Refused) as caught:
        net.compile(threads=1)
    check(caught, "parallelize('update', 'n')", "for n in range(2):", "grad_")
    assert caught.value.witness and caught.value.nest
    assert not net.compiled


# --- recipes -----------------------------------------------------------------------------------------------
def written(folder: Path, text: str, name: str = "relu.py") -> Path:
    """A recipe file."""
    path = folder / name
    path.write_text(text)
    return path


GOOD = "def forward(s, target):\n    s.parallelize('forward', 'n')\n"
RECIPES = {
    "raises": ("def forward(s, target):\n    1 / 0\n", "ZeroDivisionError", ":2"),
    "raises at import": ("import nothing_of_this_name\n" + GOOD, "ModuleNotFoundError", ":1"),
    "is not Python": ("def forward(s, target)\n    pass\n", "not Python", ":1"),
    "defines no phase": ("def schedule(s, target):\n    pass\n", "no phase", None),
    "misspelt": ("def foreward(s, target):\n    pass\n", "did you mean 'forward'", ":1"),
    "unknown command": ("def forward(s, target):\n    s.paralelize('forward', 'n')\n", "parallelize", ":2"),
    "unknown loop": (
        "def forward(s, target):\n    s.parallelize('forward', 'm')\n",
        "no loop named 'm'",
        ":2",
    ),
    "wrong number of arguments": ("def forward(s):\n    pass\n", "forward", None),
}


@pytest.mark.parametrize("case", RECIPES)
def test_recipes_that_fail(case: str, tmp_path: Path) -> None:
    text, word, line = RECIPES[case]
    path = written(tmp_path, text)
    net, _, _ = relu_net()
    net.use_recipe("relu", path)
    with pytest.raises((RecipeError, CommandError)) as caught:
        net.compile(threads=1)
    check(caught, word, location="relu.py" + (line or ""))
    assert not net.compiled
    path.write_text(GOOD)  # mended
    runs(net)


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    net, _, relu = relu_net()
    with pytest.raises(CommandError, match=r"no ensemble or kind named 'rely'(.|\n)*relu1"):
        net.use_recipe("rely", tmp_path / "relu.py")
    net.use_recipe(relu, tmp_path / "relu.py")
    with pytest.raises(RecipeError, match="No such file") as caught:
        net.compile(threads=1)
    check(caught, location="relu.py")
    written(tmp_path, GOOD)
    runs(net)


def applied(net: Net, name: str = "relu1") -> list[str]:
    """The commands that were applied to an ensemble."""
    return [outcome.command.text for outcome in net.executable.plan.outcomes[name] if outcome.status == "applied"]


def test_whose_recipe_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of the ensemble, a file for it, a file for its kind, ``LATTE_RECIPES``, the shipped one."""
    folder = tmp_path / "folder"
    folder.mkdir()
    command = "def forward(s, target):\n    s.tile_loop('forward', 'c', {})\n"
    written(folder, command.format(5))
    of_kind = written(tmp_path, command.format(6), "kind.py")
    of_ensemble = written(tmp_path, command.format(7), "ensemble.py")
    monkeypatch.setenv("LATTE_RECIPES", str(folder))
    nets = []
    for level in range(4):
        net, _, relu = relu_net()
        if level >= 1:
            net.use_recipe("relu", of_kind)
        if level >= 2:
            net.use_recipe(relu, of_ensemble)
        if level >= 3:
            relu.tile_loop("forward", "c", 3)
        runs(net)
        nets.append(net)
    assert [applied(net) for net in nets] == [
        ["tile_loop('forward', 'c', 5)"],
        ["tile_loop('forward', 'c', 6)"],
        ["tile_loop('forward', 'c', 7)"],
        ["tile_loop('forward', 'c', 3)"],
    ]
    monkeypatch.setenv("LATTE_RECIPES", str(tmp_path / "no folder"))
    net, _, _ = relu_net()
    with pytest.raises(LatteError, match="LATTE_RECIPES"):
        net.compile(threads=1)
    monkeypatch.delenv("LATTE_RECIPES")
    runs(net)
