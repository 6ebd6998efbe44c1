"""Functions of an element, and softmax."""

from __future__ import annotations

from typing import Any

from latte.tools.library.entries import Case, Definition, InRandomNets, LibraryLayer, Measured, one_source

IMAGES = ((3, 17, 5, 7), (2, 33, 8, 16), (1, 1, 1, 1))
ANY = one_source((3, 17), (2, 3, 5), *IMAGES)
TWO = one_source((3, 17, 5, 7), (2, 3, 5))
"""For functions of an element, which differ in their bodies alone."""
ALONG_ROWS = one_source((2, 3, 5), (3, 7, 32))


def _functional(name: str) -> Definition:
    """A function of ``torch.nn.functional``."""
    return lambda torch, x, **options: getattr(torch.nn.functional, name)(x, **options)


def _along_classes(name: str) -> Definition:
    """One along the channels, or the features of a sequence."""
    return lambda torch, x: getattr(torch.nn.functional, name)(x, 2 if x.ndim == 3 else 1)


def _from_zero(x: Any) -> Any:
    return x


LAYERS = (
    LibraryLayer(
        "ReLULayer",
        _functional("relu"),
        cases={"relu": Case(TWO)},
        measured={"relu": Measured()},
        random={"relu": InRandomNets(kinks=(_from_zero,))},
    ),
    LibraryLayer(
        "ReLU6Layer",
        _functional("relu6"),
        cases={"relu6": Case(TWO)},
        measured={"relu6": Measured()},
        random={"relu6": InRandomNets(kinks=(_from_zero, lambda x: 6 - x))},
    ),
    LibraryLayer(
        "LeakyReLULayer",
        _functional("leaky_relu"),
        cases={"leaky relu": Case(TWO, {"negative_slope": 0.1})},
        measured={"leaky-relu": Measured()},
        random={"leaky_relu": InRandomNets(exact=False, kinks=(_from_zero,))},
    ),
    LibraryLayer(
        "PReLULayer",
        lambda torch, x, slope: torch.nn.functional.prelu(x, slope.flatten()),
        cases={"prelu": Case(ANY)},
        measured={"prelu": Measured()},
        random={"prelu": InRandomNets(kinks=(_from_zero,))},
    ),
    LibraryLayer(
        "ELULayer",
        _functional("elu"),
        cases={"elu": Case(TWO, {"alpha": 0.7})},
        measured={"elu": Measured()},
        random={"elu": InRandomNets(exact=False)},
    ),
    LibraryLayer(
        "GELULayer",
        _functional("gelu"),
        cases={"gelu": Case(TWO), "gelu by tanh": Case(TWO, {"approximate": "tanh"})},
        measured={"gelu": Measured(), "gelu-tanh": Measured(options={"approximate": "tanh"})},
        random={"gelu": InRandomNets({"approximate": ("none", "tanh")}, exact=False)},
    ),
    LibraryLayer(
        "SoftplusLayer",
        _functional("softplus"),
        cases={"softplus": Case(TWO), "sharp softplus": Case(TWO, {"beta": 2.5})},
        measured={"softplus": Measured()},
        random={"softplus": InRandomNets({"beta": (1.0, 2.5)}, exact=False)},
    ),
    LibraryLayer(
        "SiLULayer",
        _functional("silu"),
        cases={"silu": Case(TWO)},
        measured={"silu": Measured()},
        random={"silu": InRandomNets(exact=False)},
    ),
    LibraryLayer(
        "SigmoidLayer",
        lambda torch, x: torch.sigmoid(x),
        cases={"sigmoid": Case(ANY)},
        measured={"sigmoid": Measured()},
        random={"sigmoid": InRandomNets(exact=False)},
    ),
    LibraryLayer(
        "TanhLayer",
        lambda torch, x: torch.tanh(x),
        cases={"tanh": Case(TWO)},
        measured={"tanh": Measured()},
        random={"tanh": InRandomNets(exact=False)},
    ),
    LibraryLayer(
        "SoftmaxLayer",
        _along_classes("softmax"),
        cases={"softmax": Case(one_source((3, 17), *IMAGES)), "softmax of sequences": Case(ALONG_ROWS)},
        measured={"softmax": Measured()},
        random={"softmax": InRandomNets(exact=False)},
    ),
    LibraryLayer(
        "LogSoftmaxLayer",
        _along_classes("log_softmax"),
        cases={"log softmax": Case(one_source((3, 17), *IMAGES)), "log softmax of sequences": Case(ALONG_ROWS)},
        measured={"log-softmax": Measured()},
        random={"log_softmax": InRandomNets(exact=False)},
    ),
)
