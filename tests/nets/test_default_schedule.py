"""The default schedule: layers without a recipe compute what their bodies say, on every target, wherever commands are
refused; it is a recipe; and it looks at dependences, strides and extents alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docs.commands import nests as example
from latte import (
    ConvLayer,
    EmbeddingLayer,
    FullyConnectedLayer,
    InterpolationLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    Neuron,
    PermuteLayer,
    PositionwiseLinearLayer,
    ReshapeLayer,
    RNNLayer,
    ScaledDotProductAttentionLayer,
    SoftmaxLayer,
    TanhLayer,
    TransposedConvLayer,
)
from latte.autodiff.differentiated import layer_programs
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.neuron import Field, Param, constant, eachindex, exp, normal, ones, sigmoid, tanh
from latte.runtime.kernels import generated_kernels
from latte.tools.bench.assembly import counts, innermost_loops, instructions
from latte.tools.bench.own_layers import OWN
from swirl.analysis.accesses import parsed
from swirl.analysis.loop_facts import contractions, facts, residues, trips
from swirl.analysis.statements import statements_of
from swirl.codegen.emit import listing
from swirl.config import settings
from swirl.ir.affine import loop_range
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Loop, Program, names_in, parse_program
from swirl.ir.printing import unparse
from swirl.schedule.command_log import Outcome
from swirl.schedule.pipeline import canonical_stages
from swirl.schedule.recipe import Recipe, Schedule
from swirl.schedule.rules import blocking, nests, packing, panels, prefetch_and_stream, product
from swirl.schedule.rules.register_tiles import register_tile
from swirl.schedule.rules.schedule import PhaseSchedule, with_defaults
from swirl.schedule.rules.trials import Trials
from swirl.target.targets import TARGETS, Target
from tests.codegen.test_machine_code import target_named
from tests.fuzz.checks import random_pick
from tests.fuzz.commands import RECIPES, CommandMaker
from tests.fuzz.floats import ASSUME_FINITE, REORDER, floating_problem
from tests.fuzz.programs import ProgramMaker
from tests.lowered import lowered
from tests.nets.test_default_chains import planned
from tests.support import assert_compiles_to_same, assert_same, program, running_targets

NOTHING = "def forward(s, target): ...\ndef backward(s, target): ...\ndef update(s, target): ...\n"
"""A recipe that leaves the nests as they are."""


def net_of(name: str, batch: int, shape: tuple[int, ...]) -> tuple[Net, Ensemble, Ensemble]:
    """A net of data and an own layer, with gradients of the data."""
    net = Net(batch, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, shape[:2] if OWN[name].source == "sequence" else shape)
    return net, data, OWN[name].declare(net, data)


def scheduled(net: Net, layer: Ensemble, target: str | Target) -> Iterator[tuple[str, Program, Program, list[Outcome]]]:
    """Phase, canonical program, program after the default schedule, and its commands."""
    target = TARGETS[target] if isinstance(target, str) else target
    item = next(item for item in layer_programs(net.graph, net.batch_size) if item.ensemble is layer)
    programs = {phase: canonical_stages(p)[-1].program for phase, p in item.programs.items() if phase != "inference"}
    s = Schedule.alone(programs, target, f"{layer.name}.")
    for phase, before in programs.items():
        count = len(s.outcomes)
        PhaseSchedule(Trials(s, target, phase)).write()
        yield phase, before, s.programs[phase], s.outcomes[count:]


# --- it changes no result -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "target"), [((8, 4, 6), "avx512"), ((8, 2, 18), "avx2")], ids=["short rows", "rows longer than a vector"]
)
@pytest.mark.parametrize("name", OWN)
def test_programs_compute_the_same(
    name: str, shape: tuple[int, ...], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly, over rationals; and with special values."""
    monkeypatch.setattr(nests, "WORTH_SHARING", 1)  # these are small
    monkeypatch.setattr(prefetch_and_stream, "FAR", 1)
    net, _, layer = net_of(name, 2, shape)
    for _, before, after, commands in scheduled(net, layer, target):
        assert_same(before, after, seeds=(0,))
        assert {"vectorize", "parallelize"} <= {c.command.name for c in commands if c.status == "applied"}
        assert not scalar(after), f"loops that are left scalar: {scalar(after)}\n{after.text}"


def scalar(program: Program) -> list[str]:
    """Innermost loops without lanes that run more than once, and do not only fetch."""
    found = [f for nest in program.nests for f in facts(nest, program.buffers)]
    inner = [f for f in found if not any(o.nest is f.nest and f.contains(o) for o in found)]
    computing = [f for f in inner if any(statement.accesses for statement in f.inside)]
    return [f.var for f in computing if f.loop.kind in ("range", "parallel") and f.trips > 1]


def results_of(net: Net, data: Ensemble, layer: Ensemble) -> list[np.ndarray]:
    """The value of a layer of a compiled net, and the gradient of its data."""
    generator = np.random.default_rng(0)
    data.set_value(generator.standard_normal((net.batch_size, *data.shape)))
    net.forward()
    layer.set_grad(generator.standard_normal((net.batch_size, *layer.shape)))
    net.clear_grad()
    net.backward()
    return [layer.get_value(), data.get_grad()]


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
    monkeypatch.setattr(nests, "WORTH_SHARING", 1000)  # so that threads are used
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


def test_blocks_of_the_source_are_taken_over(tmp_path: Path) -> None:
    """The channels of the source are in blocks of a vector, the last one ragged. The gradients of its readers
    come to it one after the other."""
    (tmp_path / "nothing.py").write_text(NOTHING)
    results = []
    for recipe in (None, tmp_path / "nothing.py"):
        net = Net(2, seed=3)
        net.force_backward = True
        data = MemoryDataLayer(net, (3, 6, 7))
        conv = ConvLayer(net, data, num_filters=24)
        names = ("gelu", "prelu", "rms-norm", "depthwise", "softmax", "squeeze")
        layers = [OWN[name].declare(net, conv) for name in names]
        if recipe is not None:
            for layer in layers:
                net.use_recipe(layer, recipe)
        net.compile()
        results.append([found for layer in layers for found in results_of(net, data, layer)])
        buffers = net.executable.buffers
        source, *values = (buffers[f"{ensemble.name}.value"].layout.blocks for ensemble in (conv, *layers))
        assert source
        assert values == [source if recipe is None else ()] * len(layers)
    for default, plain in zip(*results, strict=True):
        np.testing.assert_allclose(default, plain, rtol=0, atol=1e-4 * max(1.0, float(np.abs(plain).max())))


# --- programs that are not layers ---------------------------------------------------------------------------
def default(before: Program, monkeypatch: pytest.MonkeyPatch) -> tuple[Program, list[str]]:
    """A program under the default schedule, whatever its size, and the commands that were applied."""
    monkeypatch.setattr(nests, "WORTH_SHARING", 1)
    s = Schedule.alone({"forward": before}, TARGETS["avx2"], "net.")
    PhaseSchedule(Trials(s, TARGETS["avx2"], "forward")).write()
    return s.programs["forward"], applied_texts(s.outcomes)


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
    after, _ = default(before, monkeypatch)
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
    after, applied = default(before, monkeypatch)
    assert_same(before, after, seeds=(0,))
    assert "vectorize('forward', 'i_1', 8)" in applied and "parallelize('forward', 'n')" in applied


def test_a_sum_of_everything_has_private_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = program("for n in range(8):\n for i in range(16):\n  s[0] += x[n, i] * x[n, i]", x=(8, 16), s=(1,))
    after, applied = default(before, monkeypatch)
    assert_same(before, after, seeds=(0,))
    assert any(text.startswith("privatize('forward', 's'") for text in applied)
    assert any(text.startswith("parallelize(") for text in applied)


def test_what_is_refused_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the loops nor the order of what lanes and threads were refused for."""
    before = program(
        "for t in range(1, 20):\n for i in range(1, 9):\n  y[t, i] = y[t - 1, i] + y[t, i - 1] * x[t, i]",
        x=(20, 9),
        y=(20, 9),
    )
    after, applied = default(before, monkeypatch)
    assert applied == [] and after.text == before.text


def test_products_by_way_of_a_local_are_contractions(monkeypatch: pytest.MonkeyPatch) -> None:
    before = program(
        """
for i in range(8):
    for j in range(16):
        for k in range(5):
            p: float32 = a[i, k] * b[k, j]
            y[i, j] += p
""",
        a=(8, 5),
        b=(5, 16),
        y=(8, 16),
    )
    after, applied = default(before, monkeypatch)
    assert_same(before, after, seeds=(0,))
    assert "unroll_and_jam('forward', 'i', 4)" in applied and "unroll_and_jam('forward', 'j', 2)" in applied


@pytest.mark.parametrize("target", TARGETS)
def test_doubles_are_shared_but_no_vectors(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The targets with intrinsics have vectors of single precision only."""
    monkeypatch.setattr(nests, "WORTH_SHARING", 1)
    before = program("for n in range(4):\n for i in range(20):\n  y[n, i] += x[n, i]", x=(4, 20), y=(4, 20))
    before = before.with_buffers(x=Buffer("net.x", (4, 20), "float64"))
    s = Schedule.alone({"forward": before}, TARGETS[target], "net.")
    PhaseSchedule(Trials(s, TARGETS[target], "forward")).write()
    applied = [outcome.command.name for outcome in s.outcomes if outcome.status == "applied"]
    assert "parallelize" in applied and ("vectorize" in applied) == (target == "portable")
    assert_compiles_to_same(s.programs["forward"], TARGETS[target])


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_end_and_compute_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pick = random_pick(seed)
    before = canonical_stages(ProgramMaker(pick).program(CommandMaker.shape(pick(RECIPES))))[-1].program
    after, applied = default(before, monkeypatch)
    # One step: what keeps bits is not claimed of the commands that add in another order.
    names = sorted({text.split("(")[0] for text in applied}, key=lambda name: name not in {*REORDER, *ASSUME_FINITE})
    found, _ = floating_problem([("", before), *((name, after) for name in names or ["tidy"])], seed)
    assert found is None, f"{found}\n{before.text}\n\n{after.text}"


# --- it is a recipe -----------------------------------------------------------------------------------------
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


# --- what it looks at ---------------------------------------------------------------------------------------
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


def test_small_layers_run_on_one_thread() -> None:
    net, _, layer = net_of("gelu", 2, (2, 3, 3))
    net.compile(target="portable")
    assert not any("parallelize" in c.text for c in net.explain(layer).commands)


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 14, 64])
@pytest.mark.parametrize("vectors", [1, 2, 4, 7])
def test_register_tiles_fit(rows: int, vectors: int, registers: int) -> None:
    p, q = register_tile(rows, vectors, registers)
    assert 1 <= p <= rows and 1 <= q <= vectors and p * q + q + 1 <= registers
    if rows >= 14 and vectors >= 2:
        assert p * q >= registers // 3


@pytest.mark.parametrize("groups", [2, 8])
def test_sums_with_more_loops_than_others_have_loops_of_their_own(groups: int) -> None:
    """The gradient of a bias is summed in the midst of that of the weights, whose lanes run along rows then."""
    net = Net(2, seed=1)
    layer = ConvLayer(net, MemoryDataLayer(net, (8, 18, 34)), num_filters=8, groups=groups)
    updates = {phase: outcomes for phase, _, _, outcomes in scheduled(net, layer, "avx512")}["update"]
    applied = applied_texts(updates)
    assert "distribute('update', 'x')" in applied and "vectorize('update', 'x', 16)" in applied


def test_a_loop_of_one_iteration_hides_no_lanes() -> None:
    """A window of one position of a sequence is a loop of its own in the gradient."""
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (5, 32))

    class Projection(Neuron):
        weights = Param("k", shape=(32,), init=ones)

        def forward(self):
            self.value = 0.0
            for s, i in eachindex(self.inputs):
                self.value += self.weights[i] * self.inputs[s, i]

    layer = net.add_ensemble(Ensemble(Projection, (5, 48), ("t", "k")))
    net.add_connections(data, layer, lambda t, k: (range(t, t + 1), range(32)))
    backward = {phase: outcomes for phase, _, _, outcomes in scheduled(net, layer, "avx512")}["backward"]
    assert "vectorize('backward', 'i', 16)" in [o.command.text for o in backward if o.status == "applied"]


def applied_texts(outcomes: list[Outcome]) -> list[str]:
    """The commands that were applied."""
    return [outcome.command.text for outcome in outcomes if outcome.status == "applied"]


def phases(net: Net, layer: Ensemble, target: str | Target = "avx512") -> Iterator[tuple[str, list[str]]]:
    """Each phase, and the commands that were applied to it; the nests still compute the same."""
    for phase, before, after, outcomes in scheduled(net, layer, target):
        assert_same(before, after, seeds=(0,))
        yield phase, applied_texts(outcomes)


def applied_of(net: Net, layer: Ensemble, target: str | Target = "avx512") -> dict[str, list[str]]:
    """The commands that were applied, by phase."""
    return dict(phases(net, layer, target))


def applied_in(phase: str, net: Net, layer: Ensemble, target: str | Target = "avx512") -> list[str]:
    """Those of one phase, whose nests still compute the same; what comes after it is not scheduled."""
    before, after, outcomes = next(found for name, *found in scheduled(net, layer, target) if name == phase)
    assert_same(before, after, seeds=(0,))
    return applied_texts(outcomes)


def test_short_loops_that_move_the_borders_of_lanes_are_written_out() -> None:
    """Masks that depend on them were made anew for each vector: a bilinear gradient took 2.6 times as long."""
    net = Net(2, seed=1)
    net.force_backward = True
    layer = InterpolationLayer(net, MemoryDataLayer(net, (3, 20, 20)), resize_factor=2.0, centred=True)
    backward = next(p for phase, _, p, _ in scheduled(net, layer, "avx512") if phase == "backward")
    masked = [s for nest in backward.nests for s in statements_of(nest) if any(x.kind == "vector" for x in s.loops)]
    moving = {name for s in masked for guard in s.guards for name in names_in(parsed(guard))}
    kinds = {loop.var: loop.kind for s in masked for loop in s.loops if loop.extent != 1}
    assert {kinds[name] for name in moving & kinds.keys()} == {"vector", "unrolled"}, moving


def test_several_vectors_of_each_row_that_data_choose() -> None:
    net = Net(3, seed=1)
    layer = EmbeddingLayer(net, MemoryDataLayer(net, (5,), dtype="int32", below=7), 7, 48)
    net.compile(target="avx2")
    applied = [outcome.text for outcome in net.explain(layer, "update").commands if outcome.status == "applied"]
    assert applied[:2] == ["vectorize('update', 'e', 8)", "unroll_and_jam('update', 'e', 3)"]


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize(("factor", "extent"), [(2.0, 9), (1.5, 18), (0.5, 18), (3.0, 10)])
@pytest.mark.parametrize("centred", [False, True])
def test_lanes_run_along_quotients_that_are_whole_steps_apart(
    factor: float, extent: int, centred: bool, mode: str
) -> None:
    """An enlarged row: neighbours in the source are as many results apart as the factor has; ends that are clamped are
    loops of their own."""
    net = Net(1, seed=1)
    net.force_backward = True
    layer = InterpolationLayer(
        net, MemoryDataLayer(net, (1, 2, extent)), resize_factor=factor, mode=mode, centred=centred
    )
    applied = applied_of(net, layer, "avx2")
    for phase in ("forward", "backward"):
        assert any(text.startswith(f"vectorize('{phase}', 'x") for text in applied[phase]), applied


@pytest.mark.parametrize("shape", [(4, 6, 10), (20, 3, 4), (6, 40)])
def test_another_shape_of_the_same_elements_is_read_in_rows(shape: tuple[int, ...]) -> None:
    net = Net(2, seed=1)
    net.force_backward = True
    layer = ReshapeLayer(net, MemoryDataLayer(net, (3, 8, 10)), shape)
    for commands in applied_of(net, layer, "avx2").values():
        assert any("vectorize" in text for text in commands) and not any("gather" in text for text in commands)


class Similarities(Ensemble):
    """The products of each item with each other one."""

    def forward(self, first, second, value):
        N, D = first.shape
        for i in range(N):
            for j in range(N):
                for d in range(D):
                    value[i, j] += first[i, d] * second[j, d]


def test_panels_of_items(small_panels: Target) -> None:
    """The copy of a panel has the items, along which the lanes run, innermost: each vector was gathered."""
    net = Net(32, seed=1)
    layer = net.add_ensemble(Similarities(shape=(32,), dims=("j",)))
    for name in ("first", "second"):
        net.add_connections(MemoryDataLayer(net, (128,)), layer, name=name)
    copies = [text for text in applied_in("forward", net, layer, small_panels) if text.startswith("pack")]
    assert copies == ["pack('forward', 'second', at='d_outer', order=[0, -1], nest=1)"]


def strided(extent: int, taps: int, stride: int) -> tuple[Net, Ensemble]:
    """A convolution along one dimension, of a plain source."""
    net = Net(2, seed=1)
    net.force_backward = True

    class Strided(Neuron):
        weights = Param("f", shape=(4, taps), init=normal(0.5))

        def forward(self):
            self.value = 0.0
            for c, i in eachindex(self.inputs):
                self.value += self.weights[c, i] * self.inputs[c, i]

    outputs = (extent + 2 * (taps // 2) - taps) // stride + 1
    layer = net.add_ensemble(Ensemble(Strided, (16, outputs), dims=("f", "t")))
    net.add_connections(
        MemoryDataLayer(net, (4, extent)),
        layer,
        lambda f, t: (range(4), range(stride * t, stride * t + taps)),
        padding=(0, taps // 2),
    )
    return net, layer


@pytest.mark.parametrize(("extent", "taps", "stride"), [(64, 7, 2), (61, 5, 3), (64, 5, 4)])
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_copies_of_a_strided_gradient_have_taps_of_their_own(extent: int, taps: int, stride: int, target: str) -> None:
    """As many pixels as the stride, or a multiple of it; taps are written out. Conditions in the innermost loop took
    three quarters of the time."""
    net, layer = strided(extent, taps, stride)
    backward = applied_in("backward", net, layer, target)
    made = [found for text in backward if (found := re.match(r"unroll_and_jam\('backward', '(\w+)', (\d+)", text))]
    copies = [int(found[2]) for found in made if found[1] != "c"]
    assert copies and not any(count % stride for count in copies), backward
    assert f"unroll('backward', 'i', {taps}, unroll_type=1)" in backward


def test_copies_of_blocks_are_innermost() -> None:
    """A broadcast meets all vectors of a tile while it is in its register: elsewise AVX2 took twice as long."""
    net, layer = strided(64, 7, 2)
    forward = applied_in("forward", net, layer, "avx2")
    copied = [found[1] for text in forward if (found := re.match(r"unroll_and_jam\('forward', '(\w+)'", text))]
    assert copied[-1].startswith("f_outer") and copied[0].startswith("t"), forward


def test_periods_of_remainders() -> None:
    guard = "(t - 2 * k + 3) % 4 == 0 and t // 2 < 5"
    buffers = {"y": Buffer("net.y", (9,)), "x": Buffer("net.x", (4,))}
    before = parse_program(f"for t in range(9):\n for k in range(4):\n  if {guard}:\n   y[t] += x[k]", buffers)
    *_, statement = statements_of(before.nests[0])
    assert residues(statement) == [{"t": 4, "k": 2}]


@pytest.mark.parametrize("periods", [(1, 1), (2, 1), (1, 2), (3, 2), (4, 4), (7, 1), (40, 1)])
def test_a_register_tile_of_periods(periods: tuple[int, int]) -> None:
    for registers in (16, 32):
        p, q = register_tile(64, 8, registers, 0, periods)
        assert p * q + q + 1 <= registers
        possible = periods[0] * periods[1] + periods[1] + 1 <= registers
        assert not possible or (p % periods[0] == 0 and q % periods[1] == 0)
    assert register_tile(1, 1, 2, 0, periods) == (1, 1)


def test_rows_of_a_strided_source_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the loop that moves by a cache line: a tile of pixels takes less of each row."""
    monkeypatch.setattr(prefetch_and_stream, "FAR", 1)
    net = Net(2, seed=1)
    layer = ConvLayer(net, MemoryDataLayer(net, (4, 64, 64)), num_filters=64, kernel=3, stride=2, pad=1)
    outcomes = next(found for phase, *_, found in scheduled(net, layer, "avx512") if phase == "forward")
    (fetched,) = (text for text in applied_texts(outcomes) if text.startswith("prefetch"))
    assert fetched.startswith("prefetch('forward', 'inputs', 'y")


def attention(features: int) -> dict[str, list[str]]:
    """Commands for attention of 12 queries and 20 keys, of which each has a source."""
    net = Net(1, seed=1)
    net.force_backward = True
    sources = [MemoryDataLayer(net, (positions, features)) for positions in (12, 20, 20)]
    return applied_of(net, ScaledDotProductAttentionLayer(net, *sources), "avx2")


def test_short_sums_are_of_packed_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of rows with rows: lanes run along the columns of a copy, and the softmax after them has lanes, too."""
    monkeypatch.setattr(packing, "READ_OFTEN", 4)
    forward = attention(8)["forward"]
    assert "pack('forward', 'key', at='h', order=[1, 0])" in forward
    assert {text.split("'")[3] for text in forward if text.startswith("vectorize")} >= {"s", "s_1", "s_2", "s_3"}


def test_long_sums_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "READ_OFTEN", 4)
    monkeypatch.setattr(packing, "LONG_SUM", 1)
    assert not any(text.startswith("pack") for text in attention(8)["forward"])


def test_what_a_product_reads_again_has_loops_of_its_own() -> None:
    """The gradient of a recurrent step's weights runs along their rows, whatever else is summed beside it."""
    net = Net(4, seed=1)
    RNNLayer(net, MemoryDataLayer(net, (2, 16)), 24)
    update = applied_in("update", net, net["rnn1_step1"], "avx2")
    assert any(text.startswith("vectorize('update', 'j', 8") and "gather" not in text for text in update)


@pytest.mark.parametrize("extent", [40, 43])
def test_only_vectors_at_the_borders_have_masks(extent: int) -> None:
    """Where the target has no mask registers. (Asking a vectorised loop for its borders was an error.)"""
    net = Net(1, seed=1)
    net.force_backward = True
    layer = ConvLayer(net, MemoryDataLayer(net, (2, 3, extent)), num_filters=2)
    for phase, before, after, _ in scheduled(net, layer, "avx2"):
        assert_same(before, after, seeds=(0,))
        statements = [
            s for nest in after.nests for s in statements_of(nest) if any(a.kind == "add" for a in s.accesses)
        ]
        inner = [s for s in statements if s.loops[-1].kind == "vector" and "ky" in "".join(s.variables())]
        masked = [s for s in inner if any(s.loops[-1].var in names_in(parsed(guard)) for guard in s.guards)]
        assert masked and len(masked) < len(inner), f"{phase}\n{after.text}"


@pytest.mark.parametrize(("batch", "inputs", "outputs"), [(8, 64, 48), (24, 48, 8), (5, 133, 7)])
@pytest.mark.parametrize(("l1", "l2"), [(128, 1024), (512, 4096), (2**15, 2**20)])
def test_products_stay_near(batch: int, inputs: int, outputs: int, l1: int, l2: int) -> None:
    """Whatever the caches, a fully connected layer computes the same; small ones make blocks of the terms."""
    net = Net(batch, seed=1)
    net.force_backward = True
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (inputs,)), outputs)
    applied = applied_of(net, layer, replace(TARGETS["avx2"], l1_bytes=l1, l2_bytes=l2))
    blocks = [text for commands in applied.values() for text in commands if text.startswith("tile_loop")]
    assert bool(blocks) == (l2 < 2**20), applied


def test_rows_of_a_product_pass_by_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fully connected layer whose weights fit no cache: lanes run along the items of a copy of the source;
    backward adds to strips while weights pass by; update reads strips of the source."""
    monkeypatch.setattr(blocking, "STRIP", 32)
    net = Net(16, seed=1)
    net.force_backward = True
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (192,)), 40)
    applied = applied_of(net, layer, replace(TARGETS["avx2"], l1_bytes=2**13, l2_bytes=2**14))
    assert {"pack('forward', 'inputs')", "transpose('inputs_packed', order=[1, 0])"} <= set(applied["forward"])
    assert "vectorize('forward', 'n', 8, strided='gather', nest=2)" in applied["forward"]
    assert "reorder('backward', ['i_1_outer', 'k_outer', 'i_1_inner', 'n', 'k_inner'], nest=1)" in applied["backward"]
    assert "reorder('update', ['i_1_outer', 'k', 'i_1_inner', 'n'], nest=2)" in applied["update"]
    assert "fuse('update', 'i_inner', 'i_1_inner', nest=1)" in applied["update"]


def test_rows_that_share_their_place_in_the_cache_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a power of two are read often: strips of them are copied, if more of them are read than a level-1 cache
    keeps, and rows of the results are fetched before they are stored."""
    monkeypatch.setattr(blocking, "STRIP", 32)
    monkeypatch.setattr(product, "WAY", 512)
    monkeypatch.setattr(prefetch_and_stream, "PAGE", 512)
    target = replace(TARGETS["avx2"], l1_bytes=2**12, l2_bytes=2**13)
    net = Net(32, seed=1)
    net.force_backward = True
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (64,)), 34)
    applied = applied_of(net, layer, target)
    assert "pack('backward', 'weights', at='k_outer', nest=1)" in applied["backward"]
    assert "pack('update', 'inputs', at='i_outer', nest=1)" in applied["update"]
    assert "prefetch('update', 'grad_weights', 'k', 2, 2, nest=1)" in applied["update"]


@pytest.fixture
def small_panels(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A target with small caches, for which a few rows are enough for panels."""
    for name, value in {"MANY_ROWS": 4, "ROWS_TRANSPOSED": 4, "READ_MANY_TIMES": 4, "MOST": 0.8, "CHUNKS": 4}.items():
        monkeypatch.setattr(panels, name, value)
    monkeypatch.setattr(packing, "READ_MANY_TIMES", 32)
    return replace(TARGETS["avx2"], l1_bytes=2**12, l2_bytes=2**15)


def panels_of(phase: str, commands: list[str]) -> list[str]:
    """The orders of loops in panels of one phase, and the copies."""
    wanted = (f"reorder('{phase}', [", f"pack('{phase}', ", f"split('{phase}', ")
    return [text for text in commands if text.startswith(wanted) and ("_outer" in text or "split" in text)]


def test_panels_of_an_operand_stay_near(small_panels: Target) -> None:
    """Of a fully connected layer of many items: for each panel the other operand passes by, turned if its terms are not
    contiguous. A panel is copied with its lanes innermost, turned where the operand has its terms innermost; blocks of
    rows, too, where panels are few."""
    net = Net(32, seed=1)
    net.force_backward = True
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (128,)), 64)
    applied = applied_of(net, layer, small_panels)
    forward = panels_of("forward", applied["forward"])
    assert (
        forward[0]
        == "reorder('forward', ['n_outer', 'k_1_outer', 'i_outer', 'n_inner', 'k_1_inner', 'i_inner'], nest=1)"
    )
    assert forward[-1] == "pack('forward', 'weights', at='i_outer', order=[1, 0], nest=1)"
    assert "vectorize('forward', 'weights_packed_dim0', 8, strided='gather', nest=1)" in applied["forward"]
    backward, update = panels_of("backward", applied["backward"]), panels_of("update", applied["update"])
    order = "['n_outer', 'i_1_outer', 'k_outer', 'n_inner', 'i_1_inner', 'k_inner']"
    assert backward[0] == f"reorder('backward', {order}, nest=1)"
    assert "pack('backward', 'weights', at='k_outer', nest=1)" in backward, applied["backward"]
    assert "transpose('grad_packed', order=[1, 0])" in applied["update"], applied["update"]
    assert "reorder('update', ['k_outer', 'i_1_outer', 'k_inner', 'i_1_inner', 'n'], nest=3)" in update, update
    assert "pack('update', 'inputs', at='i_outer', nest=2)" in update, applied["update"]


def test_ragged_ends_are_cut_off_panels(small_panels: Target) -> None:
    net = Net(8, seed=1)
    net.force_backward = True
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (152,)), 32)
    backward = panels_of("backward", applied_of(net, layer, small_panels)["backward"])
    assert "split('backward', 'i_1', [128], nest=1)" in backward, backward
    assert any(text.startswith("pack('backward', 'weights'") for text in backward), backward


class OfPositions(Ensemble):
    """A convolution over positions, whose features are innermost."""

    def forward(self, inputs, value, w):
        N, T, D = inputs.shape
        K = w.shape[0]
        for n in range(N):
            for t in range(T):
                for k in range(K):
                    for j in range(3):
                        if 0 <= t + j - 1 < T:
                            for d in range(D):
                                value[n, t, k] += w[k, j, d] * inputs[n, t + j - 1, d]


def of_positions(batch: int, positions: int, features: int, filters: int) -> tuple[Net, Ensemble]:
    net = Net(batch, seed=1)
    net.force_backward = True
    layer = OfPositions(shape=(positions, filters), dims=("t", "k"))
    layer.add_field("w", Param("k", shape=(3, features), init=constant(0.5)))
    net.add_ensemble(layer)
    net.add_connections(MemoryDataLayer(net, (positions, features)), layer)
    return net, layer


def test_panels_have_terms_along_several_loops(small_panels: Target) -> None:
    """And rows, also where borders clip them."""
    net, layer = of_positions(1, 16, 32, 64)
    applied = applied_of(net, layer, small_panels)
    forward = panels_of("forward", applied["forward"])
    assert any(re.match(r"pack\('forward', 'w', at='d_outer', order=\[1, 2, 0\]", text) for text in forward), forward


@pytest.mark.parametrize("target", running_targets())
def test_sums_over_positions_stay_in_registers(target: str) -> None:
    """Results are outside of their terms although borders clip one of these."""
    net, layer = of_positions(2, 9, 8, 24)
    for phase, before, after, _ in scheduled(net, layer, target):
        assert_same(before, after, seeds=(0,))
        for found in (c for nest in after.nests for c in contractions(nest, after.buffers)):
            inner = next(loop for loop in reversed(found.statement.loops) if loop.kind in ("range", "parallel"))
            assert inner.var in found.sums, f"{phase}\n{after.text}"


class TimesTransposed(Ensemble):
    """A matrix times another one's transpose, element by element."""

    def forward(self, left, right, value):
        N, H, W = left.shape
        for n in range(N):
            for i in range(H):
                for j in range(W):
                    value[n, i, j] = left[n, i, j] * right[n, j, i]


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_gradients_whose_rows_cross_are_apart(target: str) -> None:
    """One is stored along rows, the other one along columns: each reads rows, and turns them in registers."""
    net = Net(2, seed=1)
    net.force_backward = True
    left, right = MemoryDataLayer(net, (33, 50)), MemoryDataLayer(net, (50, 33))
    layer = net.add_ensemble(TimesTransposed(shape=left.shape, dims=("i", "j")))
    net.add_connections(left, layer, name="left")
    net.add_connections(right, layer, name="right")
    for _, before, after, _ in scheduled(net, layer, target):
        assert_same(before, after, seeds=(0,))
        text = listing(after, TARGETS[target])
        assert "load_turned<" in text and "scatter(" not in text and "scatter_ps" not in text, text


class RowSoftmax(Ensemble):
    """A softmax of rows, whose maximum has a gradient, so that its place is saved."""

    most = Field("n", "t")
    total = Field("n", "t")
    scale = Param("t", init=ones)

    def forward(self, inputs, value, most, total, scale):
        N, T, D = inputs.shape
        for n in range(N):
            for t in range(T):
                most[n, t] = inputs[n, t, 0]
                for d in range(1, D):
                    most[n, t] = max(most[n, t], inputs[n, t, d])
                for d in range(D):
                    value[n, t, d] = exp((inputs[n, t, d] - most[n, t]) * scale[t])
                    total[n, t] += value[n, t, d]
                for d in range(D):
                    value[n, t, d] = value[n, t, d] / total[n, t]


class Decayed(Ensemble):
    """What is left of a decaying sum of a row, taken from its exponentials."""

    left = Field("n", "t")
    scale = Param("t", init=ones)

    def forward(self, inputs, value, left, scale):
        N, T, D = inputs.shape
        for n in range(N):
            for t in range(T):
                for d in range(D):
                    left[n, t] = 0.5 * left[n, t] + inputs[n, t, d]
                for d in range(D):
                    value[n, t, d] = exp(inputs[n, t, d] * scale[t]) - left[n, t]


def of_rows(kind: Callable[..., Ensemble], target: str) -> list[str]:
    """Commands of forward for 40 rows of 32."""
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (40, 32))
    layer = net.add_ensemble(kind(shape=data.shape, dims=("t", "d")))
    net.add_connections(data, layer)
    return applied_in("forward", net, layer, target)


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_rows_that_can_be_lanes_are_apart_from_others(target: str) -> None:
    """A recurrence cannot: the exponentials had lanes along the positions, and took five times as long."""
    forward = of_rows(Decayed, target)
    assert "distribute('forward', 't')" in forward, forward
    assert f"vectorize('forward', 'd_1', {TARGETS[target].simd_width})" in forward, forward


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_the_place_of_a_maximum_is_found_in_lanes(target: str) -> None:
    """All three loops of a softmax of rows run along them."""
    forward = of_rows(RowSoftmax, target)
    assert f"vectorize('forward', 'd', {TARGETS[target].simd_width})" in forward, forward
    assert not any("distribute" in text or "d_1" in text for text in forward), forward


def test_the_place_of_a_short_maximum_is_not() -> None:
    """Lanes along the three taps of a window, in the pixels at the borders, took three times as long."""
    net = Net(2, seed=1)
    data = MemoryDataLayer(net, (2, 56, 56))
    layer = MaxPoolingLayer(net, data, kernel=3, stride=2, pad=1, ceil_mode=True, clamp=True)
    for target in ("avx512", "avx2"):
        lanes = [text for text in applied_in("forward", net, layer, target) if text.startswith("vectorize")]
        assert lanes and all(re.match(r"vectorize\('forward', 'x", text) for text in lanes), lanes


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_a_copied_panel_of_a_turned_operand_is_stored_in_whole_vectors(target: str) -> None:
    """Forward of 1024 items, 128 to 4096, took ten times as long: the copy was as the weights are, with scatters."""
    net = Net(1024, seed=1)
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (128,)), 4096)
    _, _, forward, outcomes = next(scheduled(net, layer, target))
    applied = applied_texts(outcomes)
    assert any(re.match(r"pack\('forward', 'weights', .*order=\[1, 0\]", text) for text in applied), applied
    text = listing(forward, TARGETS[target])
    assert "scatter" not in text and "load_turned<" in text


@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize(
    ("shape", "order"), [((24, 5, 40), (2, 1, 0)), ((33, 5, 50), (1, 2, 0)), ((64, 6, 20), (1, 2, 0))]
)
def test_rows_that_become_columns_are_turned_in_registers(
    shape: tuple[int, ...], order: tuple[int, ...], target: str
) -> None:
    """Both ways, whatever the cache has room for."""
    net = Net(2, seed=1)
    net.force_backward = True
    layer = PermuteLayer(net, MemoryDataLayer(net, shape), order)
    for l2 in (2**10, 2**21):
        for _, before, after, _ in scheduled(net, layer, replace(TARGETS[target], l2_bytes=l2)):
            assert_same(before, after, seeds=(0,))
            assert "load_turned<" in listing(after, TARGETS[target]), after


def chosen_in(phase: str, net: Net, layer: Ensemble) -> list[str]:
    """The commands of one phase on AVX2, of layers that are too large to be computed exactly."""
    return applied_texts(next(found for name, *_, found in scheduled(net, layer, "avx2") if name == phase))


def packed(net: Net, layer: Ensemble) -> list[str]:
    """The copies in backward."""
    return [text for text in chosen_in("backward", net, layer) if text.startswith("pack(")]


def test_rows_that_have_room_in_the_cache_are_not_copied() -> None:
    """Those of weights that are a little longer than a power of two, where items are too few for panels; and whole rows
    of a 1 × 1 convolution."""
    net = Net(48, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (4096,))
    longer = FullyConnectedLayer(net, MemoryDataLayer(net, (4112,)), 1000)
    assert packed(net, FullyConnectedLayer(net, data, 1000))
    assert not packed(net, longer)
    net = Net(16, seed=1)
    net.force_backward = True
    layer = ConvLayer(net, MemoryDataLayer(net, (128, 28, 28)), num_filters=128, kernel=1)
    assert not packed(net, layer)


def test_threads_share_results_whose_terms_are_their_own() -> None:
    """Blocks of a long sum pass by; each thread reads its own rows of the weights, and has results of its own."""
    net = Net(64, seed=1)
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (25088,)), 1000)
    applied = chosen_in("forward", net, layer)
    assert "reorder('forward', ['i_outer', 'k_1', 'n', 'i_inner'], nest=2)" in applied
    assert "parallelize('forward', 'k_1', nest=2)" in applied
    assert not any(text.startswith("privatize(") for text in applied), applied


class Gated(Neuron):
    """Two sums of products, and what is computed of them, for each neuron."""

    gate = Param("k", shape=(40,), init=normal(0.1))
    weights = Param("k", shape=(40,), init=normal(0.1))
    bias = Param("k")

    def forward(self):
        opened = 0.0
        total = self.bias
        for i in eachindex(self.inputs):
            opened += self.gate[i] * self.inputs[i]
            total += self.weights[i] * self.inputs[i]
        self.value = sigmoid(opened) * tanh(total)


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_products_in_locals_of_a_neuron_have_loops_of_their_own(target: str) -> None:
    """What a neuron computes of its sums, and of the gradients before its products, took more time than these."""
    net = Net(9, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (40,))
    layer = net.add_ensemble(Ensemble(Gated, (37,), dims=("k",)))
    net.add_connections(data, layer, lambda k: range(40))
    for phase, before, after, outcomes in scheduled(net, layer, target):
        assert_same(before, after, seeds=(0,))
        assert any(text.startswith("store_local(") for text in applied_texts(outcomes)), phase
        assert not scalar(after), f"loops that are left scalar: {scalar(after)}"


class Short(Neuron):
    weights = Param("k", shape=(5,), init=normal(0.1))

    def forward(self):
        total = 0.0
        for i in eachindex(self.inputs):
            total += self.weights[i] * self.inputs[i]
        self.value = tanh(total)


def test_short_sums_stay_in_locals() -> None:
    """To store them would take as long as to compute them."""
    net = Net(9, seed=1)
    layer = net.add_ensemble(Ensemble(Short, (37,), dims=("k",)))
    net.add_connections(MemoryDataLayer(net, (5,)), layer, lambda k: range(5))
    assert not any("store_local" in text for texts in applied_of(net, layer).values() for text in texts)


@pytest.mark.parametrize(
    ("shape", "batch", "l2", "passing", "own_sums"),
    [
        ((2, 4, 7), 9, 2**14, ["n"], True),  # an image at a time
        ((2, 6, 7), 9, 2**14, ["n", "h_outer"], True),  # a few rows
        ((8, 3, 7), 2, 2**14, ["n"], False),  # too few images for the threads
        ((8, 3, 7), 3, 2**16, [], False),  # the caches have it all
        ((2, 6, 7), 9, 2**11, [], False),  # they do not have the weights
    ],
)
def test_terms_pass_by_once_for_all_results(
    shape: tuple[int, ...], batch: int, l2: int, passing: list[str], own_sums: bool
) -> None:
    """The gradient of weights: what the caches have of the images is read for each of them."""
    net = Net(batch, seed=1)
    net.force_backward = True
    layer = TransposedConvLayer(net, MemoryDataLayer(net, shape), 16, 2, 2)
    update = applied_in("update", net, layer, replace(TARGETS["avx2"], l1_bytes=2**10, l2_bytes=l2))
    orders = [text for text in update if text.startswith("reorder('update', ['n', ")]
    assert [text.startswith(f"reorder('update', {[*passing, 'k_outer']}"[:-1]) for text in orders] == [True][
        : len(passing)
    ]
    assert any(text.startswith("privatize('update', 'grad_weights', 'n'") for text in update) == own_sums, update
    assert ("parallelize('update', 'n', nest=1)" in update) == own_sums, update


@pytest.mark.parametrize(("page", "ahead"), [(256, {"inputs", "value"}), (512, set())])
def test_pieces_of_rows_are_fetched_ahead(page: int, ahead: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax over channels: an iteration has a piece of the row of each channel, 288 bytes from one to the next."""
    monkeypatch.setattr(prefetch_and_stream, "PAGE", page)
    monkeypatch.setattr(prefetch_and_stream, "FAR", 1)
    net = Net(2, seed=1)
    layer = SoftmaxLayer(net, MemoryDataLayer(net, (5, 8, 9)))
    fetched = r"prefetch\('forward', '(\w+)', 'yx', 1, 2\)"
    forward = applied_in("forward", net, layer, "avx2")
    assert set(re.findall(fetched, " ".join(forward))) == ahead, forward


def test_no_pieces_are_fetched_that_the_cache_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a transposed convolution's weights fetched all images, for each block of channels."""
    monkeypatch.setattr(prefetch_and_stream, "PAGE", 256)
    monkeypatch.setattr(prefetch_and_stream, "FAR", 1)
    net = Net(2, seed=1)
    layer = SoftmaxLayer(net, MemoryDataLayer(net, (5, 8, 9)))
    forward = applied_in("forward", net, layer, replace(TARGETS["avx2"], l2_bytes=256))
    assert not any("prefetch" in text for text in forward), forward


@pytest.mark.parametrize(("outputs", "turned"), [(24, True), (9, False)])
def test_short_sums_of_many_rows_have_lanes_along_their_results(
    outputs: int, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of all positions are those of one matrix, and the weights are copied, where that fills the lanes."""
    monkeypatch.setattr(packing, "READ_MANY_TIMES", 32)
    net = Net(4, seed=1)
    net.force_backward = True
    layer = PositionwiseLinearLayer(net, MemoryDataLayer(net, (9, 20)), outputs)
    applied = applied_of(net, layer, "avx2")
    forward = applied["forward"]
    assert any(text.startswith("flatten('forward', ['n', ") for text in forward), forward
    assert ("pack('forward', 'weights')" in forward) == turned, forward


def test_sums_beside_other_statements_stay_in_registers() -> None:
    """In a recurrent cell the gradient of the gates is added to that of the projection, too, in the loop over the terms
    of the product: parted, the loops over the results move outside."""
    net = Net(8, seed=1)
    RNNLayer(net, MemoryDataLayer(net, (3, 4)), 32)
    plan, _ = planned(net, TARGETS["avx2"])
    (step,) = (item for item in plan.scheduled if item.unit.name == "rnn1_step1")
    program = step.stages("backward", plan.state, plan.target)[-1].program
    added = [nest for nest in program.nests if "weights_hh" in nest.arguments]
    assert len(added) == 1 and "grad_inputs" not in added[0].arguments
    assert re.search(r"for k in .*\n(.*\n)*? +grad_inputs1_t\[.*\] \+= ", added[0].text), added[0].text


@pytest.mark.parametrize(("batch", "inputs", "outputs"), [(2, 256, 40), (24, 100, 40), (24, 257, 31), (9, 256, 40)])
def test_lanes_run_along_items_where_that_pays(batch: int, inputs: int, outputs: int) -> None:
    """Not where they would be empty, where sums are short, or where a copy is read a few times."""
    net = Net(batch, seed=1)
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (inputs,)), outputs)
    target = replace(TARGETS["avx2"], l1_bytes=2**12, l2_bytes=2**13)
    _, _, forward, _ = next(scheduled(net, layer, target))
    assert "_packed" not in forward.text


@pytest.mark.parametrize("name", ["avx512", "avx2"])
def test_register_tiles_of_products_stay_in_registers(name: str) -> None:
    target = target_named(name, runs=True)
    net = Net(64, seed=1)
    net.force_backward = True
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (2048,)), 1100)
    net.compile(target=name)
    for phase in ("forward", "backward", "update"):
        (kernel,) = (c for c in net.executable.compiled if c.ensemble is layer and c.phase == phase)
        loops = innermost_loops(instructions(kernel.built.path, kernel.built.name))
        tiles = [loop for loop in loops if counts(loop).multiply_adds >= target.registers * 0.6]
        found = [counts(tile) for tile in tiles]
        assert any(tile.loads + tile.broadcasts <= tile.multiply_adds for tile in found), (phase, found)
        assert not [text for tile in tiles for text in tile if "[rsp" in text and re.search("[yz]mm", text)], phase


def test_windows_share_what_they_read() -> None:
    """The gradient of a depthwise convolution's weights: nine sums in one pass over the images, added up once."""
    net = Net(2, seed=1)
    layer = ConvLayer(net, MemoryDataLayer(net, (3, 6, 18)), num_filters=3, groups=3)
    update = applied_in("update", net, layer, "avx512")
    assert {"unroll_and_jam('update', 'ky_1', 3)", "unroll_and_jam('update', 'kx_1', 3)"} <= set(update)


def test_functions_of_sums_have_lanes() -> None:
    """What a recurrent step computes of its products is not left scalar in the midst of their register tile."""
    net = Net(4, seed=1)
    RNNLayer(net, MemoryDataLayer(net, (2, 16)), 24)
    for phase, before, after, _ in scheduled(net, net["rnn1_step1"], "avx2"):
        assert_same(before, after, seeds=(0,))
        calls = [s for nest in after.nests for s in statements_of(nest) if "tanh(" in unparse(s.node)]
        assert phase != "forward" or calls
        assert all(s.loops[-1].kind == "vector" for s in calls), after.text


def convolution(filters: int, extent: int, stride: int = 1) -> tuple[Net, Ensemble]:
    """A convolution by 3 × 3 of two images of five channels, with gradients of them."""
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (5, extent, extent))
    return net, ConvLayer(net, data, num_filters=filters, kernel=3, stride=stride, pad=1)


def clipped_pooling(extent: int) -> tuple[Net, Ensemble]:
    """Max pooling by 3 × 3 with stride 2, the first windows clipped, and the last ones if the extent is odd."""
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (3, extent, extent))
    return net, MaxPoolingLayer(net, data, kernel=3, stride=2, pad=1, ceil_mode=False, clamp=False)


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_strided_sums_are_gathered_if_they_have_other_terms(target: str) -> None:
    """An element of the source sums filters for each tap, but at most a few gradients of windows."""
    for (net, layer), gathered in ((convolution(20, 7, stride=2), 2), (clipped_pooling(9), 0)):
        backward = applied_in("backward", net, layer, target)
        assert sum(text.startswith("reindex(") for text in backward) == gathered, backward


@pytest.mark.parametrize(("filters", "ragged"), [(33, True), (40, False)])
def test_a_ragged_block_is_separate_from_the_whole_ones(filters: int, ragged: bool) -> None:
    """Copies of whole blocks share what they read; beside a ragged one, copies of their loop would be refused."""
    forward = applied_in("forward", *convolution(filters, 7), "avx2")
    assert any(re.match(r"split\('forward', 'k_outer\w*', \[4\]", text) for text in forward) == ragged, forward
    assert any(re.match(r"unroll_and_jam\('forward', 'k_outer\w*'", text) for text in forward), forward


@pytest.mark.parametrize(("extent", "blocks"), [(17, True), (31, True), (32, False)])
def test_results_are_in_blocks_beside_short_rows_that_borders_clip(extent: int, blocks: bool) -> None:
    _, _, _, outcomes = next(scheduled(*convolution(20, extent), "avx2"))
    assert ("tile('value', 0, 8, reorder=False)" in applied_texts(outcomes)) == blocks, outcomes


@pytest.mark.parametrize("extent", [33, 34, 14])
def test_rows_that_borders_clip_run_in_lanes_between_them(extent: int) -> None:
    """Also if they clip one end alone, and rows shorter than a vector."""
    forward = applied_in("forward", *clipped_pooling(extent), "avx512")
    cuts = [1, (extent - 1) // 2] if extent % 2 else [1]
    assert f"split('forward', 'x', {cuts}, nest=0)" in forward or f"split('forward', 'x', {cuts})" in forward, forward
    assert any(text.startswith("vectorize('forward', 'x_1'") for text in forward), forward


def test_gradients_of_overlapping_windows_go_to_their_places() -> None:
    """Lanes along the row would add eight zeros for each gradient."""
    backward = applied_in("backward", *clipped_pooling(33), "avx512")
    assert {"locate('backward', 'k')", "locate('backward', 'j')"} <= set(backward), backward


@pytest.mark.parametrize("stride", [1, 2])
def test_in_blocks_of_channels_windows_have_lanes_of_their_own(stride: int) -> None:
    """The saved places have the blocks of the source, too."""
    net = Net(2, seed=1)
    net.force_backward = True
    source = ConvLayer(net, MemoryDataLayer(net, (3, 9, 9)), num_filters=32, kernel=3, stride=1, pad=1)
    layer = MaxPoolingLayer(net, source, kernel=3, stride=stride, pad=1, ceil_mode=False, clamp=False)
    applied = applied_texts(planned(net, TARGETS["avx512"])[0].outcomes[layer.name])
    assert {f"tile('{name}', 0, 16, reorder=False)" for name in ("value", "grad", "mask_j", "mask_k")} <= set(applied)
    assert not any(text.startswith(("locate", "reindex")) for text in applied), applied
    assert any(re.match(r"vectorize\('backward', 'c_inner\w*', 16\)", text) for text in applied), applied


@pytest.mark.parametrize(
    ("start", "stop", "step", "most"),
    [
        ("0", "min(9, i * 2 + 2) - max(0, i * 2 - 1)", 1, 3),
        ("max(0, 1 - i)", "min(3, 9 - i)", 1, 3),
        ("0", "min(i + 4, min(7, i + 2)) - i", 1, 2),
        ("i", "i + 5", 2, 3),
        ("0", "i + 1", 1, 6),
        ("5", "i", -1, 5),
        ("0", "max(2, i)", 1, 5),
    ],
)
def test_iterations_at_the_most(start: str, stop: str, step: int, most: int) -> None:
    """Of windows that borders clip, those that they do not."""
    loop = Loop("j", "range", parsed(start), parsed(stop), step)
    ranges = {"i": (0, 5)}
    assert trips(loop, {**ranges, **loop_range(loop, ranges)}) == most
    known = ({"i": i, "min": min, "max": max} for i in range(6))
    assert max(len(range(eval(start, names), eval(stop, names), step)) for names in known) <= most


PLACES = {
    "rows that all have one place": ("d", "dw[j, d]", "g[n, d]", "idx[n]", 20, 24, True),
    "many places of lanes of their own": ("d", "dw[n + j, d]", "g[n, d]", "m[n, d]", 40, 16, True),
    "few places of lanes of their own": ("d", "dw[n + j, d]", "g[n, d]", "m[n, d]", 9, 16, False),
    "many places of a few lanes": ("d", "dw[n + j, d]", "g[n, d]", "m[n, d]", 9, 4, True),
}


@pytest.mark.parametrize(
    ("inner", "target", "value", "which", "places", "width", "located"), PLACES.values(), ids=list(PLACES)
)
def test_places_that_data_choose(
    inner: str, target: str, value: str, which: str, places: int, width: int, located: bool
) -> None:
    """Lanes for all places only where each has places of its own, and not many."""
    text = f"""
        for n in range(8):
            for j in range({places}):
                for {inner} in range({width}):
                    {target} += {value} if {which} == j else 0.0
        """
    shapes = {"dw": (8 + places, width), "g": (8, width), "idx": (8,), "m": (8, width)}
    before = example(text, ["idx", "m"], **shapes)
    s = Schedule.alone({"forward": before}, TARGETS["avx512"], ("",))
    PhaseSchedule(Trials(s, TARGETS["avx512"], "forward")).write()
    assert_same(before, s.programs["forward"], finite=True)
    applied = applied_texts(s.outcomes)
    assert ("locate('forward', 'j')" in applied) == located, applied
    assert width < 8 or any(command.startswith("vectorize('forward', 'd'") for command in applied), applied


def test_ragged_blocks_are_not_taken_for_clipped_windows() -> None:
    """The last block of 20 filters has four: no loop over blocks is cut but for copies of whole ones."""
    net = Net(3, seed=1)
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (6,)), 20)
    forward = applied_in("forward", net, layer, "avx2")
    assert not any(text.startswith("rename(") for text in forward), forward


def test_a_few_neighbours_come_before_many_that_are_far_apart() -> None:
    """The bias's gradient: four neighbours of each row, not eight rows."""
    net = Net(8, seed=1)
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (20,)), 4)
    update = applied_in("update", net, layer, "avx512")
    assert any(re.match(r"vectorize\('update', 'k\w*', 16", text) for text in update), update
    assert not any(re.match(r"vectorize\('update', 'n\w*', 16, strided='gather'", text) for text in update), update


def pooling(extent: int, ceil_mode: bool = False) -> tuple[Net, Ensemble]:
    """Max pooling by 2 × 2 of two images of five channels."""
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (5, extent, extent))
    return net, MaxPoolingLayer(net, data, kernel=2, stride=2, ceil_mode=ceil_mode, clamp=False)


def test_lanes_run_along_the_loop_that_fills_most_of_a_vector() -> None:
    """Seven windows of a row, strided, before two taps that are neighbours."""
    applied = applied_of(*pooling(14))
    assert "vectorize('backward', 'x', 16, strided='gather')" in applied["backward"], applied


@pytest.mark.parametrize("extent", [7, 35])
def test_a_clipped_window_at_the_end_is_separate(extent: int) -> None:
    """Three whole windows are enough for lanes; one that ends beyond the row has another number of taps."""
    for phase, commands in applied_of(*pooling(extent, ceil_mode=True)).items():
        assert any(text.startswith(f"split('{phase}', 'x', [{extent // 2}]") for text in commands), commands
        assert any(text.startswith(f"vectorize('{phase}', 'x', 16") for text in commands), commands


@pytest.mark.parametrize("cache", [512, 2**20])
def test_rows_of_which_lanes_take_some_elements_are_fetched_ahead(cache: int) -> None:
    forward = applied_in("forward", *pooling(12), replace(TARGETS["avx2"], l2_bytes=cache))
    ahead = [text for text in forward if text.startswith("prefetch(")]
    assert ahead == (["prefetch('forward', 'inputs', 'y', 4, 1)"] if cache == 512 else []), forward


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_lanes_that_write_every_second_element_fill_the_row(target: str) -> None:
    """Gradients of poolings, and interpolation; the gradient of interpolation adds up a row before it is stored."""
    net = Net(2)
    net.force_backward = True
    source = MemoryDataLayer(net, (4, 40, 40))
    pooled = MaxPoolingLayer(net, InterpolationLayer(net, source, 0, 2.0, centred=True), 2, 2)
    for layer in net.ensembles:
        net.use_recipe(layer, None)
    plan, _ = planned(net, TARGETS[target])
    code = {(each.unit.name, each.phase): each.source.source for each in generated_kernels(plan)}
    assert "interleaved<" in code["interpolation1", "forward"] and "interleaved<" in code[pooled.name, "backward"]
    applied = applied_texts(plan.outcomes["interpolation1"])
    orders = [text for text in applied if text.startswith("reorder('backward'")]
    assert orders and "'i_1', 'x_inner_1', 'j_1'" in orders[0]
