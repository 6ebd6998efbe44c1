"""The kinds of layers of random nets: how each is declared, and what it is in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from latte import (
    AddLayer,
    BatchNormLayer,
    ConcatLayer,
    ConvLayer,
    ConvLayerNoBias,
    FlattenLayer,
    FullyConnectedLayer,
    FullyConnectedLayerNoBias,
    MaxPoolingLayer,
    Net,
    PaddingLayer,
    PermuteLayer,
    ReLULayer,
    SplitLayer,
    TanhLayer,
)
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.neuron import Field, Neuron, Param, eachindex, ones, sqrt

IMAGE, VECTOR = ("c", "y", "x"), ("c",)


# --- layers of a user's, which have no recipe ---------------------------------------------------------------
class Doubled(Neuron):
    def forward(self) -> None:
        self.value = 2.0 * self.input


class Leaky(Neuron):
    def forward(self) -> None:
        self.value = self.input if self.input > 0.0 else 0.25 * self.input


class Scaled(Neuron):
    """One factor and one summand for each channel."""

    factor = Param("c", shape=(1,), init=ones)
    summand = Param("c", shape=(1,), init=ones)

    def forward(self) -> None:
        self.value = self.factor[0] * self.input + self.summand[0]


class Added(Neuron):
    """Of two vectors."""

    def forward(self) -> None:
        self.value = self.inputs[0] + 2.0 * self.inputs1[0]


class AddedImages(Neuron):
    def forward(self) -> None:
        self.value = self.inputs[0, 0, 0] + 2.0 * self.inputs1[0, 0, 0]


class Product(Neuron):
    """Of two vectors."""

    def forward(self) -> None:
        self.value = self.inputs[0] * self.inputs1[0]


class ProductOfImages(Neuron):
    def forward(self) -> None:
        self.value = self.inputs[0, 0, 0] * self.inputs1[0, 0, 0]


class Blur(Neuron):
    def forward(self) -> None:
        self.value = 0.0
        for i in eachindex(self.inputs):
            self.value += 0.5 * self.inputs[i]


class One(Neuron):
    """The one element that a mapping names."""

    def forward(self) -> None:
        self.value = self.inputs[0, 0, 0]


class RMSNorm(Ensemble):
    """Each image divided by the root of its mean square."""

    gain = Param("c", init=ones)
    scale = Field("n")

    def __init__(self, shape: tuple[int, ...]):
        super().__init__(shape=shape, dims=IMAGE)

    def forward(self, inputs, value, scale, gain):  # type: ignore[no-untyped-def]
        N, C, H, W = inputs.shape
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        scale[n] += inputs[n, c, h, w] * inputs[n, c, h, w]
        for n in range(N):
            scale[n] = 1.0 / sqrt(scale[n] / (C * H * W) + 0.25)
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        value[n, c, h, w] = gain[c] * scale[n] * inputs[n, c, h, w]


def _dims(source: Ensemble) -> tuple[str, ...]:
    return IMAGE if source.ndim == 3 else VECTOR


def _elementwise(neuron: type[Neuron]) -> Declare:
    def declare(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
        made = net.add_ensemble(ActivationEnsemble(neuron, sources[0].shape, _dims(sources[0])))
        net.add_one_to_one_connections(sources[0], made)
        return made

    return declare


def _of_two(vectors: type[Neuron], images: type[Neuron]) -> Declare:
    def declare(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
        first = sources[0]
        neuron = images if first.ndim == 3 else vectors
        made = net.add_ensemble(Ensemble(neuron, first.shape, _dims(first)))
        for source in sources:
            net.add_one_to_one_connections(source, made)
        return made

    return declare


def _mapped(
    neuron: type[Neuron], mapping: Callable[..., Any], shape: Sequence[int] | None = None, **options: Any
) -> Declare:
    def declare(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
        made = net.add_ensemble(Ensemble(neuron, tuple(shape or sources[0].shape), IMAGE))
        net.add_connections(sources[0], made, mapping, **options)
        return made

    return declare


def _blur(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
    def mapping(c, y, x):  # type: ignore[no-untyped-def]
        return range(c, c + 1), range(y, y + 3), range(x, x + 3)

    return _mapped(Blur, mapping, padding=(0, 1, 1))(net, sources)


def _edge(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
    """The sum of a pixel and its neighbours above and left; at the border the edge itself."""

    def mapping(c, y, x):  # type: ignore[no-untyped-def]
        return range(c, c + 1), range(y - 1, y + 1), range(x - 1, x + 1)

    return _mapped(Blur, mapping, clamp=True)(net, sources)


def _enlarged(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
    def mapping(c, y, x):  # type: ignore[no-untyped-def]
        return range(c, c + 1), range(y // 2, y // 2 + 1), range(x // 2, x // 2 + 1)

    channels, height, width = sources[0].shape
    return _mapped(One, mapping, (channels, 2 * height, 2 * width))(net, sources)


def _turned(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
    """Columns in reverse, rows and channels as they are."""
    last = sources[0].shape[2] - 1

    def mapping(c, y, x):  # type: ignore[no-untyped-def]
        return range(c, c + 1), range(y, y + 1), range(last - x, last - x + 1)

    return _mapped(One, mapping)(net, sources)


def _padded(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
    return PaddingLayer(net, sources[0], (1, 0, (1, 2)), "edge")


def _first_last(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
    return PermuteLayer(net, sources[0], (1, 2, 0))


def _half(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
    """The first half of the channels; all of one."""
    channels = sources[0].shape[0]
    first = -(-channels // 2)
    return SplitLayer(net, sources[0], [first, channels - first] if channels > 1 else [1])[0]


def _depthwise(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
    channels = sources[0].shape[0]
    return ConvLayer(net, sources[0], num_filters=channels, groups=channels)


def _rms_norm(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
    made = net.add_ensemble(RMSNorm(sources[0].shape))
    net.add_one_to_one_connections(sources[0], made)
    return made


Declare = Callable[..., Ensemble]


# --- in PyTorch -----------------------------------------------------------------------------------------------
@dataclass
class Formula:
    """The inputs and findings of the formulas of one evaluation.

    Args:
        torch: the module.
        training: the phase.
        states: running statistics, by storage name; changed in training.
        rounded: puts noise on a value and on its gradient, to see how far roundings reach.
        kinks: how near a kink (a ReLU's zero, two equal elements of a window) values have come: the least distance,
            relative to the greatest value.
    """

    torch: Any
    training: bool
    states: dict[str, Any]
    rounded: Callable[[Any], Any] = lambda tensor: tensor
    kinks: list[float] = field(default_factory=list)

    def near(self, distance: Any, scale: Any) -> None:
        if distance.numel():
            self.kinks.append(float(distance.min() / scale.clamp(min=1e-30)))

    def kink(self, x: Any) -> None:
        """``x`` meets a kink at zero; a ReLU's zeros are exact."""
        flat = x.detach().abs().flatten()
        if float(x.detach().min()) >= 0:
            flat = flat[flat > 0]
        self.near(flat, x.detach().abs().max())


def _conv(
    f: Formula,
    name: str,
    xs: Sequence[Any],
    p: Mapping[str, Any],
    num_filters: int,
    kernel: Any = 3,
    stride: Any = 1,
    pad: Any = 1,
    dilation: Any = 1,
) -> Any:
    bias = p["bias"][:, 0] if "bias" in p else None
    return f.torch.nn.functional.conv2d(xs[0], p["weights"], bias, stride, pad, dilation)


def _fully_connected(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any], num_outputs: int) -> Any:
    product = xs[0].flatten(1) @ p["weights"].flatten(1).T
    return product + p["bias"][:, 0] if "bias" in p else product


def moments(f: Formula, x: Any, axes: Sequence[int]) -> tuple[Any, Any]:
    """The mean and the variance along some axes, which stay with extent 1; roundings leave squares positive."""
    mean = f.rounded(x.mean(axes, keepdim=True))
    return mean, f.rounded((f.rounded(x - mean) ** 2).mean(axes, keepdim=True)).clamp(min=0.0)


def normalized(f: Formula, x: Any, mean: Any, var: Any, epsilon: float) -> Any:
    return f.rounded(f.rounded(x - mean) / f.torch.sqrt(var + epsilon))


def _batch_norm(
    f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any], epsilon: float = 1e-5, momentum: float = 0.1
) -> Any:
    (x,) = xs
    axes = [0, *range(2, x.ndim)]

    def each(values: Any) -> Any:
        return values.reshape(1, -1, *[1] * (x.ndim - 2))

    mean_name, var_name = f"{name}.running_mean", f"{name}.running_var"
    if f.training:
        count = x.numel() // x.shape[1]
        mean, var = moments(f, x, axes)
        for key, new in ((mean_name, mean), (var_name, var * count / max(count - 1, 1))):
            f.states[key] = (1 - momentum) * f.states[key] + momentum * new.detach().flatten()
    else:
        mean, var = each(f.states[mean_name]), each(f.states[var_name])
    return each(p["gamma"]) * normalized(f, x, mean, var, epsilon) + each(p["beta"])


def _relu(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    f.kink(xs[0])
    return f.torch.relu(xs[0])


def _leaky(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    f.kink(xs[0])
    return f.torch.where(xs[0] > 0, xs[0], 0.25 * xs[0])


def _scaled(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    shape = (1, -1, *[1] * (xs[0].ndim - 2))
    return p["factor"].reshape(shape) * xs[0] + p["summand"].reshape(shape)


@dataclass(frozen=True)
class Windows:
    """The windows of a pooling layer.

    Args:
        values: n, c, y, x, element of the window; outside of the source the nearest edge.
        place: of each element in the source, as a number; y, x, element.
        inside: whether it is inside.
        padded: whether it is inside of the padded source.
    """

    values: Any
    place: Any
    inside: Any
    padded: Any


def windows_of(
    torch: Any, x: Any, kernel: Any = 2, stride: Any = 2, pad: Any = 0, ceil_mode: bool = False, clamp: bool = False
) -> Windows:
    (ky, kx), (sy, sx), (py, px) = (v if isinstance(v, tuple) else (v, v) for v in (kernel, stride, pad))
    sizes = []
    for extent, k, s, around in zip(x.shape[2:], (ky, kx), (sy, sx), (py, px), strict=True):
        room = extent + 2 * around - k
        count = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and not clamp and (count - 1) * s >= extent + around:
            count -= 1
        sizes.append(count)
    places = []
    for count, k, s, around, extent in zip(sizes, (ky, kx), (sy, sx), (py, px), x.shape[2:], strict=True):
        at = torch.arange(count)[:, None] * s - around + torch.arange(k)[None, :]
        places.append((at.clamp(0, extent - 1), (at >= 0) & (at < extent), at < extent + around))
    (rows, *rows_in), (columns, *columns_in) = places
    values = x[:, :, rows][:, :, :, :, columns].permute(0, 1, 2, 4, 3, 5).flatten(4)
    place = (rows[:, None, :, None] * x.shape[3] + columns[None, :, None, :]).flatten(2)
    inside, padded = (
        (of_rows[:, None, :, None] & of_columns[None, :, None, :]).flatten(2)
        for of_rows, of_columns in zip(rows_in, columns_in, strict=True)
    )
    return Windows(values, place, inside, padded)


def _pooling(
    f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any], clamp: bool = False, **options: Any
) -> Any:
    """The first greatest element of each window, in row-major order."""
    torch, (x,) = f.torch, xs
    found = windows_of(torch, x, clamp=clamp, **options)
    windows = found.values if clamp else found.values.masked_fill(~found.inside, -float("inf"))
    best = windows.detach().max(-1, keepdim=True).values
    numbers = torch.arange(windows.shape[-1]).expand(windows.shape)
    first = torch.where(windows.detach() == best, numbers, windows.shape[-1]).min(-1, keepdim=True).values
    won = found.place.expand(windows.shape).gather(-1, first)
    gaps = (best - windows.detach())[(found.place != won) & ~((best == 0) & (float(x.detach().min()) >= 0))]
    f.near(gaps, x.detach().abs().max())
    return windows.gather(-1, first)[..., 0]


def _blurred(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    channels = xs[0].shape[1]
    kernel = f.torch.full((channels, 1, 3, 3), 0.5, dtype=xs[0].dtype)
    return f.torch.nn.functional.conv2d(xs[0], kernel, padding=1, groups=channels)


def _edged(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    x = f.torch.nn.functional.pad(xs[0], (1, 0, 1, 0), mode="replicate")
    return 0.5 * (x[:, :, 1:, 1:] + x[:, :, :-1, 1:] + x[:, :, 1:, :-1] + x[:, :, :-1, :-1])


def _root(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    scale = f.rounded(1 / f.torch.sqrt((xs[0] ** 2).mean((1, 2, 3), keepdim=True) + 0.25))
    return p["gain"].reshape(1, -1, 1, 1) * scale * xs[0]


def _doubles(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    return 2 * xs[0]


def _sum(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    return xs[0] + 2 * xs[1]


def _times(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    return xs[0] * xs[1]


def _larger(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    return xs[0].repeat_interleave(2, 2).repeat_interleave(2, 3)


def _flipped(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    return xs[0].flip(3)


def _beside(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    return f.torch.cat(list(xs), 1)


def _added(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    return xs[0] + xs[1]


def _with_edges(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    x = f.torch.nn.functional.pad(xs[0], (1, 2, 0, 0), mode="replicate")
    return f.torch.cat([x[:, :1], x, x[:, -1:]], 1)


def _moved(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    return xs[0].permute(0, 2, 3, 1)


def _flat(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    return xs[0].flatten(1)


def _first_half(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    return xs[0][:, : -(-xs[0].shape[1] // 2)]


def _by_channel(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    channels = xs[0].shape[1]
    return f.torch.nn.functional.conv2d(xs[0], p["weights"], p["bias"][:, 0], 1, 1, 1, channels)


def _tanh(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    return f.torch.tanh(xs[0])


# --- the table ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Kind:
    """A kind of layer.

    Args:
        declare: ``declare(net, sources, **options)``.
        formula: ``formula(f, name, sources, parameters, **options)`` in PyTorch.
        ranks: of the sources, without the batch.
        sources: how many it reads.
        exact: whether it computes whole numbers (or halves and quarters) from such.
    """

    declare: Declare
    formula: Callable[..., Any]
    ranks: tuple[int, ...] = (1, 3)
    sources: int = 1
    exact: bool = True


def with_one(constructor: Callable[..., Ensemble]) -> Declare:
    """A constructor of the layer library, which takes its single source."""

    def declare(net: Net, sources: Sequence[Ensemble], **options: Any) -> Ensemble:
        return constructor(net, sources[0], **options)

    return declare


def with_list(constructor: Callable[..., Ensemble]) -> Declare:
    """A constructor of the layer library, which takes a list of sources."""

    def declare(net: Net, sources: Sequence[Ensemble]) -> Ensemble:
        return constructor(net, list(sources))

    return declare


FIRST_KINDS: dict[str, Kind] = {
    "conv": Kind(with_one(ConvLayer), _conv, (3,)),
    "conv_without_bias": Kind(with_one(ConvLayerNoBias), _conv, (3,)),
    "fully_connected": Kind(with_one(FullyConnectedLayer), _fully_connected),
    "fully_connected_without_bias": Kind(with_one(FullyConnectedLayerNoBias), _fully_connected),
    "batch_norm": Kind(with_one(BatchNormLayer), _batch_norm, exact=False),
    "relu": Kind(with_one(ReLULayer), _relu),
    "tanh": Kind(with_one(TanhLayer), _tanh, exact=False),
    "max_pooling": Kind(with_one(MaxPoolingLayer), _pooling, (3,)),
    "doubled": Kind(_elementwise(Doubled), _doubles),
    "leaky": Kind(_elementwise(Leaky), _leaky),
    "scaled": Kind(_elementwise(Scaled), _scaled),
    "added": Kind(_of_two(Added, AddedImages), _sum, sources=2),
    "product": Kind(_of_two(Product, ProductOfImages), _times, sources=2),
    "blur": Kind(_blur, _blurred, (3,)),
    "edge": Kind(_edge, _edged, (3,)),
    "enlarged": Kind(_enlarged, _larger, (3,)),
    "turned": Kind(_turned, _flipped, (3,)),
    "concat": Kind(with_list(ConcatLayer), _beside, sources=2),
    "add": Kind(with_list(AddLayer), _added, sources=2),
    "padding": Kind(_padded, _with_edges, (3,)),
    "permute": Kind(_first_last, _moved, (3,)),
    "flatten": Kind(with_one(FlattenLayer), _flat, (3,)),
    "split": Kind(_half, _first_half),
    "depthwise": Kind(_depthwise, _by_channel, (3,)),
    "rms_norm": Kind(_rms_norm, _root, (3,), exact=False),
}
