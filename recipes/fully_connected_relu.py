"""Fully connected and ReLU: an output is rectified before it is stored; everything else is as without the ReLU."""

from swirl.recipe import Schedule
from swirl.target import Target

chain = ("fully_connected", "relu")


def forward(s: Schedule, target: Target) -> None:
    s.fuse_layers("forward")
    s.recipe("fully_connected", "forward")
