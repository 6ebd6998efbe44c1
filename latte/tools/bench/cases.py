"""What ``latte bench`` measures: a kind of layer at a shape, and sets of shapes that published nets have."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import click
import numpy as np

from latte.tools.bench.own_layers import OWN
from latte.tools.bench.published import NETS, Published
from latte.tools.bench.shipped_layers import SHIPPED
from latte.tools.bench.tried import Tried
from latte.tools.library.entries import Arrays

TRIED: dict[str, dict[str, Tried]] = {"own": OWN, "layer": SHIPPED}
"""Kinds of which a case names a layer."""
IMAGE_CHANNELS = 4
"""Sources of so many channels, or fewer, are the images that a net begins with. Data layers hold them plain."""


@dataclass(frozen=True)
class Case:
    """A layer, or several that follow each other, on square images.

    Args:
        kind: one of :data:`KINDS`.
        batch: items.
        channels: of the source; of a fully connected layer, its elements.
        extent: height and width of the source.
        filters: channels of the value.
        kernel: height and width of the window, padded by half of it.
        stride: of the window.
        layer: of the kinds ``own`` and ``layer``, the name of the layer; of ``net``, of a published net, or "".
    """

    kind: str
    batch: int
    channels: int = 0
    extent: int = 0
    filters: int = 0
    kernel: int = 1
    stride: int = 1
    layer: str = ""

    def __post_init__(self) -> None:
        if self.kind in TRIED and self.layer not in TRIED[self.kind]:
            raise click.BadParameter(f"no layer named {self.layer!r}; there are {', '.join(TRIED[self.kind])}")
        if self.tried is not None:
            units = self.tried.channels, self.tried.extent
            for name, number, unit in zip(("channels", "extent"), (self.channels, self.extent), units, strict=True):
                if number % unit:
                    raise click.BadParameter(f"{name} of {self.layer} must be a multiple of {unit}: {self.shape}")
        if self.kind == "net" and self.layer and self.published is None:
            raise click.BadParameter(
                f"no net named {self.layer!r}; there are {', '.join(NETS)}; a number is a batch size of the digits net"
            )
        for field in fields(self)[1:]:
            if field.name in self.parts and field.name != "layer" and getattr(self, field.name) < 1:
                raise click.BadParameter(f"{field.name} must be at least 1: {self.shape}")

    @property
    def shape(self) -> str:
        """As ``--shape`` takes it."""
        return ",".join(str(getattr(self, name)) for name in self.parts)

    @property
    def parts(self) -> tuple[str, ...]:
        """What the parts of the shape are, in their order."""
        return BY_NAME if self.kind == "net" and self.layer else KINDS[self.kind]

    @property
    def published(self) -> Published | None:
        """The net that the case names."""
        return NETS.get(self.layer) if self.kind == "net" else None

    @property
    def phases(self) -> tuple[str, ...]:
        """By which it may be timed; the first is the usual one, of published nets all are."""
        if self.published is not None:
            return ("step", "inference")
        return ("step",) if self.kind == "net" else ("step", "forward", "backward", "update")

    @property
    def tried(self) -> Tried | None:
        """The layer that the case names."""
        return TRIED[self.kind][self.layer] if self.kind in TRIED else None

    @property
    def source(self) -> tuple[int, ...]:
        """Shape of one item."""
        if self.tried is not None:
            return self.tried.item(self.channels, self.extent)
        return (self.channels, self.extent, self.extent) if self.extent else (self.channels,)

    @property
    def comes_in_blocks(self) -> bool:
        """Whether the source is in blocks of channels in a net: a convolution's is, but not an image."""
        return self.kind in ("conv", "cbr") and self.fills_blocks

    @property
    def fills_blocks(self) -> bool:
        """Whether the channels are more than an image's."""
        return self.channels > IMAGE_CHANNELS

    @property
    def reads_words(self) -> bool:
        """Whether the source is integers below :data:`latte.tools.library.entries.VOCABULARY`."""
        return self.tried is not None and self.tried.source == "words"

    def compared(self, inputs: np.ndarray, gradient: np.ndarray, results: Arrays) -> Arrays:
        """What is compared of the results: of a layer that draws random numbers, facts about them."""
        if self.tried is None or self.tried.facts is None:
            return results
        return self.tried.facts(inputs, gradient, results)

    def __str__(self) -> str:
        return f"{self.kind} {self.shape}"


IMAGE, WINDOW = ("batch", "channels", "extent"), ("kernel", "stride")
KINDS: dict[str, tuple[str, ...]] = {
    "bn": IMAGE,
    "bn-relu": IMAGE,
    "relu": IMAGE,
    "pool": (*IMAGE, *WINDOW),
    "conv": ("batch", "channels", "filters", "extent", *WINDOW),
    "cbr": ("batch", "channels", "filters", "extent", *WINDOW),
    "fc": ("batch", "channels", "filters"),
    "net": ("batch",),
    "own": ("layer", *IMAGE),
    "layer": ("layer", *IMAGE),
}
"""Kind → what the parts of its shape are, in their order. Those of a window may be left out."""
BY_NAME = ("layer", "batch", "extent")
"""The same of a published net. All but its name may be left out."""

DEFAULTS: dict[str, dict[str, int]] = {
    "pool": {"kernel": 2, "stride": 2},
    "conv": {"kernel": 3},
    "cbr": {"kernel": 3},
    "net": {"batch": 16, "extent": 224},
}


def parsed(kind: str, text: str, **usual: int) -> Case:
    """The case of a ``--shape``.

    Args:
        kind: of layer.
        text: the parts of the shape, with commas between them.
        usual: what parts are that are left out, instead of :data:`DEFAULTS`.

    Raises:
        click.BadParameter: it has too few or too many numbers, or something that is not a number.
    """
    parts = [part.strip() for part in text.split(",")]
    by_name = kind == "net" and not parts[0].isdigit() and parts[0] != ""
    names = BY_NAME if by_name else KINDS[kind]
    least = 1 if by_name else len([name for name in names if name not in WINDOW])
    numbers = [part for name, part in zip(names, parts, strict=False) if name != "layer"]
    if not least <= len(parts) <= len(names) or not all(map(str.isdigit, numbers)):
        required, optional = names[:least], names[least:]
        usage = ",".join(required) + "".join(f"[,{name}" for name in optional) + "]" * len(optional)
        raise click.BadParameter(f"{text!r} is not a shape for {kind}; it takes {usage}")
    given: dict[str, Any] = {
        name: part if name == "layer" else int(part) for name, part in zip(names, parts, strict=False)
    }
    filled = {name: number for name, number in {**DEFAULTS.get(kind, {}), **usual}.items() if name in names}
    return Case(kind, **{**filled, **given})


_NORM_SHAPES = {
    "thesis": "64,112 64,56 256,56 192,28 480,28 512,28 256,14 832,14 512,7 832,7 2048,7",
    "resnet": "64,112 64,56 256,56 128,28 512,28 256,14 1024,14 512,7 2048,7",
    "vgg": "64,224 128,112 256,56 512,28 512,14",
    "googlenet": "64,112 192,56 128,28 192,28 480,28 512,14 832,14 832,7 1024,7",
    "yolo": "32,208 64,104 128,52 256,26 512,13 1024,13",
}
_CONVOLUTIONS = {
    "thesis": "64,64,56 128,128,28 256,256,14 512,512,7",
    "resnet": "3,64,224,7,2 64,64,56 128,128,28 256,256,14 512,512,7 64,256,56,1 256,64,56,1 512,128,28,1 "
    "128,128,56,3,2",
    "vgg": "3,64,224 64,128,112 128,256,56 256,512,28 512,512,14",
    "googlenet": "3,64,224,7,2 64,192,56 96,128,28 16,32,28,5 192,64,28,1 480,192,14,1 48,128,7,5 832,384,7,1",
    "yolo": "3,32,208 32,64,104 64,128,52 128,256,26 256,512,13 512,256,13,1",
}
_ODD = {
    "bn": "50,97,33 50,33,17 7,3,5 1,64,17",
    "bn-relu": "50,97,33 50,33,17 7,3,5 1,64,17",
    "relu": "50,97,33 50,33,17 7,3,5",
    "pool": "50,97,33,3,2 50,33,17 7,3,5",
    "conv": "50,97,97,33 50,33,65,17,5 16,160,320,17 7,48,128,7,5 50,97,33,33,3,2 7,3,5,9",
    "cbr": "50,97,97,33 50,33,65,17,5 16,160,320,17 7,48,128,7,5 50,97,33,33,3,2 7,3,5,9",
    "fc": "50,97,33 7,1000,10 1,2048,1000",
    "net": "33 7",
    **{kind: " ".join(f"{layer},{at}" for layer in TRIED[kind] for at in ("7,24,10", "50,56,18")) for kind in TRIED},
}
SETS = ("thesis", "resnet", "vgg", "googlenet", "yolo", "odd")
"""The thesis' are those of J. Lake, 2020, Figs. 4.1 to 4.3, and what later targets were set for."""

PLAIN = {
    "fc": "64,25088,4096 64,4096,1000 64,2048,1000",
    "relu": "64,64,112 64,256,56",
    "pool": "64,64,112 64,256,56",
    "net": "32 64 256",
    **{kind: " ".join(f"{name},{layer.usual_shape}" for name, layer in TRIED[kind].items()) for kind in TRIED},
}
"""Shapes of what is in no set of its own."""


def cases(kind: str, set_name: str = "thesis", batch: int = 64) -> list[Case]:
    """The cases of a kind in a set.

    Args:
        kind: of layer.
        set_name: one of :data:`SETS`.
        batch: of sets that do not name one.
    """
    if set_name == "odd":
        texts = _ODD[kind].split()
    elif kind in ("bn", "bn-relu"):
        texts = [f"{batch},{text}" for text in _NORM_SHAPES[set_name].split()]
    elif kind in ("conv", "cbr"):
        texts = [f"{batch},{text}" for text in _CONVOLUTIONS[set_name].split()]
    else:
        texts = PLAIN[kind].split()
    return [parsed(kind, text) for text in texts]
