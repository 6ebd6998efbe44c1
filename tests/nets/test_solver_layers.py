"""Settings of a solver for some layers or parameters: PyTorch's parameter groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte.errors import CommandError, DataError, DeclarationError, LatteError, UnknownName
from latte.solver import SGD, Adam, AdamW, CosineDecay, Kept, RMSProp, Setting, Solver, StepDecay
from tests.nets.test_solvers import against_torch, gradients, net_of, step

LAYERS = {"fully*": {"learning_rate": 0.003}, "*.bias": {"weight_decay": 0.0}, "conv1": {"learning_rate": 0.02}}
NAMES = ("conv1.weights", "conv1.bias", "fully_connected1.weights", "fully_connected1.bias")


def groups(parameters: Any, rates: dict[str, float], **of_biases: float) -> list[dict[str, Any]]:
    """A group for each parameter: the rate of its layer, and what is different for biases."""
    found = zip(NAMES, parameters, strict=True)
    return [
        {"params": [each], "lr": rates[name.split(".")[0]], **(of_biases if "bias" in name else {})}
        for name, each in found
    ]


CASES: dict[str, tuple[type[Solver], dict[str, Any], str, dict[str, Any]]] = {
    "sgd": (SGD, {"momentum": 0.9, "weight_decay": 0.1}, "SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    "adam": (Adam, {"weight_decay": 0.1}, "Adam", {"weight_decay": 0.1}),
    "adamw": (AdamW, {"weight_decay": 0.1}, "AdamW", {"weight_decay": 0.1}),
    "rmsprop": (RMSProp, {"weight_decay": 0.1}, "RMSprop", {"weight_decay": 0.1}),
}


@pytest.mark.parametrize("case", CASES)
def test_groups_are_pytorchs(case: str) -> None:
    ours, options, theirs, its_options = CASES[case]
    net = net_of()
    rates = {"conv1": 0.02, "fully_connected1": 0.003}
    against_torch(
        net,
        ours(net, 0.5, layers=LAYERS, **options),
        lambda torch, p: getattr(torch.optim, theirs)(groups(p, rates, weight_decay=0.0), **its_options),
    )


def test_switches_and_what_is_kept_may_differ() -> None:
    """Only some parameters look ahead, or have a mean: the others are computed as without it."""
    net = net_of()
    rates = {"conv1": 0.1, "fully_connected1": 0.1}
    against_torch(
        net,
        SGD(net, 0.1, momentum=0.9, layers={"*.bias": {"nesterov": True}}),
        lambda torch, p: torch.optim.SGD(groups(p, rates, nesterov=True), momentum=0.9),
    )
    net = net_of()
    rates = {"conv1": 0.01, "fully_connected1": 0.01}
    solver = RMSProp(net, epsilon=1e-3, layers={"*.bias": {"centered": True}})
    against_torch(
        net, solver, lambda torch, p: torch.optim.RMSprop(groups(p, rates, centered=True), eps=1e-3, alpha=0.99)
    )
    assert solver.state().arrays["mean.conv1.bias"].any() and not solver.state().arrays["mean.conv1.weights"].any()


def test_schedules_count_the_steps_of_the_solver() -> None:
    net = net_of()
    solver = SGD(net, 0.5, layers={net["conv1"]: {"learning_rate": StepDecay(0.1, 2, 0.5)}})
    net.freeze("conv1.weights")
    for number, rate in enumerate((0.1, 0.1, 0.05)):
        before, found = net.state_dict(), gradients(net, number)
        solver.step()
        now = net.state_dict()
        np.testing.assert_allclose(now["conv1.bias"], before["conv1.bias"] - rate * found["conv1.bias"], atol=1e-6)
    net.unfreeze("*")
    before, found = net.state_dict(), gradients(net)
    solver.step()
    wanted = before["conv1.weights"] - 0.05 * found["conv1.weights"]
    np.testing.assert_allclose(net.state_dict()["conv1.weights"], wanted, rtol=0, atol=1e-6)


class Warmed(Solver):
    """Its property is computed of the settings of a layer, and of the steps of a parameter."""

    rate = Setting(0.1)
    warm = Setting(4.0, least=1)
    kept = Kept()

    @property
    def share(self) -> float:
        return self.rate * min(1.0, self.step_number / self.warm)

    def update(self) -> None:
        self.kept = self.kept + self.share
        self.parameter -= 0.0 * self.gradient + self.share


def test_a_solver_of_ones_own_and_settings_set_later() -> None:
    net = net_of()
    solver, before = Warmed(net, layers={"*": {"warm": 2}, "conv*": {"warm": 1.0}}), net.state_dict()
    step(net, solver)
    solver.rate = 0.2
    net.freeze("conv1.bias")
    step(net, solver)
    net.unfreeze("conv1.bias")
    solver.layers = {"*.bias": {"rate": 1.0}}
    step(net, solver)
    moved = {"conv1.weights": 0.1 + 0.2 + 0.2 * 3 / 4, "conv1.bias": 0.1 + 2 / 4}
    moved |= {"fully_connected1.weights": 0.05 + 0.2 + 0.2 * 3 / 4, "fully_connected1.bias": 0.05 + 0.2 + 3 / 4}
    for name, values in net.state_dict().items():
        np.testing.assert_allclose(values, before[name] - moved[name], rtol=0, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(solver.state().arrays[f"kept.{name}"], moved[name], rtol=1e-5, err_msg=name)
    assert dict(solver.layers["*.bias"]) == {"rate": 1.0} and "layers={'*.bias'" in str(solver)
    net.unfreeze("*")


def test_clipping_is_for_the_gradients_that_train() -> None:
    net = net_of()
    solver = SGD(net, 1.0, clip_norm=0.1, layers={"conv1": {"learning_rate": 0.5}})
    net.freeze("conv1.weights")
    before, found = net.state_dict(), gradients(net)
    solver.step()
    assert "conv1.weights" not in found
    norm = np.sqrt(sum((each**2).sum() for each in found.values()))
    assert solver.gradient_norm == pytest.approx(norm, rel=1e-5)
    for name, gradient in found.items():
        rate = 0.5 if "conv1" in name else 1.0
        wanted = before[name] - rate * gradient * 0.1 / norm
        np.testing.assert_allclose(net.state_dict()[name], wanted, rtol=0, atol=1e-6, err_msg=name)
    net.unfreeze("*")


@pytest.mark.parametrize(
    ("layers", "kind", "message"),
    [
        ({"fc*": {}}, CommandError, r"layers: no layer is called 'fc\*'\n  .*the layers are data1"),
        ({"conv2": {}}, CommandError, r"no layer is called 'conv2'\n  did you mean 'conv1'"),
        ({"conv1.weight": {}}, CommandError, "did you mean 'conv1.weights'"),
        ({3: {}}, CommandError, "layers is for layers, their names, or patterns, not for 3"),
        ({"relu1": {"learning_rate": 1}}, DeclarationError, "relu1 has no parameters of its own"),
        ({"conv1": {"rate": 1}}, UnknownName, "SGD has no setting 'rate'"),
        ({"conv1": {"learning_rat": 1}}, UnknownName, "did you mean 'learning_rate'"),
        ({"conv1": {"learning_rate": -1}}, DeclarationError, "learning_rate must be a number, at least 0, not -1"),
        ({"conv1": {"nesterov": 1}}, DeclarationError, "nesterov must be True or False, not 1"),
        ({"conv1": {"nesterov": True}}, DeclarationError, "nesterov needs a velocity to look ahead along"),
        ({"conv1": {"clip_norm": 1.0}}, DeclarationError, "clip_norm applies to the gradients of all parameters"),
        ({"conv1": 0.1}, DeclarationError, "the settings of conv1 must be a dictionary, not 0.1"),
        ([("conv1", {})], DeclarationError, "layers must be a dictionary"),
    ],
)
def test_what_cannot_be_set(layers: Any, kind: type[LatteError], message: str) -> None:
    net = net_of()
    solver = SGD(net, 0.1, layers={"conv1": {"learning_rate": 0.2}})
    for act in (lambda: SGD(net, 0.1, layers=layers), lambda: setattr(solver, "layers", layers)):
        with pytest.raises(kind, match=message) as told:
            act()
        assert __file__ in str(told.value.location)
    assert dict(solver.layers["conv1"]) == {"learning_rate": 0.2}


# --- going on ---------------------------------------------------------------------------------------------
def test_settings_of_layers_are_saved(tmp_path: Path) -> None:
    net = net_of()
    schedule = CosineDecay(0.1, 20)
    solver = Adam(net, 0.01, layers={"fully*": {"learning_rate": schedule, "beta1": 0.8}, "*.bias": {"beta1": 0.5}})
    for number in range(3):
        step(net, solver, number)
    net.save(tmp_path / "net", solver)
    step(net, solver)
    expected = {**net.state_dict(), **solver.state().arrays}
    its_solver = Adam(net, layers={"conv1": {"learning_rate": 3.0}})
    net.load(tmp_path / "net", its_solver)
    assert str(its_solver) == str(solver)
    step(net, its_solver)
    for name, values in {**net.state_dict(), **its_solver.state().arrays}.items():
        assert values.tobytes() == expected[name].tobytes(), name


def test_states_that_do_not_fit() -> None:
    net = net_of()
    solver = SGD(net, 0.1, momentum=0.9)
    step(net, solver)
    good = solver.state()
    older = {name: value for name, value in good.settings.items() if name not in ("layers", "skipped")}
    solver.load_state(replace(good, settings=older))
    changes: list[tuple[dict[str, Any], str]] = [
        ({"layers": [["conv9", {"momentum": 0.5}]]}, "saved with settings of conv9: layers: no layer is called"),
        ({"layers": [["conv1", {"momentum": 2}]]}, "saved with settings of conv1: momentum must be"),
        ({"layers": [["conv1"]]}, "saved with settings of layers"),
        ({"layers": 3}, "saved with settings of layers 3"),
        ({"skipped": {"conv1.weights": 2}}, "skipped must have a number of steps, from 0 to 1, by parameter"),
        ({"skipped": ["conv1.weights"]}, "skipped must have a number of steps"),
    ]
    for change, message in changes:
        with pytest.raises(DataError, match=message):
            solver.load_state(replace(good, settings={**good.settings, **change}))
        assert solver.state().settings == good.settings


def test_what_fits_of_a_state_is_taken() -> None:
    """What does not begins anew, with its step number."""
    net = net_of()
    solver = Adam(net, 0.01)
    for number in range(2):
        step(net, solver, number)
    good = solver.state()
    arrays = {name: values for name, values in good.arrays.items() if name != "mean.conv1.bias"}
    arrays |= {"mean.fully_connected1.bias": np.zeros(3, np.float32), "mean.conv7.bias": np.zeros(3, np.float32)}
    left = solver.load_state(replace(good, arrays=arrays), strict=False)
    assert left and left.missing_keys == ["mean.conv1.bias"] and left.unexpected_keys == ["mean.conv7.bias"]
    assert left.mismatched_keys == [("mean.fully_connected1.bias", (3,), (5, 1))]
    now = solver.state()
    assert now.settings["skipped"] == {"conv1.bias": 2, "fully_connected1.bias": 2}
    for name, values in now.arrays.items():
        assert (values == (0 if "bias" in name else good.arrays[name])).all(), name
    assert not solver.load_state(good, strict=False) and solver.state().settings == good.settings
