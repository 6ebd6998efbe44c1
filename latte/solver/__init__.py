"""Solvers: how gradients change parameters. A solver of one's own is a class with one method, ``update``."""

from latte.model.calls import answer_wrong_calls
from latte.solver.rules import SGD, Adam, AdamW, RMSProp
from latte.solver.schedules import CosineDecay, OneCycle, Schedule, StepDecay, WarmUp
from latte.solver.settings import Kept, Setting
from latte.solver.solver import Solver

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "CosineDecay",
    "Kept",
    "OneCycle",
    "RMSProp",
    "Schedule",
    "Setting",
    "Solver",
    "StepDecay",
    "WarmUp",
]

answer_wrong_calls(globals(), __all__)
