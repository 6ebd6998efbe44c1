"""Convolution and ReLU: a pixel is rectified before it is stored; everything else is as without the ReLU."""

from swirl.schedule.recipe import Schedule
from swirl.target import Target

chain = ("conv", "relu")


def forward(s: Schedule, target: Target) -> None:
    s.fuse_layers("forward")
    s.recipe("conv", "forward")
