"""Forty nets, and how each is compiled and trained; the frozen records are in ``records``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from latte import (
    AccuracyLayer,
    BatchNormLayer,
    ConvLayer,
    ConvLayerNoBias,
    FullyConnectedLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
    TanhLayer,
)
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.neuron import Field, Neuron, Param, eachindex, ones, rand, sqrt
from tests.frozen.random_nets import RANDOM_NETS
from tests.fuzz.net_cases import NetCase
from tests.fuzz.net_cases import declare as declare_case

CLASSES = 4


@dataclass(frozen=True)
class Specification:
    """A net.

    Args:
        declare: adds the layers; given the net and a folder for recipes, returns the inner layers whose gradient the
            user sets. Or a random net.
        batch: items.
        smaller: of the second batch size.
        keep: ``"all"``, or None.
        force: whether the gradient of the data is wanted.
    """

    declare: Callable[[Net, Path], list[Ensemble] | None] | NetCase
    batch: int = 3
    smaller: int = 2
    keep: str | None = None
    force: bool = False

    def declared(self, folder: Path) -> tuple[Net, list[Ensemble]]:
        """The net, not compiled, and the inner layers whose gradient is set."""
        if isinstance(self.declare, NetCase):
            return declare_case(self.declare, folder).net, []
        net = Net(self.batch, seed=1, keep=self.keep)
        net.force_backward = self.force
        return net, self.declare(net, folder) or []


def specifications() -> dict[str, Specification]:
    """All of them, by name."""
    return {**_DECLARED, **{f"random net {seed}": _random(seed) for seed in RANDOM_NETS}}


# --- the layer library ------------------------------------------------------------------------------------
def _data(net: Net, *shape: int) -> Ensemble:
    return MemoryDataLayer(net, shape)


def _classified(net: Net, layer: Ensemble) -> None:
    scores = FullyConnectedLayer(net, layer, CLASSES)
    label = MemoryDataLayer(net, (1,))
    SoftmaxLossLayer(net, scores, label)
    AccuracyLayer(net, scores, label)


def _digits(net: Net, folder: Path) -> None:
    layer = _data(net, 1, 8, 8)
    for filters in (16, 32):  # of examples/01_digits_cnn.py
        layer = ConvLayer(net, layer, num_filters=filters, kernel=3, pad=1)
        layer = MaxPoolingLayer(net, ReLULayer(net, BatchNormLayer(net, layer)))
    _classified(net, layer)


def _blocks(*filters: int, shape: tuple[int, ...] = (3, 7, 5), **options: int) -> Callable[[Net, Path], None]:
    """Blocks of convolution, batch norm and ReLU."""

    def declare(net: Net, folder: Path) -> None:
        layer = _data(net, *shape)
        for count in filters:
            layer = ReLULayer(net, BatchNormLayer(net, ConvLayer(net, layer, count, **options)))
        _classified(net, layer)

    return declare


def _conv_relu_net(net: Net) -> Ensemble:
    conv = ConvLayer(net, _data(net, 3, 9, 9), num_filters=17, kernel=3, stride=2, pad=1)
    pooled = MaxPoolingLayer(net, ReLULayer(net, conv), ceil_mode=True, clamp=True)
    hidden = ReLULayer(net, FullyConnectedLayer(net, pooled, 13))
    _classified(net, hidden)
    return conv


def _conv_relu(net: Net, folder: Path) -> None:
    _conv_relu_net(net)


def _norm_of_vectors(net: Net, folder: Path) -> None:
    hidden = FullyConnectedLayer(net, _data(net, 6), 17)
    _classified(net, ReLULayer(net, BatchNormLayer(net, hidden)))


def _two_readers(net: Net, folder: Path) -> None:
    norm = BatchNormLayer(net, ConvLayer(net, _data(net, 3, 5, 5), num_filters=4, kernel=1, pad=0))
    relu = ReLULayer(net, norm)
    for layer in (norm, relu):
        scores = FullyConnectedLayer(net, layer, CLASSES)
        SoftmaxLossLayer(net, scores, MemoryDataLayer(net, (1,)))


def _kept(net: Net, folder: Path) -> None:
    net.keep(_conv_relu_net(net))


def _gradient_in_between(net: Net, folder: Path) -> list[Ensemble]:
    norm = BatchNormLayer(net, ConvLayer(net, _data(net, 3, 7, 5), num_filters=3))
    _classified(net, ReLULayer(net, norm))
    return [norm]


def _gradient_inside_a_chain(net: Net, folder: Path) -> list[Ensemble]:
    return [_conv_relu_net(net)]


def _residual(net: Net, folder: Path) -> None:
    first = ReLULayer(net, ConvLayer(net, _data(net, 2, 6, 6), num_filters=16))
    second = BatchNormLayer(net, ConvLayer(net, first, num_filters=16))
    added = net.add_ensemble(Ensemble(Sum, first.shape, ("c", "y", "x")))
    for source in (first, second):
        net.add_one_to_one_connections(source, added)
    _classified(net, ReLULayer(net, added))


def _narrow_and_wide(net: Net, folder: Path) -> None:
    """Chains that leave phases apart: 1 × 1 filters in a ragged block, and few filters."""
    layer = _data(net, 3, 5, 5)
    for filters in (33, 3):
        layer = ConvLayer(net, layer, num_filters=filters, kernel=1, pad=0)
        layer = ReLULayer(net, BatchNormLayer(net, layer))
    _classified(net, BatchNormLayer(net, ConvLayerNoBias(net, layer, num_filters=17, kernel=1, pad=0)))


def _tanh_of_vectors(net: Net, folder: Path) -> None:
    _classified(net, TanhLayer(net, FullyConnectedLayer(net, _data(net, 13), 16)))


def _poolings(net: Net, folder: Path) -> None:
    conv = ConvLayer(net, _data(net, 1, 9, 11), 32)
    for kernel, stride, pad, clamp in ((2, 2, 0, True), (3, 2, 1, False), (5, 1, 2, False)):
        MaxPoolingLayer(net, conv, kernel, stride, pad, ceil_mode=clamp, clamp=clamp)
    FullyConnectedLayer(net, conv, 5)


# --- layers of a user's -----------------------------------------------------------------------------------
class Sum(Neuron):
    def forward(self) -> None:
        self.value = self.inputs[0, 0, 0] + self.inputs1[0, 0, 0]


class Noisy(Neuron):
    def forward(self) -> None:
        self.value = self.input * 2.0 if rand() < 0.5 else 0.0


class Contrast(Neuron):
    surround = Param("c", shape=(1, 3, 3), init=ones)
    threshold = Param("c", shape=(1,), init=ones)

    def forward(self) -> None:
        mean = 0.0
        for i in eachindex(self.inputs):
            mean += self.surround[i] * self.inputs[i]
        contrast = self.inputs[0, 1, 1] - 0.1 * mean
        gate = contrast * contrast / (contrast * contrast + self.threshold[0] * self.threshold[0] + 1e-6)
        self.value = self.inputs[0, 1, 1] + gate * contrast


class Horner(Neuron):
    weights = Param("k", shape=(6,), init=ones)

    def forward(self) -> None:
        result = 0.0
        for i in eachindex(self.inputs):
            result = result * self.inputs[0] + self.weights[i]
        self.value = result


class LayerNorm(Ensemble):
    mean = Field("n")
    scale = Field("n")
    gain = Param("c", init=ones)

    def forward(self, inputs, value, mean, scale, gain):  # type: ignore[no-untyped-def]
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                mean[n] += inputs[n, c]
        for n in range(N):
            mean[n] = mean[n] / C
        for n in range(N):
            for c in range(C):
                scale[n] += (inputs[n, c] - mean[n]) * (inputs[n, c] - mean[n])
        for n in range(N):
            scale[n] = 1.0 / sqrt(scale[n] / C + 0.01)
        for n in range(N):
            for c in range(C):
                value[n, c] = gain[c] * (inputs[n, c] - mean[n]) * scale[n]


def _noise(net: Net, folder: Path) -> None:
    hidden = FullyConnectedLayer(net, _data(net, 9), 16)
    _classified(net, net.init_activation_ensemble(Noisy, hidden))


def _contrast(net: Net, folder: Path) -> None:
    def mapping(c, y, x):  # type: ignore[no-untyped-def]
        return range(c, c + 1), range(y, y + 3), range(x, x + 3)

    conv = ConvLayer(net, _data(net, 2, 6, 7), 16)
    own = net.add_ensemble(Ensemble(Contrast, conv.shape, ("c", "y", "x")))
    net.add_connections(conv, own, mapping, padding=(0, 1, 1))
    _classified(net, ReLULayer(net, own))


def _horner(net: Net, folder: Path) -> None:
    own = Ensemble(Horner, (5,), ("k",))
    data = _data(net, 6)
    net.add_connections(data, net.add_ensemble(own), lambda k: (range(6),))
    _classified(net, own)


def _layer_norm(net: Net, folder: Path) -> None:
    hidden = FullyConnectedLayer(net, _data(net, 9), 20)
    own = net.add_ensemble(LayerNorm(shape=hidden.shape, dims=("c",)))
    net.add_one_to_one_connections(hidden, own)
    _classified(net, own)


# --- layouts and recipes of a user's ----------------------------------------------------------------------
IN_BLOCKS = """
def forward(s, target):
    for buffer in ("value", "grad"):
        s.tile(buffer, 0, 16)
"""
IN_OTHER_BLOCKS = """
def forward(s, target):
    for buffer in ("inputs", "grad_inputs"):
        s.tile(buffer, 0, 4)
    s.tile("value", 0, 8)
"""
PLAINLY = """
def forward(s, target):
    for buffer in ("inputs", "grad_inputs"):
        s.untile(buffer)
"""
WEIGHTS_IN_BLOCKS = """
def forward(s, target):
    for buffer in ("weights", "grad_weights", "value", "grad"):
        s.tile(buffer, 0, 4)
    s.tile("weights", 1, 2)
"""
ZEROS_AROUND = """
def forward(s, target):
    for buffer in ("value", "grad"):
        s.set_padding(buffer, (0, 0), (1, 1), (1, 1))
"""
ANOTHER_ORDER = """
def forward(s, target):
    for buffer in ("value", "grad"):
        s.transpose(buffer, 0, 2)
"""
PER_IMAGE = """
chain = ("conv", "relu")

def forward(s, target):
    s.fuse_layers("forward")
    s.parallelize("forward", "n")

def backward(s, target):
    s.fuse_layers("backward", "update")
    s.parallelize("backward", "k", optional=True)
    s.vectorize("backward", "x", target.simd_width or 4, optional=True)
"""
LEFT_APART = """
chain = ("conv", "relu")

def forward(s, target):
    s.fuse_layers("forward")
    s.recipe("conv", "forward")

def backward(s, target):
    s.decline("as it is asked for")
"""
KEPT_BETWEEN = """
chain = ("conv", "relu")

def forward(s, target):
    s.fuse_layers("forward", keep=["conv_value"])
    s.transpose("value", 0, 1)
    s.inline("forward", "conv_value", optional=True)
"""
INFERENCE_APART = """
def forward(s, target):
    s.parallelize("forward", "n")
    s.unroll("forward", "ky", 3, optional=True)

def inference(s, target):
    s.interchange("inference", ["y", "x"])
    s.tile_loop("inference", "y", 2, tail="peel")

def update(s, target):
    s.privatize("update", "grad_weights", "n", optional=True)
    s.vectorize("update", "y", 4, optional=True)
"""
RACE = """
def forward(s, target):
    s.parallelize("forward", "c")
"""
NOT_ITS_OWN = """
def forward(s, target):
    s.tile("inputs", 0, 16, reorder=False)
"""
UNKNOWN = """
def forward(s, target):
    s.vectorize("forward", "z", 8)
"""


def _with_recipes(
    declare: Callable[[Net, Path], object], **recipes: str
) -> Callable[[Net, Path], list[Ensemble] | None]:
    """The net with recipes for kinds of layers, or for chains of kinds."""

    def declared(net: Net, folder: Path) -> list[Ensemble] | None:
        declare(net, folder)
        for kind, text in recipes.items():
            path = folder / f"{kind}.py"
            path.write_text(text)
            net.use_recipe(kind, path)
        return None

    return declared


def _readers(net: Net, folder: Path) -> None:
    """Several readers of one convolution of 16 filters."""
    conv = ConvLayer(net, _data(net, 3, 6, 6), 16)
    pooled = MaxPoolingLayer(net, conv, 3, 1, 1, ceil_mode=False, clamp=False)
    for layer in (ReLULayer(net, conv), pooled):
        _classified(net, layer)


def _two_convolutions(net: Net, folder: Path) -> None:
    _classified(net, ConvLayer(net, ConvLayer(net, _data(net, 3, 6, 7), 20), 16))


def _conv_relu_alone(net: Net, folder: Path) -> None:
    ReLULayer(net, ConvLayer(net, _data(net, 3, 9, 9), num_filters=17, stride=2))


def _one_convolution(net: Net, folder: Path) -> None:
    ConvLayer(net, _data(net, 3, 6, 6), 6)


def _shared_data(net: Net, folder: Path) -> None:
    """The first reader of data lays it out, the second one copies it."""
    data = _data(net, 16, 5, 5)
    conv = ConvLayer(net, data, 16)
    conv.tile("inputs", dim=0, factor=4)
    pooled = MaxPoolingLayer(net, data, 3, 1, 1, ceil_mode=False, clamp=False)
    pooled.tile("inputs", dim=0, factor=8)
    for layer in (conv, pooled):
        _classified(net, layer)


def _commands(net: Net, folder: Path) -> None:
    """Commands of the thesis' recipes, given to the layers themselves."""
    conv = ConvLayer(net, _data(net, 3, 5, 16), num_filters=4)
    conv.tile("value", dim=0, factor=4)
    conv.tile("grad", dim=0, factor=4)
    norm = BatchNormLayer(net, conv)
    for phase, names in (("forward", ("inputs", "value")), ("backward", ("grad_inputs", "grad"))):
        for name in names:
            norm.tile(name, dim=0, factor=4)
        norm.parallelize(phase=phase, loop_var="_neuron_index_1_outer")
        norm.vectorize(phase=phase, loop_var="_neuron_index_1_inner", factor=4)
        norm.unroll(phase=phase, loop_var="_neuron_index_3", factor=2, unroll_type=0)
    _classified(net, norm)


def _flattened(net: Net, folder: Path) -> None:
    own = net.add_ensemble(ActivationEnsemble(Noisy, (4, 5, 6), ("c", "y", "x")))
    net.add_one_to_one_connections(ConvLayer(net, _data(net, 2, 5, 6), 4), own)
    own.flatten("forward", "y", "x", optional=True)
    own.vectorize("forward", "x", 8, optional=True)
    own.vectorize("backward", "x", 8, optional=True)
    _classified(net, own)


_DECLARED = {
    "digits": Specification(_digits, batch=6, smaller=5),
    "conv, batch norm, ReLU: few filters": Specification(_blocks(3), batch=5, smaller=1),
    "conv, batch norm, ReLU: ragged blocks": Specification(_blocks(33), force=True),
    "conv, batch norm, ReLU: one tap": Specification(_blocks(48, shape=(3, 4, 5), kernel=1, pad=0)),
    "conv, batch norm, ReLU: strides": Specification(_blocks(16, shape=(16, 9, 9), stride=2), smaller=1),
    "conv, ReLU": Specification(_conv_relu, force=True),
    "conv, ReLU, all kept": Specification(_conv_relu, keep="all"),
    "conv, ReLU, one kept": Specification(_kept),
    "batch norm of vectors": Specification(_norm_of_vectors, force=True, smaller=1),
    "two readers in a chain": Specification(_two_readers, force=True),
    "gradient set in between": Specification(_gradient_in_between),
    "gradient set inside a chain": Specification(_gradient_inside_a_chain),
    "residual": Specification(_residual),
    "chains that leave phases apart": Specification(_narrow_and_wide),
    "tanh": Specification(_tanh_of_vectors),
    "poolings": Specification(_poolings, force=True),
    "random numbers": Specification(_noise),
    "own neurons": Specification(_contrast, force=True),
    "recurrence": Specification(_horner, force=True),
    "layer norm": Specification(_layer_norm),
    "reorders": Specification(
        _with_recipes(_readers, conv=IN_BLOCKS, relu=IN_OTHER_BLOCKS, max_pooling=PLAINLY), force=True
    ),
    "weights in blocks": Specification(_with_recipes(_two_convolutions, conv=WEIGHTS_IN_BLOCKS)),
    "zeros around": Specification(_with_recipes(_two_convolutions, conv=ZEROS_AROUND)),
    "another order": Specification(_with_recipes(_two_convolutions, conv=ANOTHER_ORDER)),
    "data with two readers": Specification(_shared_data, force=True),
    "commands of the layers": Specification(_commands),
    "flattened": Specification(_flattened),
    "chain with its update": Specification(_with_recipes(_conv_relu, conv_relu=PER_IMAGE)),
    "chain that leaves backward apart": Specification(_with_recipes(_conv_relu, conv_relu=LEFT_APART)),
    "chain whose source stays": Specification(_with_recipes(_conv_relu_alone, conv_relu=KEPT_BETWEEN)),
    "inference by itself": Specification(_with_recipes(_one_convolution, conv=INFERENCE_APART)),
    "refused: a race": Specification(_with_recipes(_one_convolution, conv=RACE)),
    "refused: another layer's layout": Specification(_with_recipes(_two_convolutions, conv=NOT_ITS_OWN)),
    "refused: no such loop": Specification(_with_recipes(_one_convolution, conv=UNKNOWN)),
}


def _random(seed: int) -> Specification:
    case = RANDOM_NETS[seed]
    return Specification(case, case.batch, case.smaller or max(1, case.batch - 1))
