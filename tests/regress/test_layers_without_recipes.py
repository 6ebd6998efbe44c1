"""Layers of one's own whose default schedule computed something wrong, or did not compile, once."""

from __future__ import annotations

import numpy as np
import pytest

from latte import AddLayer, Ensemble, MemoryDataLayer, Net, Param
from latte.neuron import normal, tanh
from swirl.ir.hints import is_name
from swirl.transforms import COMMANDS
from swirl.transforms.rewrites.sites import loop_names
from tests.codegen.test_machine_code import target_named
from tests.support import assert_same, program


def triangle(outputs: int, terms: int, groups: int) -> type[Ensemble]:
    """A product of a group of columns with the first terms of its weights, then tanh."""

    class Triangle(Ensemble):
        w = Param(shape=(terms, groups * outputs), init=normal(0.3))

        def forward(self, a, value, w):
            N = a.shape[0]
            for n in range(N):
                for g in range(groups):
                    for j in range(outputs):
                        for k in range(min(terms, j + 1)):
                            value[n, j, g] += a[n, k, g] * w[k, g * outputs + j]
                        value[n, j, g] = tanh(value[n, j, g])

    return Triangle


@pytest.mark.parametrize("target", ["avx512", "avx2", "portable"])
def test_the_gradient_of_a_source_of_two_that_are_added(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward of one was compiled with the sum, backward with that of the other, which set the gradient to zero."""
    monkeypatch.setenv("SWIRL_TARGET", target_named(target, runs=True).name)
    outputs, terms, groups = 33, 4, 5
    kind = triangle(outputs, terms, groups)
    net = Net(1, seed=0)
    net.force_backward = True
    x = MemoryDataLayer(net, (terms, groups))
    branches = [net.add_ensemble(kind(shape=(outputs, groups))) for _ in range(2)]
    for branch in branches:
        net.add_connections(x, branch, name="a")
    top = AddLayer(net, branches)
    net.compile()
    rng = np.random.default_rng(0)
    data, given = rng.normal(size=(1, terms, groups)), rng.normal(size=(1, outputs, groups))
    x.set_value(data)
    net.forward()
    top.set_grad(given)
    net.backward()
    mask = np.arange(terms)[:, None] <= np.arange(outputs)[None]
    expected, value = np.zeros_like(data), np.zeros_like(given)
    for branch in branches:
        w = branch.get_w().reshape(terms, groups, outputs).astype(float)
        one = np.tanh(np.einsum("nkg,kgj,kj->njg", data, w, mask))
        value += one
        expected += np.einsum("njg,kgj,kj->nkg", given * (1 - one * one), w, mask)
    np.testing.assert_allclose(top.get_value(), value, rtol=0, atol=1e-5)
    np.testing.assert_allclose(x.get_grad(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_a_border_that_leaves_no_terms(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared by the threads in pieces, a loop of no iterations was divided by zero."""
    monkeypatch.setenv("SWIRL_TARGET", target_named(target, runs=True).name)
    items, groups, outputs, terms = 17, 4, 512, 16

    class Upper(Ensemble):
        w = Param(shape=(outputs, groups * terms), init=normal(0.1))

        def forward(self, a, value, w):
            N = a.shape[0]
            for j in range(outputs):
                for n in range(N):
                    for g in range(groups):
                        for k in range(min(j, terms), terms):  # none from j = 16 on
                            value[n, g, j] += a[n, k, g] * w[j, g * terms + k]
                        value[n, g, j] = value[n, g, j] * value[n, g, j]

    net = Net(items, seed=0)
    net.force_backward = True
    x = MemoryDataLayer(net, (terms, groups))
    upper = net.add_ensemble(Upper(shape=(groups, outputs)))
    net.add_connections(x, upper, name="a")
    net.compile()
    data = np.random.default_rng(0).normal(size=(items, terms, groups))
    x.set_value(data)
    net.forward()
    w = upper.get_w().reshape(outputs, groups, terms).astype(float)
    mask = np.arange(terms)[None] >= np.minimum(np.arange(outputs), terms)[:, None]
    sums = np.einsum("nkg,jgk,jk->ngj", data, w, mask)
    np.testing.assert_allclose(upper.get_value(), sums * sums, rtol=0, atol=1e-5)
    given = np.random.default_rng(1).normal(size=sums.shape)
    upper.set_grad(given)
    net.backward()
    expected = np.einsum("ngj,jgk,jk->nkg", 2 * sums * given, w, mask)
    np.testing.assert_allclose(x.get_grad(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("names", ["i f", "i n", "o r", "mi n", "i s", "a b"])
def test_names_of_loops_that_are_words_together(names: str) -> None:
    """One loop over both had ``if``, ``in``, ``or``, ``min`` or ``is`` for a name."""
    outer, inner = names.split()
    text = f"for {outer} in range(5):\n for {inner} in range(7):\n  y[{outer}, {inner}] = 2.0 * x[{outer}, {inner}]"
    before = program(text, y=(5, 7), x=(5, 7))
    after = COMMANDS["flatten"](before, [outer, inner])
    (loop,) = loop_names(after)
    assert is_name(loop)
    assert loop == "ab" or names != "a b"
    assert_same(before, after)


def test_a_layer_with_such_names() -> None:
    class Twice(Ensemble):
        def forward(self, inputs, value):
            items, features = inputs.shape
            for i in range(items):
                for f in range(features):
                    value[i, f] = 2.0 * inputs[i, f]

    net = Net(batch_size=8, seed=0)
    data = MemoryDataLayer(net, (64,))
    twice = net.add_ensemble(Twice(shape=(64,)))
    net.add_connections(data, twice)
    net.compile()
    x = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    data.set_value(x)
    net.forward()
    assert (twice.get_value() == 2 * x).all()
