"""Batch norm and ReLU: normalised and rectified in one pass; backwards the mask is recomputed, never stored."""

from latte.recipes.batch_norm import passes, rows, schedule
from swirl.schedule.recipe import Schedule
from swirl.target import Target

chain = ("batch_norm", "relu")


def forward(s: Schedule, target: Target) -> None:
    _follow(s, "inputs")
    passes(s, "forward")
    s.fuse_layers("forward", optional=True)
    schedule(s, target, "forward", "value")


def inference(s: Schedule, target: Target) -> None:
    rows(s, "inference")
    s.fuse_layers("inference", optional=True)
    schedule(s, target, "inference", "value")


def backward(s: Schedule, target: Target) -> None:
    if "c_inner" not in s.loops("backward"):  # a chain with the convolution has forward
        _follow(s, "inputs", "value", "grad")
    if "batch_norm_grad" in s.buffers("backward"):
        s.fuse_layers("backward", "update", keep=["batch_norm_grad"])
        s.inline("backward", "batch_norm_grad", local=False)  # so the update finds its sums made by the first pass
    if "grad_inputs" in s.buffers("backward"):
        s.recipe("batch_norm", "backward")
    else:  # the source is data: only the parameters have gradients
        s.recipe("batch_norm", "update", on="backward")


def update(s: Schedule, target: Target) -> None:
    s.recipe("batch_norm", "update")


def _follow(s: Schedule, *buffers: str) -> None:
    """Loops over the source's blocks, for the buffers between the two layers."""
    for dim, factor in s.blocks("inputs").items():
        for buffer in buffers:
            s.tile(buffer, dim, factor)
