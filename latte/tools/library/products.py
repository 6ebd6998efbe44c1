"""Convolutions and fully connected layers."""

from __future__ import annotations

from typing import Any

from latte.tools.library.entries import Case, InRandomNets, LibraryLayer, Measured, PerAxis, one_source

GROUPS = 8
"""Of channels, where they are measured."""
CLASSES = 1000
FILTERS = (4, 1, 3, 8, 15, 16, 16, 16, 17, 24, 32, 32, 33)
OUTPUTS = (5, 1, 2, 7, 10, 15, 16, 17, 33)
CONV = {
    "num_filters": FILTERS,
    "kernel": PerAxis((3, 1, 1, 2, 3, 3, 5)),
    "stride": PerAxis((1, 1, 1, 2, 3)),
    "pad": PerAxis((1, 0, 0, 1, 2)),
    "dilation": PerAxis((1, 1, 1, 1, 2, 3)),
}


def _conv(
    torch: Any,
    x: Any,
    weights: Any,
    bias: Any = None,
    num_filters: int = 0,
    kernel: Any = 3,
    stride: Any = 1,
    pad: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    flat = None if bias is None else bias.flatten()
    return torch.nn.functional.conv2d(x, weights, flat, stride, pad, dilation, groups)


def _transposed(
    torch: Any,
    x: Any,
    weights: Any,
    bias: Any,
    num_filters: int,
    kernel: Any = 3,
    stride: Any = 1,
    pad: Any = 0,
    dilation: Any = 1,
    output_padding: Any = 0,
) -> Any:
    return torch.nn.functional.conv_transpose2d(x, weights, bias.flatten(), stride, pad, output_padding, 1, dilation)


def _fully_connected(torch: Any, x: Any, weights: Any, bias: Any = None, num_outputs: int = 0) -> Any:
    return _of_positions(torch, x.flatten(1), weights.flatten(1), bias)


def _of_positions(torch: Any, x: Any, weights: Any, bias: Any = None, num_outputs: int = 0) -> Any:
    return torch.nn.functional.linear(x, weights, None if bias is None or bias is False else bias.flatten())


def _depthwise(source: tuple[int, ...]) -> dict[str, int]:
    return {"num_filters": source[0], "groups": source[0]}


def _conv_case(*shapes: tuple[int, ...], **options: Any) -> Case:
    return Case(one_source(*((3, *shape) for shape in shapes)), options)


LAYERS = (
    LibraryLayer(
        "ConvLayer",
        _conv,
        cases={
            "conv": _conv_case((3, 5, 7), (16, 8, 16), num_filters=17),
            "two groups": _conv_case((4, 5, 7), groups=2, num_filters=6),
            "groups of 16": _conv_case((48, 8, 16), (48, 5, 7), groups=3, num_filters=33),
            "depthwise": _conv_case((17, 5, 7), (17, 8, 16), groups=17, num_filters=17, stride=2),
            "depthwise, two filters each": _conv_case(
                (4, 9, 9), groups=4, num_filters=8, kernel=(3, 2), dilation=2, pad=(1, 2)
            ),
        },
        measured={
            "conv": Measured(options={"num_filters": 64}),
            "conv-grouped": Measured(options={"num_filters": 64, "groups": GROUPS}, channels=GROUPS),
            "conv-depthwise": Measured(options=_depthwise),
        },
        random={"conv": InRandomNets(CONV, ranks=(3,)), "depthwise": InRandomNets(options=_depthwise, ranks=(3,))},
    ),
    LibraryLayer(
        "ConvLayerNoBias",
        _conv,
        cases={
            "conv without bias": _conv_case((3, 5, 7), num_filters=17, stride=2),
            "depthwise without bias": _conv_case((32, 8, 8), groups=32, num_filters=32),
        },
        random={"conv_without_bias": InRandomNets(CONV, ranks=(3,))},
        lacks={"benchmark": "as ConvLayer"},
    ),
    LibraryLayer(
        "TransposedConvLayer",
        _transposed,
        cases={
            "transposed": _conv_case((3, 5, 7), num_filters=6),
            "transposed, enlarging": _conv_case((16, 4, 4), num_filters=17, kernel=4, stride=2, pad=1),
            "transposed, all options": _conv_case(
                (2, 5, 6), num_filters=3, kernel=(3, 2), stride=(2, 3), dilation=(1, 2), pad=(1, 0), output_padding=1
            ),
            "transposed, one pixel": _conv_case((1, 1, 1), num_filters=1, kernel=1),
        },
        measured={"conv-transposed": Measured(options={"num_filters": 64, "kernel": 2, "stride": 2})},
        random={
            "transposed_conv": InRandomNets(
                {
                    "num_filters": FILTERS,
                    "kernel": PerAxis((3, 1, 2, 4)),
                    "stride": PerAxis((1, 2, 2, 3)),
                    "pad": PerAxis((0, 0, 1)),
                },
                ranks=(3,),
            )
        },
    ),
    LibraryLayer(
        "FullyConnectedLayer",
        _fully_connected,
        cases={"fully connected": Case(one_source((3, 17), (2, 3, 5, 7)), {"num_outputs": 19})},
        measured={"fully-connected": Measured(options={"num_outputs": CLASSES}, source="vector")},
        random={"fully_connected": InRandomNets({"num_outputs": OUTPUTS})},
    ),
    LibraryLayer(
        "FullyConnectedLayerNoBias",
        _fully_connected,
        cases={"fully connected without bias": Case(one_source((3, 17), (2, 3, 5, 7)), {"num_outputs": 16})},
        random={"fully_connected_without_bias": InRandomNets({"num_outputs": OUTPUTS})},
        lacks={"benchmark": "as FullyConnectedLayer"},
    ),
    LibraryLayer(
        "PositionwiseLinearLayer",
        _of_positions,
        cases={
            "linear of positions": Case(one_source((3, 5, 7), (2, 16, 32), (1, 1, 1)), {"num_outputs": 19}),
            "linear of positions without bias": Case(one_source((3, 5, 7)), {"num_outputs": 16, "bias": False}),
        },
        measured={"positionwise-linear": Measured(options={"num_outputs": 64}, source="sequence")},
        lacks={"random nets": "it reads sequences; random nets have vectors and images"},
    ),
)
