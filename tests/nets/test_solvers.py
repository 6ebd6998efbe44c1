"""Solvers: PyTorch's parameters after some steps, settings, schedules, clipping, accumulation, one's own, resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import ConvLayer, FullyConnectedLayer, MemoryDataLayer, Net, ReLULayer, SoftmaxLossLayer
from latte.errors import BodyError, DataError, DeclarationError, TrainingError, UnknownName
from latte.runtime.checkpoint import read_file
from latte.solver import (
    SGD,
    Adam,
    AdamW,
    CosineDecay,
    Kept,
    OneCycle,
    RMSProp,
    Schedule,
    Setting,
    Solver,
    StepDecay,
    WarmUp,
)
from swirl.target.machine import resolve_target, why_not
from swirl.target.targets import TARGETS, get_target
from tests.support import running_targets

BATCH, STEPS = 4, 5
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.standard_normal((12, 3, 5, 6)).astype(np.float32)
LABELS = RANDOM.integers(0, 5, 12)
NETS: dict[str, tuple[Net, dict[str, np.ndarray]]] = {}


def net_of(target: str | None = None) -> Net:
    """A convolution of 17 filters, so that blocks are ragged, with its initial parameters; compiled once."""
    if target is not None and (reason := why_not(get_target(target))):
        pytest.skip(f"{target}: {reason}")
    key = resolve_target(target).name
    if key not in NETS:
        net = Net(BATCH, seed=1)
        data, label = MemoryDataLayer(net, (3, 5, 6)), MemoryDataLayer(net, (1,))
        layer = ReLULayer(net, ConvLayer(net, data, num_filters=17))
        SoftmaxLossLayer(net, FullyConnectedLayer(net, layer, 5), label)
        net.compile(threads=2, target=target)
        NETS[key] = net, net.state_dict()
    net, initial = NETS[key]
    net.load_state_dict(initial)
    return net


def gradients(net: Net, number: int = 0, clear: bool = True) -> dict[str, np.ndarray]:
    """Of a batch, in double precision, by parameter; of those that are not frozen."""
    chosen = slice(BATCH * (number % 3), BATCH * (number % 3 + 1))
    net.set_batch(IMAGES[chosen], LABELS[chosen])
    net.forward()
    if clear:
        net.clear_grad()
    net.backward()
    storage = {name: name.replace(".", ".grad_") for name in net.state_dict()}
    return {name: net.executable.read(g).astype(float) for name, g in storage.items() if g in net.executable.buffers}


def step(net: Net, solver: Solver, number: int = 0) -> None:
    gradients(net, number)
    solver.step()


def against_torch(
    net: Net, solver: Solver, make: Callable[[Any, Any], Any], before: Callable[[Any, Any], Any] | None = None
) -> None:
    """Both get our gradients; parameters may be apart by a few roundings of float32 in each step.

    Args:
        net: to be trained.
        solver: ours.
        make: torch and parameters → its optimiser, or that and its scheduler.
        before: torch and parameters → what is done to the gradients first.
    """
    torch = pytest.importorskip("torch")
    initial = net.state_dict()
    theirs = {name: torch.tensor(v.astype(float), requires_grad=True) for name, v in initial.items()}
    made = make(torch, list(theirs.values()))
    optimiser, scheduler = made if isinstance(made, tuple) else (made, None)
    for number in range(STEPS):
        for name, gradient in gradients(net, number).items():
            theirs[name].grad = torch.tensor(gradient)
        if before is not None:
            before(torch, list(theirs.values()))
        optimiser.step()
        if scheduler is not None:
            assert solver.learning_rate == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-12)  # type: ignore
            scheduler.step()
        solver.step()
    now = net.state_dict()
    for name, tensor in theirs.items():
        wanted = tensor.detach().numpy()
        # A quotient by a root of small squares is off by some roundings of itself; a step of it is at most some 0.1.
        np.testing.assert_allclose(now[name], wanted, rtol=0, atol=2.0**-24 * 16, err_msg=name)
        assert abs(now[name] - initial[name]).max() > 1e-4


CASES: dict[str, tuple[Callable[..., Solver], dict[str, Any], str, dict[str, Any]]] = {
    "sgd": (SGD, {"momentum": 0.9, "weight_decay": 0.01}, "SGD", {"momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (
        SGD,
        {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
        "SGD",
        {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    ),
    "adam": (Adam, {"weight_decay": 0.01, "beta1": 0.8}, "Adam", {"weight_decay": 0.01, "betas": (0.8, 0.999)}),
    "adamw": (AdamW, {"weight_decay": 0.1, "epsilon": 1e-6}, "AdamW", {"weight_decay": 0.1, "eps": 1e-6}),
    "rmsprop": (
        RMSProp,
        {"decay": 0.9, "momentum": 0.5, "weight_decay": 0.01},
        "RMSprop",
        {"alpha": 0.9, "momentum": 0.5, "weight_decay": 0.01},
    ),
    "centered": (RMSProp, {"centered": True, "epsilon": 1e-3}, "RMSprop", {"centered": True, "eps": 1e-3}),
}


@pytest.mark.parametrize("target", running_targets())
@pytest.mark.parametrize("case", CASES)
def test_solvers_are_pytorchs(case: str, target: str) -> None:
    ours, options, theirs, its_options = CASES[case]
    net = net_of(target)
    rate = 0.01 if ours is not SGD else 0.1
    solver = ours(net, learning_rate=rate, **options)
    against_torch(net, solver, lambda torch, p: getattr(torch.optim, theirs)(p, lr=rate, **its_options))


@pytest.mark.parametrize(("target", "root"), [("avx512", "_mm512_sqrt_ps"), ("avx2", "_mm256_sqrt_ps")])
def test_updates_are_vectorised(target: str, root: str) -> None:
    """Of all parameters, blocked ones too; the sums for the norm as well."""
    net = net_of(target)
    known = set(net.report.built)
    Adam(net, clip_norm=2.0, clip_value=0.125, weight_decay=0.375)
    texts = [(path.parent / "kernel.cpp").read_text() for path in net.report.built if path not in known]
    assert sum(root in text for text in texts) == 4  # parameters, of different sizes
    assert all(root[:7] in text for text in texts)

    class Turned(Solver):
        rate = Setting(0.1)

        def update(self) -> None:
            if self.gradient * 0.3125 > self.parameter:
                self.parameter -= self.rate

    known = set(net.report.built)
    Turned(net)
    texts = [(path.parent / "kernel.cpp").read_text() for path in net.report.built if path not in known]
    assert len(texts) >= 4 and all(root[:7] in text for text in texts)  # one's own, too


def test_clipping_by_norm_and_by_value() -> None:
    net = net_of()
    for options, clip in (
        ({"clip_norm": 0.3}, lambda torch, p: torch.nn.utils.clip_grad_norm_(p, 0.3)),
        ({"clip_norm": 1e6}, None),
        ({"clip_value": 0.01}, lambda torch, p: torch.nn.utils.clip_grad_value_(p, 0.01)),
    ):
        solver = SGD(net, 0.1, momentum=0.9, **options)
        against_torch(net, solver, lambda torch, p: torch.optim.SGD(p, lr=0.1, momentum=0.9), clip)
        found = gradients(net)
        solver.step()
        if "clip_norm" in options:
            norm = np.sqrt(sum((each**2).sum() for each in found.values()))
            assert solver.gradient_norm == pytest.approx(norm, rel=1e-5)
        net = net_of()
    solver.clip_norm, solver.clip_value = 0.2, None  # set later, or off again
    before, found = net.state_dict(), gradients(net)
    solver = SGD(net, 1.0, clip_value=1e-3, clip_norm=1e-2)
    solver.step()
    cut = {name: np.clip(each, -1e-3, 1e-3) for name, each in found.items()}  # the value first, then the norm
    norm = np.sqrt(sum((each**2).sum() for each in cut.values()))
    for name, values in net.state_dict().items():
        expected = before[name] - cut[name] * min(1, 1e-2 / (norm + 1e-6))
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6, err_msg=name)


def test_gradients_of_several_batches() -> None:
    """The mean of three, from their sum."""
    net = net_of()
    solver, before = SGD(net, 1.0), net.state_dict()
    each = [gradients(net, number) for number in range(3)]
    for number in range(3):
        gradients(net, number, clear=number == 0)
    solver.step(batches=3)
    for name, values in net.state_dict().items():
        expected = before[name] - sum(found[name] for found in each) / 3
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6, err_msg=name)
    for wrong in (0, 1.5, True, "two"):
        with pytest.raises(DataError, match=f"batches must be a whole number, at least 1, not {wrong!r}"):
            solver.step(batches=wrong)  # type: ignore[arg-type]


# --- schedules --------------------------------------------------------------------------------------------
SCHEDULES: dict[str, tuple[Schedule, float, Callable[[Any, Any], Any]]] = {
    "step": (StepDecay(0.1, 2, 0.5), 0.1, lambda lr, o: lr.StepLR(o, 2, 0.5)),
    "cosine": (CosineDecay(0.1, 7, 0.01), 0.1, lambda lr, o: lr.CosineAnnealingLR(o, 7, 0.01)),
    "one cycle": (OneCycle(0.2, 6), 0.1, lambda lr, o: lr.OneCycleLR(o, 0.2, total_steps=6, cycle_momentum=False)),
    "warm-up": (WarmUp(3, 0.1, start=0.25), 0.1, lambda lr, o: lr.LinearLR(o, 0.25, total_iters=3)),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_schedules_are_pytorchs(case: str) -> None:
    schedule, rate, theirs = SCHEDULES[case]
    net = net_of()

    def made(torch: Any, parameters: Any) -> Any:
        optimiser = torch.optim.SGD(parameters, lr=rate)
        return optimiser, theirs(torch.optim.lr_scheduler, optimiser)

    against_torch(net, SGD(net, learning_rate=schedule), made)


def test_a_schedule_may_follow_a_rise_and_stays_at_its_end() -> None:
    schedule = WarmUp(4, CosineDecay(0.4, 10))
    assert [schedule.at(step) for step in (0, 2, 4, 9)] == pytest.approx([0, 0.2, 0.4, 0.2])
    assert schedule.at(14) == schedule.at(1000) == 0
    assert OneCycle(1.0, 10).at(10) == OneCycle(1.0, 10).at(9) == pytest.approx(1 / 25 / 1e4)
    assert OneCycle(1.0, 1).at(0) >= 0 and OneCycle(1.0, 3, rising=1).at(2) == 1
    assert OneCycle(1.0, 3, rising=0).at(0) <= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StepDecay(-1, 2), "StepDecay: rate must be a number, at least 0, not -1"),
        (lambda: StepDecay(0.1, 0), "every must be a whole number, at least 1, not 0"),
        (lambda: CosineDecay(0.1, 2.5), "steps must be a whole number"),
        (lambda: CosineDecay("fast", 2), "rate must be a number"),
        (lambda: CosineDecay(10**400, 2), "rate must be a number"),
        (lambda: OneCycle(0.1, 10**400), "steps must be a whole number, at least 1 below 2\\*\\*31, not 1000"),
        (lambda: CosineDecay(np.nan, 2), "rate must be a number"),
        (lambda: OneCycle(0.1, 3, rising=2), "rising must be a number from 0 to 1, not 2"),
        (lambda: OneCycle(0.1, 3, divisor=0), "divisor must be greater than 0"),
        (lambda: WarmUp(3, None), "then must be a number, at least 0, or a schedule, not None"),
        (lambda: Schedule(), "has no method at"),
    ],
)
def test_schedules_that_cannot_be(make: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(DeclarationError, match=message) as caught:
        make()
    assert __file__ in str(caught.value.location)


# --- settings ---------------------------------------------------------------------------------------------
def test_wrong_settings_are_refused_when_they_are_given() -> None:
    net = net_of()
    solver = Adam(net)
    for name, value, message in (
        ("learning_rate", -1, "learning_rate must be a number, at least 0, not -1"),
        ("learning_rate", "fast", "not 'fast'"),
        ("learning_rate", 10**400, "learning_rate must be a number, at least 0, not 1000"),
        ("learning_rate", None, "not None"),
        ("learning_rate", lambda step: 0.1, "or a schedule: "),
        ("beta1", 1, "beta1 must be a number, at least 0, less than 1, not 1"),
        ("epsilon", 0, "epsilon must be a number, greater than 0, not 0"),
        ("weight_decay", np.inf, "weight_decay must be"),
        ("clip_norm", 0, "clip_norm must be a number, greater than 0, or None, not 0"),
        ("clip_value", True, "clip_value must be"),
    ):
        for act in (lambda name=name, value=value: Adam(net, **{name: value}), lambda: setattr(solver, name, value)):  # noqa: B023
            with pytest.raises(DeclarationError, match=message) as caught:
                act()
            assert __file__ in str(caught.value.location)
    assert solver.learning_rate == 0.001 and solver.clip_norm is None
    for act in (lambda: setattr(solver, "learnig_rate", 1), lambda: SGD(net, learnig_rate=1)):
        with pytest.raises(UnknownName, match=r"no setting 'learnig_rate'\n  did you mean 'learning_rate'") as told:
            act()
        assert __file__ in str(told.value.location)
    for name in ("update", "mean", "session", "steps"):
        with pytest.raises(UnknownName, match=f"no setting '{name}'"):
            setattr(solver, name, 1)
    nesterov = SGD(net, momentum=0.9, nesterov=True)
    with pytest.raises(DeclarationError, match="compiled into the solver"):
        nesterov.nesterov = False
    with pytest.raises(DeclarationError, match="nesterov must be True or False, not 1"):
        SGD(net, nesterov=1)  # type: ignore[arg-type]
    with pytest.raises(
        DeclarationError, match=r"nesterov needs a velocity to look ahead along.*\n  momentum=0.9, or nesterov=False"
    ) as caught:
        SGD(net, nesterov=True)
    assert __file__ in str(caught.value.location)


def test_a_schedule_that_gives_what_is_not_allowed() -> None:
    @dataclass(frozen=True)
    class Falling(Schedule):
        def at(self, step: int) -> float:
            return 1.0 - step

    net = net_of()
    solver = SGD(net, learning_rate=Falling())
    for number in range(2):
        step(net, solver, number)
    before = net.state_dict()
    with pytest.raises(TrainingError, match=r"Falling\(\) gives -1.0 in step 2, but learning_rate must be"):
        step(net, solver)
    np.testing.assert_array_equal(net.state_dict()["conv1.weights"], before["conv1.weights"])
    solver.learning_rate = 0.5
    step(net, solver)


def test_a_solver_needs_a_net_that_it_trains() -> None:
    for wrong in (SGD, "sgd", None):
        with pytest.raises(TrainingError, match="fit needs a solver, not"):
            net_of().fit(IMAGES, LABELS, solver=wrong, progress=False)
    pytest.importorskip("torch")
    from torch import nn, optim

    others = optim.SGD([nn.Parameter(nn.Linear(1, 1).weight)], 0.1)
    with pytest.raises(TrainingError, match=r"SGD steps PyTorch's parameters(.|\n)*latte.solver has SGD"):
        net_of().fit(IMAGES, LABELS, solver=others, progress=False)
    with pytest.raises(DeclarationError, match="a solver needs the net that it trains, not None"):
        Adam(None)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="compiled net"):
        Adam(Net(2))


# --- one's own --------------------------------------------------------------------------------------------
HALF = 0.5


class Lion(Solver):
    """Chen et al., Symbolic Discovery of Optimization Algorithms, 2023: steps of one size."""

    learning_rate = Setting(1e-4)
    beta1, beta2 = Setting(0.9, most=1), Setting(0.99, most=1)
    mean = Kept()

    def update(self) -> None:
        direction = self.beta1 * self.mean + (1 - self.beta1) * self.gradient
        if direction > 0:
            self.parameter -= self.learning_rate
        if direction < 0:
            self.parameter += self.learning_rate
        self.mean = self.beta2 * self.mean + (1 - self.beta2) * self.gradient


class Shift(Solver):
    """Moves what is zero, too: padding of blocked parameters must not follow. Its names are those of the nest."""

    i = Setting(0.25)
    scale = 2.0

    @property
    def halved(self) -> float:
        return self.i * HALF / self.step_number

    def update(self) -> None:
        gradient = self.gradient * 0
        parameter = gradient + self.halved * HALF * self.scale
        self.parameter += parameter


@pytest.mark.parametrize("target", TARGETS)
def test_a_solver_of_ones_own(target: str) -> None:
    net = net_of(target)
    solver = Lion(net, learning_rate=0.01)
    expected, mean = net.state_dict(), dict.fromkeys(net.state_dict(), np.float32(0))
    for number in range(3):
        for name, gradient in gradients(net, number).items():
            direction = 0.9 * mean[name] + 0.1 * gradient
            expected[name] = expected[name] - np.float32(0.01) * np.sign(direction)
            mean[name] = 0.99 * mean[name] + 0.01 * gradient
        solver.step()
    for name, values in net.state_dict().items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-6, err_msg=name)


class ShiftedSGD(SGD):
    """An update of its own: what is known of SGD's does not hold for it."""

    def update(self) -> None:
        self.parameter += 0.125 / self.step_number


@pytest.mark.parametrize("kind", [Shift, ShiftedSGD])
@pytest.mark.parametrize("target", TARGETS)
def test_padding_stays_zero(target: str, kind: type[Solver]) -> None:
    net = net_of(target)
    solver = kind(net)
    before = net.state_dict()
    step(net, solver)
    step(net, solver, 1)
    for name, values in net.state_dict().items():
        np.testing.assert_allclose(values, before[name] + 0.125 + 0.0625, rtol=0, atol=1e-6)
    for name, buffer in net.executable.buffers.items():
        if buffer.role == "param":
            memory = net.executable.arrays[name]
            logical = net.executable.read(name)
            assert np.count_nonzero(memory) == np.count_nonzero(logical), name


def written(body: str, folder: Path) -> type[Solver]:
    """A solver with these statements."""
    path = folder / "mine.py"
    lines = [
        "from latte.solver import *",
        "class Mine(Solver):",
        "    rate = Setting(0.1)",
        "    kept = Kept()",
        "    def update(self):",
    ]
    path.write_text("\n".join([*lines, *(f"        {line}" for line in body.splitlines())]))
    space: dict[str, Any] = {"__name__": "mine"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    return space["Mine"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("self.gradient = 1", r"mine.py:6: update of Mine cannot write self.gradient\n  it writes self.parameter"),
        ("self.rate *= 2", "cannot write self.rate"),
        ("self.kept = self.gradient", "mine.py:5: update of Mine leaves the parameters as they are"),
        ("self.parameter -= self.raet", r"self.raet is not a number(.|\n)*self.rate"),
        ("self.parameter -= self.kept[0]", "self.kept is one number"),
        ("self.parameter -= rate", "'rate' is not defined"),
        ("self.parameter -= rand()", "a solver cannot draw random numbers"),
        ("while True: self.parameter = 1", "cannot contain while"),
        ("for i in eachindex(self.kept): self.parameter = 1", "self.kept is one number"),
        ("self.parameter -= self.gradient * (1 / (self.rate - self.rate))", "divides by zero"),
    ],
)
def test_updates_that_cannot_be(body: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BodyError, match=message):
        written(body, tmp_path)(net_of())


def halved(number: float) -> float:
    return HALF * number


class WithHelpers(Solver):
    """Its update calls a function, and a method of its class."""

    rate = Setting(0.5)

    def decayed(self, by: float) -> float:
        return self.parameter * (1 - by)

    def update(self) -> None:
        self.parameter = self.decayed(self.rate * HALF) - halved(self.gradient)


def test_updates_call_functions() -> None:
    net = net_of()
    before, found = net.state_dict(), gradients(net)
    WithHelpers(net).step()
    for name, values in net.state_dict().items():
        expected = before[name] * 0.75 - 0.5 * found[name]
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6, err_msg=name)


def test_names_that_mean_something_else() -> None:
    for name in ("step", "state", "gradient", "session"):
        for declared in (Setting(0.1), Kept()):
            with pytest.raises(DeclarationError, match=f"Mine: '{name}' has another meaning") as caught:
                type("Mine", (Solver,), {name: declared})
            assert __file__ in str(caught.value.location)


def test_a_solver_without_update() -> None:
    with pytest.raises(DeclarationError, match="Nothing has no update"):
        type("Nothing", (Solver,), {})(net_of())


# --- going on ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Root(Schedule):
    rate: float

    def at(self, step: int) -> float:
        return float(self.rate / (1 + step) ** 0.5)


@dataclass
class Halving(Schedule):
    """As Root, but not frozen."""

    rate: float
    every: int = 2

    def at(self, step: int) -> float:
        return float(self.rate * 0.5 ** (step // self.every))


class Tenth(Schedule):
    """Without fields."""

    def at(self, step: int) -> float:
        return 0.1


RESUMED: dict[str, Callable[[Net], Solver]] = {
    "SGD": lambda net: SGD(net, StepDecay(0.1, 3), momentum=0.9, nesterov=True, clip_norm=1.0),
    "Adam": lambda net: Adam(net, WarmUp(3, CosineDecay(0.01, 20)), clip_value=0.1),
    "AdamW": lambda net: AdamW(net, OneCycle(0.01, 10)),
    "RMSProp": lambda net: RMSProp(net, Root(0.01), momentum=0.5, centered=True),
    "SGD, own schedule that is not frozen": lambda net: SGD(net, Halving(0.1)),
    "SGD, own schedule without fields": lambda net: SGD(net, WarmUp(2, Tenth())),
    "SGD, own schedule in another": lambda net: SGD(net, WarmUp(2, Root(0.1))),
    "Lion": lambda net: Lion(net, learning_rate=0.01),
}


@pytest.mark.parametrize("kind", RESUMED)
def test_a_saved_solver_goes_on_to_the_last_bit(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "net"
    net = net_of()
    solver = RESUMED[kind](net)
    for number in range(4):
        step(net, solver, number)
    net.save(path, solver)
    for number in range(3):
        step(net, solver, number)
    expected = {**net.state_dict(), **solver.state().arrays}
    net = net_of()
    its_solver = RESUMED[kind](net)
    step(net, its_solver)
    if kind == "Adam":
        its_solver.learning_rate, its_solver.clip_value = 0.5, None  # type: ignore[attr-defined]
    net.load(path, its_solver)
    assert its_solver.step_number == 5 and str(its_solver) == str(solver)
    for number in range(3):
        step(net, its_solver, number)
    found = {**net.state_dict(), **its_solver.state().arrays}
    for name, values in expected.items():
        assert found[name].tobytes() == values.tobytes(), name


def test_what_does_not_fit_leaves_the_solver_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "net"
    net = net_of()
    net.save(path, SGD(net, Root(0.1), momentum=0.9, nesterov=True))
    for solver, message in (
        (SGD(net, momentum=0.25), r"a schedule Root\(rate\), which is not known here"),
        (SGD(net, Root(1.0), momentum=0.25), r"saved with nesterov=True\n  SGD\(net, …, nesterov=True\)"),
        (Adam(net), "the state of a solver SGD, not of Adam"),
    ):
        before = json.dumps(dict(solver.state().settings))
        with pytest.raises(DataError, match=message):
            net.load(path, solver)
        assert json.dumps(dict(solver.state().settings)) == before
    assert read_file(path).about["solver"]["settings"]["learning_rate"] == {"schedule": "Root", "rate": 0.1}


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    net = net_of()
    solver = SGD(net, 0.1, momentum=0.5)
    step(net, solver)
    good = solver.state()
    name = next(iter(good.arrays))
    for state, message in (
        (3, r"is what solver.state\(\) has returned, not 3"),
        (Adam(net).state(), "the state of a solver Adam, not of SGD"),
        (replace(good, arrays={}), f"the state has no {name}"),
        (
            replace(good, arrays={**good.arrays, name: np.zeros(1, np.float32)}),
            rf"{name} is float32 \(1,\) in the state",
        ),
        (replace(good, settings={**good.settings, "learning_rate": 0.7, "momentum": -1.0}), "momentum must be"),
        (replace(good, settings={**good.settings, "momentum": {"schedule": "StepDecay", "rate": -1}}), "StepDecay"),
        (replace(good, settings={**good.settings, "steps": None}), "steps must be a whole number"),
    ):
        with pytest.raises(DataError, match=message):
            solver.load_state(state)  # type: ignore[arg-type]
        now = solver.state()
        assert now.settings == good.settings
        assert all((now.arrays[each] == values).all() for each, values in good.arrays.items())


def test_schedules_of_ones_own_frozen_or_not(tmp_path: Path) -> None:
    net = net_of()
    assert Halving(0.1) == Halving(0.1) != Halving(0.2) and Root(0.1) == Root(0.1)
    rate = Halving(0.4)
    solver = SGD(net, rate)
    assert solver.learning_rate == 0.4
    rate.rate = 0.2
    assert solver.learning_rate == 0.2 and solver.state().settings["learning_rate"]["rate"] == 0.2
    rate.rate = [1]  # type: ignore[assignment]
    with pytest.raises(DeclarationError, match=r"Halving: rate cannot be saved .*, not \[1\]"):
        net.save(tmp_path / "net", solver)

    class Undeclared(Schedule):
        def __init__(self) -> None:
            self.rate = 0.1

        def at(self, step: int) -> float:
            return self.rate

    with pytest.raises(DeclarationError, match=r"Undeclared: rate is not declared(.|\n)*@dataclass") as caught:
        SGD(net, Undeclared())
    assert __file__ in str(caught.value.location)


def test_schedules_have_numbers_that_can_be_saved(tmp_path: Path) -> None:
    net = net_of()
    solver = SGD(net, Root(np.float32(0.5)))  # type: ignore[arg-type]
    net.save(tmp_path / "net", solver)
    assert type(solver.state().settings["learning_rate"]["rate"]) is float
    with pytest.raises(DeclarationError, match=r"Root: rate cannot be saved with a solver: .* not array"):
        solver.learning_rate = Root(np.ones(2))  # type: ignore[arg-type]
