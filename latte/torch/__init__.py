"""Latte's layers in programs of PyTorch: see docs/pytorch.md. Needs PyTorch, which nothing else of Latte does."""

from latte.torch.declared import Input
from latte.torch.function import Report
from latte.torch.module import LateParameters, Module, layer, module

__all__ = ["Input", "LateParameters", "Module", "Report", "layer", "module"]
