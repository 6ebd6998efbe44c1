"""Batch norm and ReLU: normalised and rectified in one pass; backwards the mask is recomputed, never stored."""

from latte.recipes.batch_norm import passes, schedule

chain = ("batch_norm", "relu")


def forward(s, target):
    passes(s, "forward")
    s.fuse_layers("forward", optional=True)
    schedule(s, target, "forward", "value")


def backward(s, target):
    if "batch_norm_grad" in s.buffers("backward"):
        s.fuse_layers("backward", "update", keep=["batch_norm_grad"])
        s.inline("backward", "batch_norm_grad", local=False)  # so the update finds its sums made by the first pass
    s.recipe("batch_norm", "backward")
