"""Maxima and means of windows."""

from __future__ import annotations

from typing import Any

from latte.tools.library.entries import Case, InRandomNets, LibraryLayer, Measured, PerAxis, one_source

WINDOWS: dict[str, tuple[Any, ...]] = {
    "kernel": PerAxis((2, 2, 3, 1, 4)),
    "stride": PerAxis((2, 1, 3)),
    "pad": PerAxis((0, 0, 1)),
    "ceil_mode": (True, False),
    "clamp": (True, False),
}


def _max(
    torch: Any, x: Any, kernel: Any = 2, stride: Any = 2, pad: Any = 0, ceil_mode: bool = False, clamp: bool = False
) -> Any:
    if clamp:
        x, pad, ceil_mode = _with_edges(torch, x, kernel, stride, pad, ceil_mode), 0, False
    return torch.nn.functional.max_pool2d(x, kernel, stride, pad, ceil_mode=ceil_mode)


def _mean(
    torch: Any,
    x: Any,
    kernel: Any = 2,
    stride: Any = 2,
    pad: Any = 0,
    ceil_mode: bool = False,
    clamp: bool = False,
    count_include_pad: bool = True,
) -> Any:
    if clamp:
        x, pad, ceil_mode = _with_edges(torch, x, kernel, stride, pad, ceil_mode), 0, False
    return torch.nn.functional.avg_pool2d(x, kernel, stride, pad, ceil_mode, count_include_pad)


def _with_edges(torch: Any, x: Any, kernel: Any, stride: Any, pad: Any, ceil_mode: bool) -> Any:
    """The source with its nearest edges wherever windows go beyond it."""
    around: list[int] = []
    for extent, k, s, before in zip(x.shape[2:], *(_both(each) for each in (kernel, stride, pad)), strict=True):
        room = extent + 2 * before - k
        last = (-(-room // s) if ceil_mode else room // s) * s
        around = [before, last + k - before - extent, *around]  # of columns first
    return torch.nn.functional.pad(x, around, mode="replicate")


def _both(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _rounded_up(kernel: Any, stride: Any, pad: Any, *shapes: tuple[int, ...]) -> dict[str, Case]:
    options = {"kernel": kernel, "stride": stride, "pad": pad, "ceil_mode": True}
    return {f"mean pooling {kernel} {stride} {pad} rounded up": Case(one_source(*shapes), options)}


LAYERS = (
    LibraryLayer(
        "MaxPoolingLayer",
        _max,
        cases={
            "max pooling": Case(one_source((3, 17, 5, 7), (2, 32, 8, 16)), {"kernel": 3, "pad": 1}),
            "max pooling of the edge": Case(one_source((3, 17, 6, 8)), {"kernel": 3, "ceil_mode": True, "clamp": True}),
        },
        measured={"max-pool": Measured(extent=2)},
        random={"max_pooling": InRandomNets(WINDOWS, ranks=(3,))},
    ),
    LibraryLayer(
        "MeanPoolingLayer",
        _mean,
        cases={
            "mean pooling": Case(one_source((3, 17, 5, 7), (2, 32, 8, 16)), {"kernel": 3, "pad": 1}),
            "mean pooling inside": Case(
                one_source((3, 17, 5, 7), (2, 32, 8, 15)),
                {"kernel": (3, 2), "stride": (2, 3), "pad": 1, "ceil_mode": True, "count_include_pad": False},
            ),
            **_rounded_up(2, 2, 0, (1, 1, 5, 5), (3, 17, 5, 7), (2, 32, 7, 16)),
            **_rounded_up(3, 2, 1, (1, 1, 6, 6), (3, 17, 6, 8), (2, 16, 5, 6)),
            **_rounded_up((3, 5), (2, 3), (1, 2), (2, 5, 8, 9), (2, 33, 6, 17)),
            **_rounded_up((4, 2), (3, 4), (2, 0), (2, 17, 9, 7)),
            **_rounded_up(3, 5, 1, (2, 3, 9, 14), (1, 1, 4, 4)),
            "mean pooling of the edge": Case(
                one_source((3, 17, 6, 8)), {"kernel": 3, "pad": 1, "ceil_mode": True, "clamp": True}
            ),
        },
        measured={"mean-pool": Measured(extent=2)},
        random={"mean_pooling": InRandomNets({**WINDOWS, "count_include_pad": (True, False)}, ranks=(3,), exact=False)},
    ),
    LibraryLayer(
        "GlobalMeanPoolingLayer",
        lambda torch, x: torch.nn.functional.adaptive_avg_pool2d(x, 1),
        cases={"global mean": Case(one_source((3, 17, 5, 7), (2, 33, 8, 16), (1, 1, 1, 1)))},
        measured={"global-mean-pool": Measured()},
        random={"global_mean_pooling": InRandomNets(ranks=(3,), exact=False)},
    ),
)
