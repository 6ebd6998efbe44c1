"""Scaled dot-product attention against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from latte import MemoryDataLayer, Net, ScaledDotProductAttentionLayer
from latte.errors import DeclarationError
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS

torch = pytest.importorskip("torch")


MASKED = [
    ("avx512", (2, 5, 19, 12, 3, False), False),
    ("avx2", (2, 6, 17, 8, 2, True), True),
    ("avx512", (3, 7, 7, 16, 1, True), False),
    ("portable", (1, 1, 3, 2, 1, False), True),
]
"""Target; batch, queries, keys, features, heads, causal; whether each query has a mask of its own."""


@pytest.mark.parametrize(("target", "shape", "each"), MASKED, ids=str)
def test_a_mask_against_pytorch(target: str, shape: tuple[Any, ...], each: bool) -> None:
    if reason := why_not(TARGETS[target]):
        pytest.skip(reason)
    batch, queries, keys, features, heads, causal = shape
    net = Net(batch, seed=0)
    net.force_backward = True
    sources = [MemoryDataLayer(net, (size, features)) for size in (queries, keys, keys)]
    mask = MemoryDataLayer(net, (queries, keys) if each else (keys,))
    made = ScaledDotProductAttentionLayer(net, *sources, heads=heads, causal=causal, mask=mask)
    net.compile(target=target)
    generator = np.random.default_rng(1)
    arrays = [generator.standard_normal((batch, *each_source.shape)) for each_source in sources]
    seen = (generator.random((batch, *mask.shape)) < 0.6).astype(np.float32)
    seen[..., 0] = 1  # each query sees a key, also a causal one
    gradient = generator.standard_normal((batch, *made.shape))
    net.set_batch(*arrays, seen)
    net.forward()
    made.set_grad(gradient)
    net.backward()
    xs = [torch.tensor(array, requires_grad=True) for array in arrays]
    query, key, values = (x.reshape(batch, x.shape[1], heads, -1).transpose(1, 2) for x in xs)
    allowed = torch.tensor(seen != 0).reshape(batch, 1, -1, keys).expand(batch, heads, queries, keys)
    if causal:
        allowed = allowed & torch.ones(queries, keys, dtype=torch.bool).tril()
    attended = torch.nn.functional.scaled_dot_product_attention(query, key, values, attn_mask=allowed)
    expected = attended.transpose(1, 2).flatten(2)
    expected.backward(torch.tensor(gradient))
    np.testing.assert_allclose(made.get_value(), expected.detach().numpy(), rtol=0, atol=2e-6)
    for source, x in zip(sources, xs, strict=True):
        np.testing.assert_allclose(source.get_grad(), x.grad.numpy(), rtol=0, atol=2e-5)


@pytest.mark.usefixtures("as_lowered")
def test_what_sees_nothing_is_0() -> None:
    """Not NaN, and no gradient comes from it."""
    net = Net(2, seed=0)
    net.force_backward = True
    source, mask = MemoryDataLayer(net, (5, 8)), MemoryDataLayer(net, (5,))
    made = ScaledDotProductAttentionLayer(net, source, source, source, mask=mask)
    net.compile()
    net.set_batch(np.random.default_rng(0).standard_normal((2, 5, 8)), [[1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    net.forward()
    made.set_grad(np.ones((2, 5, 8)))
    net.backward()
    assert made.get_value()[0].all() and not made.get_value()[1].any()
    assert source.get_grad()[0, :2].all() and not source.get_grad()[1].any()
    assert not made.get_weights()[0, 0, :, 2:].any()


@pytest.mark.usefixtures("as_lowered")
def test_weights_of_a_causal_one() -> None:
    net = Net(1, seed=0)
    source = MemoryDataLayer(net, (4, 2))
    made = ScaledDotProductAttentionLayer(net, source, source, source, causal=True, name="attends")
    net.compile(threads=1)
    assert (made.name, made.shape) == ("attends", (4, 2))
    for scale in (1.0, 1e4):  # great scores: no infinite intermediate value
        net.set_batch(scale * np.random.default_rng(0).normal(size=(1, 4, 2)))
        net.forward()
        weights = made.get_weights()
        assert weights.shape == (1, 1, 4, 4) and not np.triu(weights[0, 0], 1).any()
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def sequence(net: Net, *shape: int) -> Any:
    return MemoryDataLayer(net, shape)


def attends(*shapes: tuple[int, ...], **options: Any) -> Callable[[Net], Any]:
    return lambda net: ScaledDotProductAttentionLayer(net, *(sequence(net, *shape) for shape in shapes), **options)


def masked(*shapes: tuple[int, ...], mask: tuple[int, ...]) -> Callable[[Net], Any]:
    return lambda net: ScaledDotProductAttentionLayer(
        net, *(sequence(net, *shape) for shape in shapes), mask=sequence(net, *mask)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (attends((3, 4), (5, 3), (5, 3)), "the same number of features"),
        (attends((3, 4), (5, 4), (4, 4)), "the same number of positions"),
        (attends((3, 4), (5, 4), (4,)), "reads 2 dimensions without the batch"),
        (masked((3, 4), (5, 4), (5, 4), mask=(4,)), "the mask has shape (5,) or (3, 5), not (4,)"),
        (attends((3, 4), (5, 4), (5, 6), heads=4), "4 features of queries and 6 of values cannot be divided into 4"),
        (attends((3, 4), (5, 4), (5, 6), heads=0), "heads must be a positive integer, not 0"),
        (attends((3, 4), (5, 4), (5, 6), causal="yes"), "causal must be True or False, not 'yes'"),
        (attends((3, 4), (5, 4), (5, 6), scale=-1), "scale must be a number, at least 0, not -1"),
    ],
)
def test_arguments_that_do_not_fit(make: Callable[[Net], Any], message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        make(Net(2))
    assert message in str(caught.value) and "test_attention.py" in str(caught.value)
