"""The kinds of layers of random nets: those of the library, and those of a user's.

The entry of a library's layer says how it is declared and what it is in PyTorch. Some have formulas of their own here,
which put noise on what is in between, find kinks, or know inference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latte import Net
from latte.ensemble import Ensemble
from latte.tools.library import LIBRARY
from latte.tools.library.entries import InRandomNets, LibraryLayer, Options, options_at
from tests.fuzz.net_layers import OWN_KINDS, Formula, Kind

Parameters = Mapping[str, Any]


# --- normalisations -------------------------------------------------------------------------------------------
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


def _standardized(f: Formula, x: Any, axes: Sequence[int]) -> Any:
    return normalized(f, x, *moments(f, x, axes), 1e-5)


def _layer_norm(f: Formula, name: str, xs: Sequence[Any], p: Parameters) -> Any:
    return p["gamma"] * _standardized(f, xs[0], tuple(range(1, xs[0].ndim))) + p["beta"]


def _group_norm(f: Formula, name: str, xs: Sequence[Any], p: Parameters, groups: int) -> Any:
    x = _standardized(f, xs[0].unflatten(1, (groups, -1)), (2, 3, 4)).flatten(1, 2)
    return p["gamma"].reshape(-1, 1, 1) * x + p["beta"].reshape(-1, 1, 1)


def _instance_norm(f: Formula, name: str, xs: Sequence[Any], p: Parameters) -> Any:
    return _group_norm(f, name, xs, p, xs[0].shape[1])


# --- windows --------------------------------------------------------------------------------------------------
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


def _mean_pooling(
    f: Formula,
    name: str,
    xs: Sequence[Any],
    p: Parameters,
    clamp: bool = False,
    count_include_pad: bool = True,
    **options: Any,
) -> Any:
    windows = windows_of(f.torch, xs[0], clamp=clamp, **options)
    if clamp:
        return windows.values.mean(-1)
    total = windows.values.masked_fill(~windows.inside, 0.0).sum(-1)
    return total / (windows.padded if count_include_pad else windows.inside).sum(-1)


FORMULAS = {
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "max_pooling": _pooling,
    "mean_pooling": _mean_pooling,
}
"""Formulas that are not those of the library's entries."""


# --- the table ------------------------------------------------------------------------------------------------
def _of_library(layer: LibraryLayer, kind: str, random: InRandomNets) -> Kind:
    def all_of(options: Options, shapes: Sequence[tuple[int, ...]]) -> dict[str, Any]:
        return {**options_at(random.options, shapes), **options_at(options, shapes)}

    def declare(net: Net, sources: Sequence[Ensemble], **options: Any) -> Ensemble:
        return layer.declare_one(net, *sources, options=all_of(options, [source.shape for source in sources]))

    def formula(f: Formula, name: str, xs: Sequence[Any], p: Parameters, **options: Any) -> Any:
        for kink in random.kinks:
            f.kink(kink(*xs))
        given = all_of(options, [tuple(x.shape[1:]) for x in xs])
        value = layer.computed(f.torch, *xs, options=given, **p)
        return value[0] if isinstance(value, list) else value

    return Kind(declare=declare, formula=FORMULAS.get(kind, formula), **vars(random))


KINDS: dict[str, Kind] = {
    **{kind: _of_library(layer, kind, random) for layer in LIBRARY.values() for kind, random in layer.random.items()},
    **OWN_KINDS,
}
