"""The default schedule: layers without a recipe compute what their bodies say, on every target, wherever commands are
refused; it is a recipe; and it looks at dependences, strides and extents alone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from latte import MemoryDataLayer, Net, Neuron, TanhLayer
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.neuron import Param, ones, tanh
from latte.tools.bench.own_layers import OWN
from swirl.config import settings
from swirl.ir.buffers import Buffer
from swirl.schedule.pipeline import canonical_stages
from swirl.schedule.recipe import Recipe, Schedule
from swirl.schedule.rules import prefetch_and_stream
from swirl.schedule.rules.engine import run
from swirl.schedule.rules.order import PHASE
from swirl.schedule.rules.schedule import with_defaults
from swirl.schedule.rules.trials import Trials
from swirl.target.targets import TARGETS
from tests.fuzz.checks import random_pick
from tests.fuzz.commands import RECIPES, CommandMaker
from tests.fuzz.floats import ASSUME_FINITE, REORDER, floating_problem
from tests.fuzz.programs import ProgramMaker
from tests.lowered import lowered
from tests.schedule.rules.applied import default as under_default
from tests.schedule.rules.applied import net_of, results_of, scalar, scheduled, share_from
from tests.support import assert_compiles_to_same, assert_same, program, running_targets


@pytest.mark.parametrize(
    ("shape", "target"), [((8, 4, 6), "avx512"), ((8, 2, 18), "avx2")], ids=["short rows", "rows longer than a vector"]
)
@pytest.mark.parametrize("name", OWN)
def test_programs_compute_the_same(
    name: str, shape: tuple[int, ...], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly, over rationals; and with special values."""
    share_from(1, monkeypatch)  # these are small
    monkeypatch.setattr(prefetch_and_stream, "FAR", 1)
    net, _, layer = net_of(name, 2, shape)
    for _, before, after, commands in scheduled(net, layer, target):
        assert_same(before, after, seeds=(0,))
        assert {"vectorize", "parallelize"} <= {c.command.name for c in commands if c.status == "applied"}
        assert not scalar(after), f"loops that are left scalar: {scalar(after)}\n{after.text}"


def computed(name: str, target: str) -> tuple[list[np.ndarray], Net, Ensemble]:
    """The value of an own layer, and the gradients of its source and parameters; its net; and the layer."""
    net, data, layer = net_of(name, 3, (32, 26, 30))
    net.compile(target=target, threads=3)
    assert bool(net.explain(layer).commands) == settings().schedule
    parameters = [field for field, spec in layer.fields().items() if spec.role == "param"]
    found = [*results_of(net, data, layer), *(getattr(layer, f"get_grad_{p}")() for p in parameters)]
    return found, net, layer


@pytest.mark.parametrize("name", OWN)
def test_compiled_layers_compute_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients of the compiled layer, on each target that runs, beside those of its nests as they are; and
    the recipe that is shown of it on the last one gives the same nests.

    Sums of up to 25,000 terms in another order differ by less than 1e-4 of the greatest element.
    """
    share_from(1000, monkeypatch)  # so that threads are used
    with lowered():
        expected, _, _ = computed(name, "portable")
    for target in running_targets():
        found, net, layer = computed(name, target)
        for default, plain in zip(found, expected, strict=True):
            bound = 1e-4 * max(1.0, float(np.abs(plain).max()))
            np.testing.assert_allclose(default, plain, rtol=0, atol=bound, err_msg=target)
    (tmp_path / "copied.py").write_text(net.explain(layer).as_recipe())
    again, _, other = net_of(name, 3, (32, 26, 30))
    again.use_recipe(other, tmp_path / "copied.py")
    again.compile(target=target, threads=3)
    for one, two in zip(net.executable.compiled, again.executable.compiled, strict=True):
        assert one.program.text == two.program.text
    assert "default schedule (forward, backward" in net.explain(layer).recipe
    assert "default schedule" not in again.explain(other).recipe


def test_contractions_that_wait_for_each_other_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop around them is refused to be distributed; another loop of that name is not."""
    before = program(
        """
for n in range(2):
    for t in range(1, 4):
        for j in range(3):
            for k in range(3):
                a[n, t, j] += b[n, t - 1, k] * w[j, k]
                b[n, t, j] += a[n, t, k] * w[j, k]
    for t in range(1, 4):
        c[n, t] = a[n, t, 0]
""",
        a=(2, 4, 3),
        b=(2, 4, 3),
        c=(2, 4),
        w=(3, 3),
    )
    after, _ = under_default(before, monkeypatch)
    assert_same(before, after, seeds=(0,))


def test_loops_of_one_name_are_scheduled_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes of the first loop over i are refused, those of the second are not."""
    before = program(
        """
for n in range(3):
    for i in range(1, 12):
        y[n, i] = y[n, i - 1] * x[n, i]
    for i in range(1, 12):
        z[n, i] = x[n, i] + y[n, i]
""",
        x=(3, 12),
        y=(3, 12),
        z=(3, 12),
    )
    after, applied = under_default(before, monkeypatch)
    assert_same(before, after, seeds=(0,))
    assert "vectorize('forward', 'i_1', 8)" in applied and "parallelize('forward', 'n')" in applied


def test_what_is_refused_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the loops nor the order of what lanes and threads were refused for."""
    before = program(
        "for t in range(1, 20):\n for i in range(1, 9):\n  y[t, i] = y[t - 1, i] + y[t, i - 1] * x[t, i]",
        x=(20, 9),
        y=(20, 9),
    )
    after, applied = under_default(before, monkeypatch)
    assert applied == [] and after.text == before.text


@pytest.mark.parametrize("target", TARGETS)
def test_doubles_are_shared_but_no_vectors(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The targets with intrinsics have vectors of single precision only."""
    share_from(1, monkeypatch)
    before = program("for n in range(4):\n for i in range(20):\n  y[n, i] += x[n, i]", x=(4, 20), y=(4, 20))
    before = before.with_buffers(x=Buffer("net.x", (4, 20), "float64"))
    s = Schedule.alone({"forward": before}, TARGETS[target], "net.")
    run(PHASE, Trials(s, TARGETS[target], "forward"))
    applied = [outcome.command.name for outcome in s.outcomes if outcome.status == "applied"]
    assert "parallelize" in applied and ("vectorize" in applied) == (target == "portable")
    assert_compiles_to_same(s.programs["forward"], TARGETS[target])


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_end_and_compute_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pick = random_pick(seed)
    before = canonical_stages(ProgramMaker(pick).program(CommandMaker.shape(pick(RECIPES))))[-1].program
    after, applied = under_default(before, monkeypatch)
    # One step: what keeps bits is not claimed of the commands that add in another order.
    names = sorted({text.split("(")[0] for text in applied}, key=lambda name: name not in {*REORDER, *ASSUME_FINITE})
    found, _ = floating_problem([("", before), *((name, after) for name in names or ["tidy"])], seed)
    assert found is None, f"{found}\n{before.text}\n\n{after.text}"


def test_a_phase_without_a_function_gets_the_default_schedule(tmp_path: Path) -> None:
    (tmp_path / "forward.py").write_text("def forward(s, target):\n    s.parallelize('forward', 'n')\n")
    net, _, layer = net_of("prelu", 16, (8, 16, 16))
    net.use_recipe(layer, tmp_path / "forward.py")
    net.compile(target="portable")
    found = net.explain(layer)
    assert [c.text for c in found.commands if c.phase == "forward"] == ["parallelize('forward', 'n')"]
    assert any(c.text.startswith("vectorize") for c in found.commands if c.phase == "update")
    assert found.recipe.endswith("default schedule (backward, update)")


def test_a_recipe_leaves_the_rest_to_the_default_schedule(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def forward(s, target):\n    s.tile('value', 0, 4)\n    s.default('forward')\n"
        "def backward(s, target):\n    s.default('backward')\n"
    )
    net, _, layer = net_of("prelu", 16, (8, 16, 16))
    net.use_recipe(layer, tmp_path / "own.py")
    net.compile(target="portable")
    without, _, plain = net_of("prelu", 16, (8, 16, 16))
    without.compile(target="portable")
    commands = {
        phase: [c for c in net.explain(layer).commands if c.phase == phase] for phase in ("forward", "backward")
    }
    expected = [c.text for c in without.explain(plain).commands if c.phase == "backward"]
    assert [c.text for c in commands["backward"]] == expected and expected
    assert net.explain(layer).commands[0].location.endswith("own.py:2")
    assert {c.location for c in commands["forward"]} == {"default schedule"}


def test_the_default_schedule_in_a_chain(tmp_path: Path) -> None:
    """Of a layer's recipe that a chain's recipe builds on, in another phase."""
    (tmp_path / "tanh.py").write_text("def forward(s, target):\n    s.default('forward')\n")
    (tmp_path / "tanh_tanh.py").write_text(
        "chain = ('tanh', 'tanh')\n"
        "def forward(s, target):\n    s.fuse_layers('forward')\n    s.recipe('tanh', 'forward')\n"
        "def inference(s, target):\n    s.fuse_layers('inference')\n    s.recipe('tanh', 'forward', on='inference')\n"
    )
    net = Net(4)
    layers = [TanhLayer(net, MemoryDataLayer(net, (3, 4, 40)))]
    layers.append(TanhLayer(net, layers[0]))
    net.use_recipe("tanh", tmp_path / "tanh.py")
    net.use_recipe(layers, tmp_path / "tanh_tanh.py")
    net.compile(target="portable")
    texts = [c.text for c in net.explain("tanh1_tanh2").commands]
    for phase in ("forward", "inference"):
        assert any(text.startswith(f"vectorize('{phase}'") for text in texts), texts


def test_functions_of_a_recipe_come_first() -> None:
    def forward(s: Schedule, target: object) -> None: ...

    assert with_defaults(Recipe("own", {"forward": forward})).functions["forward"] is forward


class Gate(Neuron):
    """``x tanh(w x)``."""

    w = Param("c", init=ones)

    def forward(self) -> None:
        t = tanh(self.w * self.input)
        self.value = self.input * t


class Umbrella(Neuron):
    """The same in other words."""

    handle = Param("leaf", init=ones)

    def forward(self) -> None:
        rain = tanh(self.handle * self.input)
        self.value = self.input * rain


def test_names_mean_nothing() -> None:
    found = []
    for kind, dims in ((Gate, ("c", "y", "x")), (Umbrella, ("leaf", "bark", "root"))):
        net = Net(16, seed=0)
        net.force_backward = True
        data = MemoryDataLayer(net, (8, 16, 16))
        layer = net.add_ensemble(ActivationEnsemble(kind, data.shape, dims=dims))
        net.add_one_to_one_connections(data, layer)
        texts = [c.command.text for *_, commands in scheduled(net, layer, "avx512") for c in commands]
        names = {dims[0]: "A", dims[1] + dims[2]: "BC", dims[1]: "B", dims[2]: "C"}
        found.append([re.sub(r"'(\w+)'", lambda m, names=names: f"'{names.get(m[1], m[1])}'", t) for t in texts])
    assert found[0] == found[1] and len(found[0]) > 6


class RunningProduct(Ensemble):
    """Products of all elements so far: each needs the one before it."""

    def forward(self, inputs, value):  # type: ignore[no-untyped-def]
        N, C = inputs.shape
        for n in range(N):
            value[n, 0] = inputs[n, 0]
            for i in range(1, C):
                value[n, i] = value[n, i - 1] * inputs[n, i]


def test_a_recurrence_says_what_it_waits_for() -> None:
    net = Net(1, seed=0)
    data = MemoryDataLayer(net, (40000,))
    layer = net.add_ensemble(RunningProduct(shape=(40000,), dims=("i",)))
    net.add_one_to_one_connections(data, layer)
    net.compile(target="portable")
    shown = str(net.explain(layer, "forward"))
    assert "skipped  vectorize('forward', 'i'" in shown
    assert "i=1 writes value[n, 1], which i=2 reads" in shown
    assert "skipped  parallelize(" in shown
