"""What a net has learned, saved and loaded: bit for bit, whole at any moment, refused where it does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors import numpy as safetensors

from latte import (
    BatchNormLayer,
    ConvLayer,
    FullyConnectedLayer,
    MemoryDataLayer,
    Net,
    PReLULayer,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.ensemble import ActivationEnsemble
from latte.errors import DataError, TrainingError
from latte.neuron import Neuron, rand
from latte.runtime.checkpoint import Checkpoint, read_file, write_file
from latte.solver import SGD

BATCH, ITEMS = 4, 10  # the last batch of an epoch is smaller
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.standard_normal((ITEMS, 3, 6, 6)).astype(np.float32)
LABELS = RANDOM.integers(0, 5, ITEMS)


class NoisyNeuron(Neuron):
    """Its value depends on the net's random numbers."""

    def forward(self) -> None:
        self.value = self.input * rand()


def declared(seed: int = 3) -> Net:
    """Convolution (ragged blocks), batch norm, random numbers, fully connected."""
    net = Net(BATCH, seed=seed)
    data, label = MemoryDataLayer(net, (3, 6, 6)), MemoryDataLayer(net, (1,))
    layer = ReLULayer(net, BatchNormLayer(net, ConvLayer(net, data, num_filters=17)))
    noise = net.add_ensemble(ActivationEnsemble(NoisyNeuron, layer.shape, kind="noise"))
    net.add_one_to_one_connections(layer, noise)
    SoftmaxLossLayer(net, FullyConnectedLayer(net, noise, 5), label)
    net.compile(threads=1)
    return net


def solver_of(net: Net, rate: float = 0.1) -> SGD:
    return SGD(net, learning_rate=rate, momentum=0.9, weight_decay=0.01)


def trained(net: Net, solver: SGD, epochs: int) -> list[float]:
    return net.fit(IMAGES, LABELS, solver=solver, epochs=epochs, progress=False).losses


def state_of(net: Net, solver: SGD) -> dict[str, bytes]:
    arrays = {**net.state_dict(), **solver.state().arrays}
    return {name: values.tobytes() for name, values in arrays.items()}


# --- going on ---------------------------------------------------------------------------------------------
@cache
def twins() -> tuple[Net, Net]:
    """Two nets that differ in their seeds, for all tests."""
    return declared(), declared(seed=99)


def test_training_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    """Parameters, statistics, momentum, the order of the data and the random numbers of layers."""
    start, path = tmp_path / "start.safetensors", tmp_path / "net.safetensors"
    whole, other = twins()
    solver = solver_of(whole)
    whole.save(start, solver)
    first = trained(whole, solver, 2)
    whole.save(path, solver)
    rest = trained(whole, solver, 2)

    its_solver = SGD(other, learning_rate=0.5)
    trained(other, its_solver, 1)  # what it has learned is replaced
    other.load(path, its_solver)
    assert other.seed == 3 and its_solver.learning_rate == 0.1 and its_solver.momentum == 0.9
    assert trained(other, its_solver, 2) == rest
    assert state_of(other, its_solver) == state_of(whole, solver)
    other.load(start, its_solver)
    assert trained(other, its_solver, 4) == first + rest


def test_a_net_that_has_loaded_tests_as_the_one_that_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    net, other = twins()
    trained(net, solver_of(net), 1)
    net.save(path)
    expected = net.evaluate(IMAGES, LABELS)
    weights = other.ensembles[2].get_weights_view()
    other.load(path)
    assert other.evaluate(IMAGES, LABELS) == expected
    np.testing.assert_array_equal(weights, net.ensembles[2].get_weights())  # a view that was held before


def test_gradients_count_as_cleared_after_loading(tmp_path: Path) -> None:
    net, _ = twins()
    solver = solver_of(net)
    trained(net, solver, 1)
    net.save(tmp_path / "net", solver)
    net.load(tmp_path / "net", solver)
    with pytest.raises(TrainingError, match="there are no gradients yet"):
        solver.step()
    with pytest.raises(TrainingError, match="backward needs the values"):
        net.backward()
    assert not net.ensembles[2].get_grad_weights().any()


# --- files that do not fit --------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def nets() -> tuple[Net, SGD]:
    net, _ = twins()
    solver = solver_of(net)
    trained(net, solver, 1)
    return net, solver


def unchanged(nets: tuple[Net, SGD], path: Path, *words: str) -> None:
    net, solver = nets
    before = state_of(net, solver)
    with pytest.raises(DataError) as caught:
        net.load(path, solver)
    for word in words:
        assert word in str(caught.value)
    assert Path(__file__).name in str(caught.value.location)
    assert state_of(net, solver) == before


def test_what_does_not_fit_is_named(nets: tuple[Net, SGD], tmp_path: Path) -> None:
    net, solver = nets
    path = tmp_path / "net"
    net.save(path)
    unchanged(nets, path, "has no state of a solver", "net.save(path, solver=solver)")
    content = read_file(path)
    for change, words in (
        ({"more.weights": np.zeros(3)}, ("has more.weights, which the net does not have",)),
        (
            {"conv1.weights": np.zeros((16, 3, 3, 3), np.float32)},
            ("weights is float32 (16, 3, 3, 3)", "and float32 (17, 3, 3, 3) in the net"),
        ),
        ({"conv1.weights": None}, ("has no conv1.weights, which the net has", "declare the net as")),
        ({"conv1.bias": np.zeros((17, 1))}, ("conv1.bias is float64 (17, 1)",)),
    ):
        tensors = {name: v for name, v in {**content.tensors, **change}.items() if v is not None}
        write_file(path, Checkpoint(tensors, content.about))
        unchanged(nets, path, *words)
    net.save(path, solver)
    content = read_file(path)
    about = {**content.about, "solver": {**content.about["solver"], "kind": "Adam"}}
    write_file(path, Checkpoint(content.tensors, about))
    unchanged(nets, path, "the state of a solver Adam, not of SGD", "load without a solver")


def test_damage_is_found_wherever_it_is(nets: tuple[Net, SGD], tmp_path: Path) -> None:
    """A bit that is not as it was: in a tensor, in the header, in the settings."""
    net, solver = nets
    path = tmp_path / "net"
    net.save(path, solver)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    before = state_of(net, solver)
    places = [*range(0, header, 7), *range(header, len(whole), 997)]
    for place in places:
        path.write_bytes(bytes([*whole[:place], whole[place] ^ 4, *whole[place + 1 :]]))
        with pytest.raises(DataError):
            net.load(path, solver)
    assert state_of(net, solver) == before
    in_bias = whole.index(np.float32(net.ensembles[3].get_gamma()[0]).tobytes(), header)
    path.write_bytes(bytes([*whole[:in_bias], whole[in_bias] ^ 1, *whole[in_bias + 1 :]]))
    unchanged(nets, path, "is damaged: batch_norm1.gamma has changed since it was saved")


@pytest.mark.parametrize("length", [0, 5, 8, 100, -1, -5000])
def test_a_file_that_is_cut_off(nets: tuple[Net, SGD], tmp_path: Path, length: int) -> None:
    net, solver = nets
    net.save(tmp_path / "net", solver)
    whole = (tmp_path / "net").read_bytes()
    (tmp_path / "net").write_bytes(whole[:length])
    words = ["is damaged, or is not a safetensors file"]
    if length < 0:
        header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
        assert any(f"it ends in {name}" for name in header)
        words.append("it ends in ")
    unchanged(nets, tmp_path / "net", *words)


def test_files_of_other_programs(nets: tuple[Net, SGD], tmp_path: Path) -> None:
    path = tmp_path / "net"
    safetensors.save_file({"conv1.weights": np.zeros((17, 3, 3, 3), np.float32)}, path)
    unchanged(nets, path, "was not written by net.save: its format is None", "net.load_state_dict")
    path.write_text("weights")
    unchanged(nets, path, "is not a safetensors file")
    unchanged(nets, tmp_path / "nothing", "cannot be read: No such file")
    unchanged(nets, tmp_path, "cannot be read: Is a directory")
    with pytest.raises(DataError, match="a file is given by its path, not 5"):
        nets[0].load(5)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="has no state to save"):
        nets[0].save(path, object())  # type: ignore[arg-type]
    assert path.read_text() == "weights"
    with pytest.raises(TrainingError, match="the net is not compiled"):
        Net(2).save(path)


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    nets: tuple[Net, SGD], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, solver = nets
    path = tmp_path / "net"
    net.save(path)
    old = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match="cannot be written: No space left on device\n  a file that was there before"):
        net.save(path, solver)
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]
    with pytest.raises(DataError, match="cannot be written: No such file"):
        net.save(tmp_path / "no" / "net")


def test_a_layer_may_be_called_solver(tmp_path: Path) -> None:
    net = Net(2, seed=1)
    PReLULayer(net, FullyConnectedLayer(net, MemoryDataLayer(net, (3,)), 3), name="solver")
    net.compile(threads=1)
    solver = SGD(net)
    net.save(tmp_path / "net", solver)
    net.load(tmp_path / "net", solver)


def test_solvers_and_paths_that_do_not_fit(nets: tuple[Net, SGD], tmp_path: Path) -> None:
    net, _ = nets
    other = solver_of(twins()[1])
    for call in (net.save, net.load):
        net.save(tmp_path / "net", nets[1])
        with pytest.raises(DataError, match="the solver trains another net"):
            call(tmp_path / "net", other)
        with pytest.raises(DataError, match="has no state to save"):
            call(tmp_path / "net", SGD)  # type: ignore[arg-type]
        for path in ("", "a\0b", "."):
            with pytest.raises(DataError, match="a file is given by its path"):
                call(path)


def test_links_and_modes_stay(nets: tuple[Net, SGD], tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    nets[0].save(link)
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o600
    nets[0].load(real)


# --- killed -----------------------------------------------------------------------------------------------
KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from latte.runtime.checkpoint import Checkpoint, read_file, write_file

path, written = Path(sys.argv[1]), 0
def content(number):
    about = {"seed": number, "step": 0, "shuffling": None, "solver": None}
    return Checkpoint({"a.weights": np.full((300, 301), number, np.float32)}, about)
write_file(path, content(0))
for number in range(1, 201):
    child = os.fork()
    if child == 0:
        while True:
            write_file(path, content(number))
    time.sleep(random.random() * 0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = read_file(path)
    (value,) = set(found.tensors["a.weights"].ravel().tolist())
    assert value == found.about["seed"] <= number
    written += value == number
write_file(path, content(0))
print(written, [left.name for left in path.parent.iterdir()])
"""


def test_killed_while_saving_200_times(tmp_path: Path) -> None:
    """The file is the old one or the new one, and what a killed process has left is removed."""
    command = [sys.executable, "-c", KILLED, str(tmp_path / "net")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    written, left = done.stdout.split(" ", 1)
    assert 0 < int(written) < 201 and left.strip() == "['net']"


# --- PyTorch ----------------------------------------------------------------------------------------------
NAMES = {
    "conv1.weights": "0.weight",
    "conv1.bias": "0.bias",
    "batch_norm1.gamma": "1.weight",
    "batch_norm1.beta": "1.bias",
    "batch_norm1.running_mean": "1.running_mean",
    "batch_norm1.running_var": "1.running_var",
    "fully_connected1.weights": "4.weight",
    "fully_connected1.bias": "4.bias",
}


def test_weights_go_to_pytorch_and_back() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 17, 3, padding=1),
        torch.nn.BatchNorm2d(17, eps=1e-3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(17 * 36, 5),
    )
    module(torch.from_numpy(IMAGES))  # running statistics of its own
    net = Net(BATCH, seed=1)
    data = MemoryDataLayer(net, (3, 6, 6))
    layer = ReLULayer(net, BatchNormLayer(net, ConvLayer(net, data, num_filters=17), epsilon=1e-3))
    scores = FullyConnectedLayer(net, layer, 5)
    net.compile(threads=1)
    net.load_state_dict(module.state_dict(), NAMES)
    module.eval()
    for batch in (IMAGES[:4], IMAGES[4:8]):
        net.set_batch(batch)
        net.test()
        expected = module(torch.from_numpy(batch)).detach().numpy()
        np.testing.assert_allclose(scores.get_value(), expected, atol=1e-5)
    halves = {name: tensor.to(torch.bfloat16) for name, tensor in module.state_dict().items()}
    net.load_state_dict(halves, NAMES)
    net.load_state_dict(module.state_dict(), NAMES)
    back = net.state_dict(NAMES, like=module.state_dict())
    for name, values in back.items():
        np.testing.assert_array_equal(values, module.state_dict()[name].numpy())
    module.load_state_dict({name: torch.from_numpy(values) for name, values in back.items()}, strict=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda names, state: names.update({"conv9.weights": "0.weight"}), "the net has no 'conv9.weights'"),
        (lambda names, state: state.pop("0.bias"), "there is no '0.bias', for conv1.bias"),
        (
            lambda names, state: state.update({"0.bias": np.zeros(16)}),
            r"0.bias of shape \(16,\) does not fit conv1.bias",
        ),
        (
            lambda names, state: state.update({"4.weight": np.zeros((5, 6, 6, 17))}),
            r"4.weight of shape \(5, 6, 6, 17\) does not fit fully_connected1.weights of shape \(5, 17, 6, 6\)",
        ),
        (lambda names, state: state.update({"0.bias": np.array(["x"] * 17)}), "real numbers are needed"),
        (
            lambda names, state: state.update({"0.weight": np.zeros((3, 17, 3, 3))}),
            r"0.weight of shape \(3, 17, 3, 3\) does not fit conv1.weights of shape \(17, 3, 3, 3\)",
        ),
    ],
)
def test_names_and_shapes_that_do_not_fit(
    nets: tuple[Net, SGD], change: Callable[[dict[str, str], dict[str, np.ndarray]], object], words: str
) -> None:
    net, solver = nets
    names, state = dict(NAMES), {theirs: net.state_dict()[ours] * 0 for ours, theirs in NAMES.items()}
    change(names, state)
    before = state_of(net, solver)
    with pytest.raises(DataError, match=words):
        net.load_state_dict(state, names)
    assert state_of(net, solver) == before


def test_two_tensors_under_one_name(nets: tuple[Net, SGD]) -> None:
    """``state_dict`` left one of them out, ``load_state_dict`` set both to the same."""
    net, _ = nets
    names = {"conv1.weights": "0.weight", "conv1.bias": "0.bias", "fully_connected1.bias": "0.bias"}
    before = net.state_dict()
    state = {"0.weight": before["conv1.weights"], "0.bias": before["conv1.bias"]}
    for call in (lambda: net.state_dict(names), lambda: net.load_state_dict(state, names)):
        with pytest.raises(
            DataError, match=r"conv1\.bias and fully_connected1\.bias are both called '0\.bias'"
        ) as told:
            call()
        assert __file__ in str(told.value.location)
    with pytest.raises(DataError, match="names are a dictionary"):
        net.state_dict({"conv1.weights": ["0.weight"]})  # type: ignore[dict-item]
    for name, values in net.state_dict().items():
        np.testing.assert_array_equal(values, before[name])
