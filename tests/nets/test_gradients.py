"""Who starts the backward phase, what adds up, what is cleared; several readers of one source; views."""

from __future__ import annotations

import numpy as np
import pytest

from latte import (
    AccuracyLayer,
    FullyConnectedLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
    TanhLayer,
)
from latte.ensemble import Ensemble
from latte.errors import CommandError, DataError, DeclarationError, TrainingError
from latte.neuron import Neuron
from latte.solver import SGD

ROUNDING = 2.0**-24


class SumNeuron(Neuron):
    """``a + 2 b``: two sources, or one source read twice."""

    def forward(self) -> None:
        self.value = self.inputs[0] + 2.0 * self.inputs1[0]


def add(net: Net, first: Ensemble, second: Ensemble) -> Ensemble:
    """``first + 2 · second`` for each element."""
    ensemble = net.add_ensemble(Ensemble(SumNeuron, first.shape, ("c",)))
    for source in (first, second):
        net.add_connections(source, ensemble, lambda c: (range(c, c + 1),))
    return ensemble


Chain = tuple[Net, Ensemble, Ensemble, Ensemble]


@pytest.fixture
def chain() -> Chain:
    """data (4) → fc (3) → relu → fc (2), without a loss, forward done; a new net for each test."""
    net = Net(3, seed=1, keep="all")
    net.force_backward = True
    data = MemoryDataLayer(net, (4,))
    first = FullyConnectedLayer(net, data, 3)
    last = FullyConnectedLayer(net, ReLULayer(net, first), 2)
    net.compile(threads=1)
    data.set_value(np.random.default_rng(0).normal(size=(3, 4)))
    net.forward()
    return net, data, first, last


def gradients(*ensembles: Ensemble) -> list[np.ndarray]:
    """The gradients of weights."""
    return [ensemble.get_grad_weights() for ensemble in ensembles]


def test_nothing_to_start_from(chain: Chain) -> None:
    net, _, _, last = chain
    with pytest.raises(TrainingError, match=r"no loss(.|\n)*SoftmaxLossLayer(.|\n)*set_grad"):
        net.backward()
    last.set_grad(np.ones((3, 2)))
    net.backward()
    assert last.get_grad_bias().tolist() == [[3.0], [3.0]]


def test_seed_at_an_inner_layer_adds_to_what_readers_send(chain: Chain) -> None:
    net, data, first, last = chain
    seed, top = (
        np.random.default_rng(1).normal(size=(2, 3, 3)).astype(np.float32),
        np.ones((3, 2), np.float32),
    )
    last.set_grad(top)
    net.backward()
    from_above = first.get_grad()
    before = first.get_value(), last.get_value(), last.get_grad_weights()
    first.set_grad(seed[0])  # after a forward, which still counts
    for array, now in zip(before[:2], (first.get_value(), last.get_value()), strict=True):
        np.testing.assert_array_equal(now, array)
    net.clear_grad()
    net.backward()
    np.testing.assert_allclose(first.get_grad(), from_above + seed[0], rtol=0, atol=4 * ROUNDING * 8)
    expected = first.get_grad().astype(float) @ first.get_weights()
    np.testing.assert_allclose(data.get_grad(), expected, rtol=0, atol=8 * ROUNDING * 16)
    np.testing.assert_array_equal(last.get_grad_weights(), before[2])
    # Seeds stay until they are changed; each backward starts from them again.
    net.backward()
    np.testing.assert_allclose(first.get_grad(), from_above + seed[0], rtol=0, atol=4 * ROUNDING * 8)
    first.set_grad(seed[1])
    net.backward()
    np.testing.assert_allclose(first.get_grad(), from_above + seed[1], rtol=0, atol=4 * ROUNDING * 8)


def test_seed_of_an_inner_layer_alone(chain: Chain) -> None:
    """Layers above it have the gradient 0."""
    net, _, first, last = chain
    seed = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)
    first.set_grad(seed)
    net.backward()
    np.testing.assert_array_equal(first.get_grad(), seed)
    assert not last.get_grad_weights().any()


def test_seed_of_the_wrong_shape(chain: Chain) -> None:
    net, data, first, last = chain
    for ensemble in (first, last):
        with pytest.raises(DataError, match=r"set_grad: the shape is \(3, 7\), but \(3, [23]\) is needed"):
            ensemble.set_grad(np.zeros((3, 7)))
    with pytest.raises(TrainingError, match="nothing to start from"):  # nothing of it was kept
        net.backward()
    data.set_grad(np.ones((3, 4)))
    last.set_grad(np.ones((3, 2)))
    net.backward()


def test_seed_where_no_gradient_is_computed() -> None:
    net = Net(2, seed=1)
    data = MemoryDataLayer(net, (2,))
    last = FullyConnectedLayer(net, data, 2)
    net.compile(threads=1)
    with pytest.raises(DataError, match="force_backward"):
        data.set_grad(np.ones((2, 2)))
    data.set_value(np.ones((2, 2)))
    net.forward()
    last.set_grad(np.ones((2, 2)))
    net.backward()
    assert last.get_grad_weights().tolist() == [[2, 2], [2, 2]]


def test_backward_before_forward(chain: Chain) -> None:
    net, _, _, last = chain
    last.set_grad(np.ones((3, 2)))
    net.backward()
    net.set_batch(np.ones((3, 4)))  # the values are those of other data
    with pytest.raises(TrainingError, match=r"forward(.|\n)*net.forward\(\)"):
        net.backward()
    net.forward()
    net.backward()
    net.test()  # the values are those of inference
    with pytest.raises(TrainingError, match="forward"):
        net.backward()


def test_accumulation_until_cleared(chain: Chain) -> None:
    net, _, first, last = chain
    last.set_grad(np.ones((3, 2)))
    assert not any(g.any() for g in gradients(first, last))
    net.backward()
    once = gradients(first, last)
    net.backward()
    for now, then in zip(gradients(first, last), once, strict=True):
        np.testing.assert_allclose(now, 2 * then, rtol=0, atol=16 * ROUNDING * abs(then).max())
    net.clear_grad()
    assert not any(g.any() for g in gradients(first, last))
    net.backward()
    for now, then in zip(gradients(first, last), once, strict=True):
        np.testing.assert_array_equal(now, then)


def test_gradients_that_the_user_sets_are_added_to(chain: Chain) -> None:
    net, _, first, last = chain
    last.set_grad(np.ones((3, 2)))
    given = np.full(first.get_weights().shape, 0.25, np.float32)
    first.set_grad_weights(given)  # before the first backward
    np.testing.assert_array_equal(first.get_grad_weights(), given)
    assert not last.get_grad_weights().any()
    net.backward()
    total = gradients(first, last)
    net.clear_grad()
    net.backward()
    once = gradients(first, last)
    np.testing.assert_allclose(total[0], once[0] + given, rtol=0, atol=16 * ROUNDING * abs(once[0]).max())
    np.testing.assert_array_equal(total[1], once[1])
    net.clear_grad()
    first.set_grad_weights(given)  # after a clearing, what others had computed stays cleared
    assert not last.get_grad_weights().any()
    net.backward()
    for now, then in zip(gradients(first, last), total, strict=True):
        np.testing.assert_array_equal(now, then)


def test_views_are_what_the_phases_use(chain: Chain) -> None:
    """In-place updates as the original's scripts do them."""
    net, _, _, last = chain
    last.set_grad(np.ones((3, 2)))
    weights, gradient = last.get_weights_view(), last.get_grad_weights_view()
    net.backward()
    np.testing.assert_array_equal(gradient, last.get_grad_weights())
    assert gradient.any()
    before = last.get_value()
    weights -= 0.5 * gradient
    net.forward()
    assert (last.get_value() != before).any()
    net.clear_grad()
    assert not gradient.any()  # at once, because a view is held
    net.backward()
    np.testing.assert_array_equal(gradient, last.get_grad_weights())


def test_gradient_view_of_the_top_starts_backward(chain: Chain) -> None:
    net, _, _, last = chain
    last.get_grad_view()[...] = 1.0
    net.backward()
    assert last.get_grad_bias().tolist() == [[3.0], [3.0]]


def test_step_after_clearing_uses_zeros(chain: Chain) -> None:
    """Cleared gradients read as zero, for the solver too: only the weight decay acts."""
    net, _, _, last = chain
    solver = SGD(net, 0.5, weight_decay=0.5)
    last.set_grad(np.ones((3, 2)))
    with pytest.raises(TrainingError, match="no gradients yet"):
        solver.step()
    net.backward()
    net.clear_grad()
    weights = last.get_weights()
    solver.step()
    np.testing.assert_allclose(last.get_weights(), 0.75 * weights, rtol=4 * ROUNDING)


def test_residual_net_and_one_source_read_twice() -> None:
    """Gradients of several readers add up, also of a layer that reads one source through two connections."""
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (5,))
    first = FullyConnectedLayer(net, data, 5)
    tanh = TanhLayer(net, first)
    residual = add(net, first, tanh)  # first is read by tanh and here
    twice = add(net, residual, residual)  # 3 · residual
    last = add(net, twice, first)  # first once more, across the others
    net.compile(threads=1)
    generator = np.random.default_rng(0)
    x, seed = generator.normal(size=(2, 2, 5)).astype(np.float32)
    data.set_value(x)
    last.set_grad(seed)
    net.forward()
    net.backward()
    y = first.get_value().astype(float)
    t = np.tanh(y)
    bound = 64 * ROUNDING * 16  # a few operations on numbers below 16
    np.testing.assert_allclose(last.get_value(), 3 * (y + 2 * t) + 2 * y, rtol=0, atol=bound)
    np.testing.assert_allclose(residual.get_grad(), 3 * seed, rtol=0, atol=bound)
    of_first = seed * (3 * (1 + 2 * (1 - t * t)) + 2)
    np.testing.assert_allclose(first.get_grad(), of_first, rtol=0, atol=bound)
    np.testing.assert_allclose(data.get_grad(), of_first @ first.get_weights(), rtol=0, atol=4 * bound)
    before = first.get_grad(), data.get_grad()
    net.backward()  # afresh each time
    np.testing.assert_array_equal(first.get_grad(), before[0])
    np.testing.assert_array_equal(data.get_grad(), before[1])


def test_force_backward_is_asked_at_compile() -> None:
    """Off, a layer on data sends no gradient there; it may be assigned after the layers exist."""
    for forced in (False, True):
        net = Net(2, seed=1)
        data, labels = MemoryDataLayer(net, (3,)), MemoryDataLayer(net, (1,))
        scores = FullyConnectedLayer(net, data, 2)
        SoftmaxLossLayer(net, scores, labels)
        AccuracyLayer(net, scores, labels)
        net.force_backward = forced
        net.compile(threads=1)
        net.set_batch(np.ones((2, 3)), [0, 1])
        net.forward()
        net.backward()
        if forced:
            assert data.get_grad().shape == (2, 3)
        else:
            with pytest.raises(DataError, match="force_backward"):
                data.get_grad()
        with pytest.raises(DataError):  # labels never have one
            labels.get_grad()


def test_settings_that_come_too_late_or_are_none() -> None:
    net = Net(2, seed=1)
    FullyConnectedLayer(net, MemoryDataLayer(net, (3,)), 2)
    with pytest.raises(DeclarationError, match="force_backward must be True or False, not 'yes'"):
        net.force_backward = "yes"  # type: ignore[assignment]
    net.compile(target="portable", threads=1)
    net.force_backward = False  # as it is
    with pytest.raises(CommandError, match=r"force_backward: the net is compiled already"):
        net.force_backward = True
    for name in ("seed", "batch_size"):
        with pytest.raises(CommandError, match=f"{name} of a net is fixed") as caught:
            setattr(net, name, 3)
        assert __file__ in str(caught.value.location)
    assert (net.force_backward, net.seed, net.batch_size) == (False, 1, 2)


def test_a_seed_of_another_batch_size_is_an_error() -> None:
    """Not silently with the rest of what was set before."""
    net = Net(3, seed=1)
    data = MemoryDataLayer(net, (4,))
    last = FullyConnectedLayer(net, data, 2)
    net.compile(threads=1)
    net.set_batch(np.ones((3, 4)))
    net.forward()
    last.set_grad(np.ones((3, 2)))
    net.backward()
    net.set_batch(np.ones((1, 4)))
    net.forward()
    with pytest.raises(TrainingError, match=r"\(3, 2\), this batch needs \(1, 2\)"):
        net.backward()
    net.clear_grad()
    last.set_grad(np.ones((1, 2)))
    net.backward()
    assert last.get_grad_bias().tolist() == [[1.0], [1.0]]
    data.set_value(np.zeros((3, 4)))  # the full batch again
    net.forward()
    assert last.get_value().shape == (3, 2)
