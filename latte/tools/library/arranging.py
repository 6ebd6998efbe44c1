"""Layers that combine sources, and that move their elements."""

from __future__ import annotations

from functools import reduce
from math import floor
from operator import add, mul
from typing import Any

from latte.tools.library.entries import Case, InRandomNets, LibraryLayer, Measured, Shape, one_source, several_sources

IMAGES = one_source((3, 3, 5, 7), (3, 17, 8, 16), (3, 1, 1, 1))
PAIRS = several_sources(((5,),) * 2, ((2, 7),) * 2, ((3, 5, 7),) * 2, ((2, 3, 2, 3),) * 2)


def _split(torch: Any, x: Any, sizes: Any, axis: int = 0) -> list[Any]:
    return [part.contiguous() for part in torch.split(x, list(sizes), axis + 1)]


def _halves(source: Shape) -> dict[str, Any]:
    """The first half of the channels is the larger one; one channel is not divided."""
    first = -(-source[0] // 2)
    return {"sizes": (first, source[0] - first) if source[0] > 1 else (1,)}


def _padding(torch: Any, x: Any, pad: Any, mode: str = "zero") -> Any:
    around = [each if isinstance(each, tuple) else (each, each) for each in pad]
    if mode == "edge":
        for dim, (before, after) in enumerate(around, 1):
            extent = x.shape[dim]
            x = x.index_select(dim, torch.arange(-before, extent + after).clamp(0, extent - 1))
        return x
    while around[:1] == [(0, 0)]:  # fewer dimensions are faster
        around = around[1:]
    return torch.nn.functional.pad(x, [number for each in around[::-1] for number in each])


def _interpolation(
    torch: Any, x: Any, pad: int = 0, resize_factor: float = 1.0, mode: str = "bilinear", centred: bool = False
) -> Any:
    resized = torch.nn.functional.interpolate
    if mode == "nearest":
        return resized(x, scale_factor=resize_factor, mode="nearest-exact" if centred else "nearest")
    if centred:
        return resized(x, scale_factor=resize_factor, mode="bilinear", align_corners=False)
    return _original_bilinear(torch, x, pad, resize_factor)


def _original_bilinear(torch: Any, x: Any, pad: int, factor: float) -> Any:
    """The rule of the original, row by row and column by column."""

    def axis(extent: int) -> tuple[Any, Any, Any]:
        position = torch.arange(floor(extent * factor) - pad, dtype=x.dtype) / factor
        first = (position.floor() - pad).clamp(0, extent - 1).long()
        return position - position.floor(), first, (first + 1).clamp(max=extent - 1)

    (down, top, bottom), (right, left, other) = axis(x.shape[2]), axis(x.shape[3])
    rows = x[:, :, top] * (1 - down)[:, None] + x[:, :, bottom] * down[:, None]
    return rows[:, :, :, left] * (1 - right) + rows[:, :, :, other] * right


LAYERS = (
    LibraryLayer(
        "ConcatLayer",
        lambda torch, *xs, axis=0: torch.cat(xs, axis + 1),
        cases={
            "concat": Case(
                several_sources(((3,), (17,)), ((2, 5), (4, 5), (1, 5)), ((3, 5, 7), (1, 5, 7), (16, 5, 7), (2, 5, 7)))
            ),
            "concat rows": Case(several_sources(((2, 5), (2, 3)), ((3, 5, 7), (3, 1, 7))), {"axis": 1}),
            "concat twice": Case(IMAGES[:1], reads=(0, 0)),
        },
        measured={"concat": Measured(times=2)},
        random={"concat": InRandomNets(sources=2)},
        list_of_sources=True,
    ),
    LibraryLayer(
        "SplitLayer",
        _split,
        cases={
            "split": Case(one_source((3, 20), (3, 20, 5), (3, 20, 5, 7)), {"sizes": [1, 16, 3]}),
            "split columns": Case(IMAGES[:1], {"sizes": (5, 2), "axis": 2}),
        },
        measured={
            "split": Measured(options=_halves, channels=2, lines=lambda torch, x, sizes: x[:, : sizes[0]].contiguous())
        },
        random={"split": InRandomNets(options=_halves)},
    ),
    LibraryLayer(
        "AddLayer",
        lambda torch, *xs: reduce(add, xs),
        cases={
            "add": Case(PAIRS),
            "add of three": Case(PAIRS[2:3], reads=(0, 1, 0)),
            "add to all": Case(several_sources(((3, 7), (1, 7)), ((1, 5, 7), (3, 1, 7)))),
        },
        measured={"add": Measured(times=2)},
        random={"add": InRandomNets(sources=2)},
        list_of_sources=True,
    ),
    LibraryLayer(
        "MultiplyLayer",
        lambda torch, *xs: reduce(mul, xs),
        cases={
            "multiply": Case(PAIRS),
            "multiply of three": Case(PAIRS[2:3], reads=(0, 1, 0)),
            "multiply by a gate": Case(several_sources(((17, 5, 7), (17, 1, 1)), ((1,), (5,)))),
        },
        measured={"multiply": Measured(times=2)},
        random={"multiply": InRandomNets(sources=2, multiplies=True)},
        list_of_sources=True,
    ),
    LibraryLayer(
        "ResidualSumLayer",
        lambda torch, x, y, scale=1.0: x + scale * y,
        cases={"residual sum": Case(PAIRS, {"scale": 0.3})},
        measured={"residual": Measured(options={"scale": 0.5}, times=2)},
        random={"residual_sum": InRandomNets(options={"scale": 0.5}, sources=2, fraction=1)},
    ),
    LibraryLayer(
        "InterpolationLayer",
        _interpolation,
        cases={
            "original": Case(one_source((3, 1, 34, 33), (3, 3, 16, 9)), {"pad": -1, "resize_factor": 0.125}),
            "original enlarged": Case(one_source((3, 3, 5, 7), (3, 1, 1, 2)), {"resize_factor": 2.0}),
            "original by three halves": Case(IMAGES[:1], {"pad": 1, "resize_factor": 1.5}),
            "bilinear": Case(IMAGES[:2], {"resize_factor": 2, "centred": True}),
            "bilinear by two thirds": Case(IMAGES[:1], {"resize_factor": 2 / 3, "centred": True}),
            "nearest": Case(one_source((3, 3, 5, 7), (3, 1, 8, 16)), {"mode": "nearest", "resize_factor": 1.5}),
            "nearest centre": Case(IMAGES[:1], {"mode": "nearest", "resize_factor": 0.5, "centred": True}),
        },
        measured={
            "nearest": Measured(
                options={"resize_factor": 2.0, "mode": "nearest", "centred": True},
                lines=lambda torch, x, **_: torch.nn.functional.interpolate(x, scale_factor=2),
            ),
            "bilinear": Measured(options={"resize_factor": 2.0, "centred": True}),
        },
        random={
            "nearest": InRandomNets(options={"resize_factor": 2.0, "mode": "nearest", "centred": True}, ranks=(3,)),
            "bilinear": InRandomNets(options={"resize_factor": 2.0, "centred": True}, ranks=(3,), exact=False),
        },
    ),
    LibraryLayer(
        "PaddingLayer",
        _padding,
        cases={
            "zeros around": Case(IMAGES, {"pad": (0, (1, 2), 3)}),
            "edges around": Case(IMAGES, {"pad": (0, (1, 2), 3), "mode": "edge"}),
        },
        measured={"padding": Measured(options={"pad": (0, 1, 1)})},
        random={"padding": InRandomNets(options={"pad": (1, 0, (1, 2)), "mode": "edge"}, ranks=(3,))},
    ),
    LibraryLayer(
        "FlattenLayer",
        lambda torch, x: x.flatten(1).clone(),
        cases={"flatten": Case((*IMAGES, *one_source((3, 3, 5), (3, 4))))},
        measured={"flatten": Measured()},
        random={"flatten": InRandomNets(ranks=(3,))},
    ),
    LibraryLayer(
        "ReshapeLayer",
        lambda torch, x, shape: x.reshape(len(x), *shape).clone(),
        cases={"reshape": Case(one_source((3, 3, 10, 7), (3, 15)), {"shape": (5, -1)})},
        measured={"reshape": Measured(options=lambda source: {"shape": source[::-1]})},
        random={"reshape": InRandomNets(options=lambda source: {"shape": source[::-1]}, ranks=(3,))},
    ),
    LibraryLayer(
        "PermuteLayer",
        lambda torch, x, order: x.permute(0, *(dim + 1 for dim in order)).clone(memory_format=torch.contiguous_format),
        cases={"permute": Case(IMAGES, {"order": (1, 2, 0)})},
        measured={"permute": Measured(options={"order": (1, 2, 0)})},
        random={"permute": InRandomNets(options={"order": (1, 2, 0)}, ranks=(3,))},
    ),
)
