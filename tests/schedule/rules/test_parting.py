"""Loops of their own for products and other sums."""

from __future__ import annotations

import re

import pytest

from latte import ConvLayer, MemoryDataLayer, Net, Neuron, RNNLayer
from latte.ensemble import Ensemble
from latte.neuron import Field, Param, eachindex, exp, normal, ones, sigmoid, tanh
from swirl.analysis.statements import statements_of
from swirl.codegen.emit import listing
from swirl.ir.printing import unparse
from swirl.target.targets import TARGETS
from tests.nets.test_default_chains import planned
from tests.schedule.rules.applied import applied_in, applied_of, applied_texts, by_rule, of_rows, scalar, scheduled
from tests.support import assert_same, program


@pytest.mark.parametrize("groups", [2, 8])
def test_sums_with_more_loops_than_others_have_loops_of_their_own(groups: int) -> None:
    """The gradient of a bias is summed in the midst of that of the weights, whose lanes run along rows then."""
    net = Net(2, seed=1)
    layer = ConvLayer(net, MemoryDataLayer(net, (8, 18, 34)), num_filters=8, groups=groups)
    updates = {phase: outcomes for phase, _, _, outcomes in scheduled(net, layer, "avx512")}["update"]
    applied = applied_texts(updates)
    assert "distribute('update', 'x')" in applied and "vectorize('update', 'x', 16)" in applied


def test_what_a_product_reads_again_has_loops_of_its_own() -> None:
    """The gradient of a recurrent step's weights runs along their rows, whatever else is summed beside it."""
    net = Net(4, seed=1)
    RNNLayer(net, MemoryDataLayer(net, (2, 16)), 24)
    update = applied_in("update", net, net["rnn1_step1"], "avx2")
    assert any(text.startswith("vectorize('update', 'j', 8") and "gather" not in text for text in update)


SHARED = """
for n in range(6):
    for j in range(40):
        for i in range(35):
            for d in range(33):
                part: float32 = {value}
                s[n, i, j] += part * x[n, j, d]
                y[n, j, d] += part * a[n, i, j]
"""


@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_products_that_share_a_local_have_nests_of_their_own(target: str) -> None:
    """As of the gradients of ``x xᵀ x``: lanes of the one are terms of the other."""
    sizes = {"g": (6, 35, 33), "s": (6, 35, 40), "x": (6, 40, 33), "y": (6, 40, 33), "a": (6, 35, 40)}
    text, applied = by_rule("cut", program(SHARED.format(value="g[n, i, d] / 64.0"), **sizes), target, None)
    assert "distribute('forward', 'd', recompute=True)" in applied
    assert text.count("part: float32") + text.count("part_1: float32") == 2 and text.count("for n in") == 2
    _, applied = by_rule("cut", program(SHARED.format(value="exp(g[n, i, d])"), **sizes), target, None)
    assert not any("recompute" in each for each in applied), "a function is not computed twice"


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


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_rows_that_can_be_lanes_are_apart_from_others(target: str) -> None:
    """A recurrence cannot: the exponentials had lanes along the positions, and took five times as long."""
    forward = of_rows(Decayed, target)
    assert "distribute('forward', 't')" in forward, forward
    assert f"vectorize('forward', 'd_1', {TARGETS[target].simd_width})" in forward, forward


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


def test_functions_of_sums_have_lanes() -> None:
    """What a recurrent step computes of its products is not left scalar in the midst of their register tile."""
    net = Net(4, seed=1)
    RNNLayer(net, MemoryDataLayer(net, (2, 16)), 24)
    for phase, before, after, _ in scheduled(net, net["rnn1_step1"], "avx2"):
        assert_same(before, after, seeds=(0,))
        calls = [s for nest in after.nests for s in statements_of(nest) if "tanh(" in unparse(s.node)]
        assert phase != "forward" or calls
        assert all(s.loops[-1].kind == "vector" for s in calls), after.text


@pytest.mark.parametrize(("terms", "stored"), [(40, True), (4, False)])
def test_a_local_of_a_product_is_stored_if_it_has_many_terms(terms: int, stored: bool) -> None:
    before = program(
        f"""
for n in range(3):
    for k in range(5):
        t: float32 = 0.0
        for i in range({terms}):
            t += w[k, i] * a[n, i]
        y[n, k] = tanh(t)
""",
        w=(5, terms),
        a=(3, terms),
        y=(3, 5),
    )
    after, applied = by_rule("store_products", before)
    assert bool(applied) == stored
    assert ("t[n, k_1] += w[k_1, i] * a[n, i]" in after) == stored, after


@pytest.mark.parametrize(
    ("first", "distributed"),
    [
        ("for i in range(9):\n            y[n, k] += w[k, i] * a[n, i]", ["k", "n"]),
        ("y[n, k] = tanh(a[n, k])", []),  # no product
    ],
)
def test_a_product_beside_calls_has_loops_of_its_own(first: str, distributed: list[str]) -> None:
    before = program(
        f"""
for n in range(3):
    for k in range(20):
        {first}
        z[n, k] = tanh(y[n, k])
""",
        y=(3, 20),
        w=(20, 9),
        a=(3, 20),
        z=(3, 20),
    )
    _, applied = by_rule("cut", before)
    assert [text for text in applied if "rename" not in text] == [f"distribute('forward', '{v}')" for v in distributed]
