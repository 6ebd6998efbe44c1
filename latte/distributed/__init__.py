"""Training in several processes, under ``torchrun``: see docs/distributed.md. Needs PyTorch."""

from latte.distributed.group import ProcessLost, TorchGroup, join

__all__ = ["ProcessLost", "TorchGroup", "join"]
