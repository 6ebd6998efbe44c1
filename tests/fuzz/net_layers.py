"""Layers of a user's in random nets: how each is declared, and what it is in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from latte import Net
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.neuron import Field, Neuron, Param, eachindex, ones, sqrt
from latte.tools.library.entries import InRandomNets

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


def _leaky(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    f.kink(xs[0])
    return f.torch.where(xs[0] > 0, xs[0], 0.25 * xs[0])


def _scaled(f: Formula, name: str, xs: Sequence[Any], p: Mapping[str, Any]) -> Any:
    shape = (1, -1, *[1] * (xs[0].ndim - 2))
    return p["factor"].reshape(shape) * xs[0] + p["summand"].reshape(shape)


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


# --- the table ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Kind(InRandomNets):
    """A kind of layer.

    Args:
        declare: ``declare(net, sources, **options)``.
        formula: ``formula(f, name, sources, parameters, **options)`` in PyTorch.
    """

    declare: Declare
    formula: Callable[..., Any]


def _own(declare: Declare, formula: Callable[..., Any], **traits: Any) -> Kind:
    return Kind(declare=declare, formula=formula, **traits)


OWN_KINDS: dict[str, Kind] = {
    "doubled": _own(_elementwise(Doubled), _doubles),
    "leaky": _own(_elementwise(Leaky), _leaky, fraction=2),
    "scaled": _own(_elementwise(Scaled), _scaled),
    "added": _own(_of_two(Added, AddedImages), _sum, sources=2),
    "product": _own(_of_two(Product, ProductOfImages), _times, sources=2, multiplies=True),
    "blur": _own(_blur, _blurred, ranks=(3,), fraction=1),
    "edge": _own(_edge, _edged, ranks=(3,), fraction=1),
    "enlarged": _own(_enlarged, _larger, ranks=(3,)),
    "turned": _own(_turned, _flipped, ranks=(3,)),
    "rms_norm": _own(_rms_norm, _root, ranks=(3,), exact=False),
}
