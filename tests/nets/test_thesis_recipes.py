"""The recipes of Figs. 3.7 and 3.8 as printed, on a batch norm layer after an untiled and after a tiled source."""

import re
from functools import cache

import numpy as np
import pytest

import latte.config
from latte import BatchNormLayer, ConvLayer, FullyConnectedLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.ensemble import Ensemble
from latte.solver import SGD
from swirl.codegen.emit import listing
from swirl.errors import Refused
from swirl.target.targets import get_target
from tests.lowered import lowered


# fmt: off
def forward_recipe(input_ensemble, bn_ens):
    if "value" in input_ensemble.tiling_info:
        tiled_dims = input_ensemble.tiling_info["value"]
        for dim, factor in tiled_dims:
            bn_ens.tile('inputs', dim=dim, factor=factor)
            bn_ens.tile('value', dim=dim, factor=factor)
            bn_ens.parallelize(phase="forward",loop_var="_neuron_index_1_outer")
    else:
        bn_ens.parallelize(phase="forward",loop_var="_neuron_index_1")

    bn_ens.vectorize(phase="forward", loop_var="_neuron_index_3", factor=latte.config.SIMDWIDTH)
    bn_ens.unroll(phase="forward",loop_var="_neuron_index_3", factor=4, unroll_type=0)


def backward_recipe(input_ensemble, bn_ens):
    if "grad" in input_ensemble.tiling_info:
        tiled_dims = input_ensemble.tiling_info["grad"]
        for dim, factor in tiled_dims:
            bn_ens.tile('grad_inputs', dim=dim, factor=factor)
            bn_ens.tile('grad', dim=dim, factor=factor)
            bn_ens.parallelize(phase="backward", loop_var="_neuron_index_1_outer")
    else:
        bn_ens.parallelize(phase="backward", loop_var="_neuron_index_1")

    bn_ens.vectorize(phase="backward", loop_var="_neuron_index_3", factor=latte.config.SIMDWIDTH)
    bn_ens.unroll(phase="backward",loop_var="_neuron_index_3", factor=4, unroll_type=0)
# fmt: on


def thesis_net(tiled: bool, recipe: bool = True, width: int = 64) -> tuple[Net, Ensemble, Ensemble]:
    net = Net(2, seed=3)
    images, labels = MemoryDataLayer(net, (3, 5, width)), MemoryDataLayer(net, (1,))
    conv = ConvLayer(net, images, num_filters=4, kernel=3, pad=1)
    if tiled:
        conv.tile("value", dim=0, factor=latte.config.SIMDWIDTH)
        conv.tile("grad", dim=0, factor=latte.config.SIMDWIDTH)
    bn = BatchNormLayer(net, conv)
    if recipe:
        forward_recipe(conv, bn)
        backward_recipe(conv, bn)
    SoftmaxLossLayer(net, FullyConnectedLayer(net, bn, 3), labels)
    return net, conv, bn


def losses(net: Net, width: int = 64) -> list[float]:
    generator = np.random.default_rng(0)
    images, labels = generator.random((2, 3, 5, width), np.float32), np.array([0, 2])
    solver = SGD(net, 0.05, momentum=0.9)
    found = []
    for _ in range(3):
        net.set_batch(images, labels)
        net.forward()
        found.append(net.loss)
        net.clear_grad()
        net.backward()
        solver.step()
    return found


@cache
def after_an_untiled_source(width: int) -> tuple[Net, Ensemble]:
    net, _, bn = thesis_net(tiled=False, width=width)
    net.compile()
    return net, bn


@pytest.mark.parametrize("width", [64, 7, 100])
def test_after_an_untiled_source(width: int) -> None:
    net, _ = after_an_untiled_source(width)
    plain, _, _ = thesis_net(tiled=False, recipe=False, width=width)
    with lowered():
        plain.compile()
    # Sums over 2 * 5 * width numbers in another order: a few units of 2**-24 a step, fed into the next step's weights.
    assert np.allclose(losses(net, width), losses(plain, width), rtol=1e-5)


def test_four_vector_accumulators() -> None:
    """The shape of Fig. 3.9."""
    if latte.config.SIMDWIDTH != 16:
        pytest.skip("the figure is for 16 lanes")
    net, bn = after_an_untiled_source(64)
    (stage,) = [c.stages[-1] for c in net.executable.compiled if c.ensemble is bn and c.phase == "forward"]
    text = listing(stage.program, get_target("avx512"))
    assert "#pragma omp parallel for" in text
    for copy in range(4):
        assert f"mean_t_lanes_parts_{copy} = _mm512_add_ps(mean_t_lanes_parts_{copy}, _mm512_loadu_ps(" in text
        assert f"_mm512_storeu_ps(&value[n][c][h][{16 * copy}]" in text.replace(" + 0", "")
    assert text.count("sqrtf(") == 1


def test_after_a_tiled_source_the_strided_loop_is_refused() -> None:
    net, _, _ = thesis_net(tiled=True)
    with pytest.raises(Refused, match="not contiguous") as caught:
        net.compile()
    message = str(caught.value)
    assert re.search(r"vectorize\('forward', 'c_inner', (8|16)\)", message)  # _neuron_index_1_inner
    assert "vectorize(phase='forward', loop_var='_neuron_index_3'" in message
    assert __file__.rsplit("/", 1)[-1] in message
    assert not net.compiled


def test_a_tiled_source_is_computed_rightly() -> None:
    """Blocked layouts change where elements are, never what they are."""
    tiled, conv, _ = thesis_net(tiled=True, recipe=False)
    tiled.compile()
    plain, plain_conv, _ = thesis_net(tiled=False, recipe=False)
    with lowered():
        plain.compile()
    assert np.allclose(losses(tiled), losses(plain), rtol=1e-5)
    assert np.allclose(conv.get_value(), plain_conv.get_value(), rtol=1e-4, atol=1e-5)
    assert np.allclose(conv.get_grad(), plain_conv.get_grad(), rtol=1e-3, atol=1e-5)
    assert conv.get_value().shape == (2, 4, 5, 64)
