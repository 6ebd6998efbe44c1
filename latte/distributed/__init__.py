"""Training in several processes, under ``torchrun``: see docs/distributed.md. Needs PyTorch."""

from latte.distributed.group import TorchGroup, join

__all__ = ["TorchGroup", "join"]
