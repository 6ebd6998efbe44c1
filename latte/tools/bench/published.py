"""Published nets that ``latte bench net`` knows by name: the programs of ``examples/nets``, and data for them.

``published_nets`` is a link to that folder; a package has copies of its files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from latte.net import Net
from latte.tools.net_files import load_module

FOLDER = Path(__file__).parent / "published_nets"


@dataclass(frozen=True)
class Published:
    """A net.

    Args:
        file: of :data:`FOLDER`; its function of the same name declares the net.
        options: of this function.
        classes: how many; the labels are below.
    """

    file: str
    options: Mapping[str, Any] = field(default_factory=dict)
    classes: int = 1000

    @property
    def program(self) -> ModuleType:
        """The file as a module.

        Raises:
            LatteError: it does not exist, or does not run.
        """
        return load_module(FOLDER / f"{self.file}.py")

    def declared(self, batch: int, extent: int) -> Net:
        """The net for ``batch`` images of this height and width, not compiled yet."""
        declare: Callable[..., Net] = getattr(self.program, self.file)
        return declare(batch_size=batch, size=extent, classes=self.classes, seed=1, **self.options)

    def batch(self, batch: int, extent: int) -> tuple[np.ndarray, np.ndarray]:
        """Images (batch, 3, extent, extent) from a normal distribution, and labels (batch): always the same."""
        generator = np.random.default_rng(0)
        images = generator.standard_normal((batch, 3, extent, extent), np.float32)
        return images, generator.integers(0, self.classes, batch)


def _residual(depth: int, bottleneck: bool) -> Published:
    return Published("resnet", {"depth": depth, "bottleneck": bottleneck})


NETS = {
    "resnet18": _residual(18, False),
    "resnet34": _residual(34, False),
    "resnet50": _residual(50, True),
    "resnet101": _residual(101, True),
    "resnet152": _residual(152, True),
    "googlenet": Published("googlenet", {"dropout": 0.0}),
    "small": Published("resnet", {"blocks": (1, 1), "bottleneck": False}, classes=7),
}
"""Name → the net; the last is not published, but a residual net of two blocks, on which to try the command. GoogLeNet's
dropout draws its numbers, and keeps every element: each side would drop others."""
