"""Losses and measures of them, and data."""

from __future__ import annotations

from typing import Any

from latte.tools.library.entries import UNIFORM, Case, LibraryLayer, Measured, Need, below, several_sources

USUAL = "256,1000,1"
LAST: dict[Need, str] = {"random nets": "only a net's last layer may be one: a softmax loss, or none"}
LABELS = several_sources(((5,), (1,)), ((7, 5), (7,)), ((5, 3, 4), (3, 4)), batch=6)
SHAPES = ((4, 1), (3, 17), (33, 64), (2, 3, 5), (2, 3, 5, 7))


def _softmax_loss(
    torch: Any, x: Any, label: Any, class_weights: Any = None, label_smoothing: float = 0.0, ignore_label: int = -100
) -> Any:
    weights = None if class_weights is None else torch.tensor(class_weights, dtype=x.dtype)
    x = x.transpose(1, 2) if x.ndim == 3 else x
    target = label.detach().long().reshape(len(x), *x.shape[2:])
    found = torch.nn.functional.cross_entropy(
        x, target, weights, label_smoothing=label_smoothing, ignore_index=ignore_label
    )
    return found.reshape(1)


def _loss(name: str) -> Any:
    """A function of ``torch.nn.functional`` of numbers and targets, which get no gradient."""

    def definition(torch: Any, x: Any, target: Any, **options: Any) -> Any:
        return getattr(torch.nn.functional, name)(x, target.detach(), **options).reshape(1)

    return definition


def _targets(*shapes: tuple[int, ...], **options: Any) -> Case:
    sizes = tuple(several_sources((tuple(shape), tuple(shape)), batch=batch)[0] for batch, *shape in shapes)
    return Case(sizes, options, data={1: UNIFORM})


LAYERS = (
    LibraryLayer(
        "SoftmaxLossLayer",
        _softmax_loss,
        cases={"softmax loss": Case(LABELS, data={1: below(5, integers=False)})},
        measured={"softmax-loss": Measured(beside="classes", source="vector", usual=USUAL)},
        lacks=LAST,
    ),
    LibraryLayer(
        "MeanSquaredErrorLayer",
        _loss("mse_loss"),
        cases={"squared": _targets(*SHAPES[::2])},
        measured={"squared-loss": Measured(beside="numbers", source="vector", usual=USUAL)},
        lacks=LAST,
    ),
    LibraryLayer(
        "L1LossLayer",
        _loss("l1_loss"),
        cases={"l1": _targets(*SHAPES[::2])},
        measured={"l1-loss": Measured(beside="numbers", source="vector", usual=USUAL)},
        lacks=LAST,
    ),
    LibraryLayer(
        "HuberLossLayer",
        _loss("huber_loss"),
        cases={"huber": _targets(*SHAPES[::2], delta=0.4)},
        measured={"huber-loss": Measured(beside="numbers", source="vector", usual=USUAL)},
        lacks=LAST,
    ),
    LibraryLayer(
        "BinaryCrossEntropyLayer",
        _loss("binary_cross_entropy_with_logits"),
        cases={"binary": _targets(*SHAPES)},
        measured={"binary-loss": Measured(beside="numbers", source="vector", usual=USUAL)},
        lacks=LAST,
    ),
    LibraryLayer(
        "AccuracyLayer",
        cases={"accuracy": Case(LABELS, data={1: below(5, integers=False)})},
        lacks={
            "definition": "tests/layers/test_classes.py::test_accuracy has one in NumPy",
            "comparison": "it has no gradient: tests/layers/test_classes.py::test_accuracy",
            "benchmark": "it takes no time beside the layer that it reads",
            **LAST,
        },
    ),
    LibraryLayer(
        "MemoryDataLayer",
        cases={"data": Case(several_sources((), ()), {"shape": (3,)})},
        lacks={
            "definition": "it computes nothing",
            "comparison": "it computes nothing",
            "benchmark": "it computes nothing",
            "random nets": "each begins with one",
        },
    ),
)
