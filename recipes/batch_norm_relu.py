"""Batch norm and ReLU: normalised and rectified in one pass; backwards the mask is recomputed, never stored. Behind a
source laid out in blocks: correct, not tuned."""

from latte.recipes.batch_norm import passes, rows, schedule

chain = ("batch_norm", "relu")


def _in_blocks(s, phase):
    """Whether the source lies in blocks: then threads share the channels, and that is all."""
    if s.blocks("inputs"):
        s.parallelize(phase, "c_outer" if "c_outer" in s.loops(phase) else "c", optional=True)
        return True
    return False


def forward(s, target):
    if not _in_blocks(s, "forward"):
        passes(s, "forward")
        s.fuse_layers("forward", optional=True)
        schedule(s, target, "forward", "value")


def inference(s, target):
    if not _in_blocks(s, "inference"):
        rows(s, "inference")
        s.fuse_layers("inference", optional=True)
        schedule(s, target, "inference", "value")


def backward(s, target):
    if not _in_blocks(s, "backward"):
        if "batch_norm_grad" in s.buffers("backward"):
            s.fuse_layers("backward", "update", keep=["batch_norm_grad"])
            s.inline("backward", "batch_norm_grad", local=False)  # so the update finds its sums made by the first pass
        s.recipe("batch_norm", "backward")


def update(s, target):
    if not _in_blocks(s, "update"):
        s.recipe("batch_norm", "update")
