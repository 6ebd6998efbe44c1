"""Convolution, batch norm, ReLU. In inference a pixel is normalised and rectified before it is stored. In training the
statistics are made as in conv_batch_norm.py; normalising and rectifying is the only other pass over memory."""

from latte.recipes.conv_batch_norm import statistics_with_the_store
from swirl.schedule.recipe import Schedule
from swirl.target import Target

chain = ("conv", "batch_norm", "relu")


def inference(s: Schedule, target: Target) -> None:
    s.fuse_layers("inference")
    s.recipe("conv", "forward", on="inference")


def forward(s: Schedule, target: Target) -> None:
    statistics_with_the_store(s, target)
