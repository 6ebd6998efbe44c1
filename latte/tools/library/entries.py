"""What is said once about a layer of the library; benchmarks, random nets and tests draw from it.

Nothing here imports PyTorch: a definition is given the module, ``definition(torch, *sources, **parameters,
**options)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

import latte
from latte.ensemble import Ensemble
from latte.net import Net

Arrays = dict[str, np.ndarray]
Shape = tuple[int, ...]
Options = Mapping[str, Any] | Callable[..., Mapping[str, Any]]
"""Of a constructor, by name; or a function of the shapes of the sources."""
Definition = Callable[..., Any]
Need = Literal["definition", "comparison", "benchmark", "random nets"]


class Sizes(NamedTuple):
    """Items, and the shapes of the sources without the batch."""

    batch: int
    sources: tuple[Shape, ...]


def one_source(*shapes: Shape) -> tuple[Sizes, ...]:
    """Sizes of a single source, the batch first in each."""
    return tuple(Sizes(batch, (tuple(shape),)) for batch, *shape in shapes)


def several_sources(*sources: tuple[Shape, ...], batch: int = 3) -> tuple[Sizes, ...]:
    """Sizes of several sources, without the batch."""
    return tuple(Sizes(batch, shapes) for shapes in sources)


@dataclass(frozen=True)
class Data:
    """What a source holds in a test.

    Args:
        draw: ``draw(generator, shape)``, the batch included.
        below: of integers as subscripts: all are smaller.
    """

    draw: Callable[[np.random.Generator, Shape], np.ndarray]
    below: int | None = None


NORMAL = Data(lambda generator, shape: 3 * generator.standard_normal(shape))
"""Of a normal distribution so wide that functions saturate."""
UNIFORM = Data(lambda generator, shape: generator.random(shape))
"""From 0 to 1."""


def below(count: int, *, integers: bool = True) -> Data:
    """Whole numbers from 0 to ``count - 1``; as labels they are floats."""
    return Data(lambda generator, shape: generator.integers(0, count, shape), count if integers else None)


@dataclass(frozen=True)
class Case:
    """A layer with certain options, which is compared with its definition.

    Args:
        sizes: that it is compared at; some of them odd.
        options: of the constructor.
        reads: numbers of the sources that the layer reads, in their order; each one once, if nothing else is said.
        data: what sources hold, by their number, instead of :data:`NORMAL`.
    """

    sizes: tuple[Sizes, ...]
    options: Options = field(default_factory=dict)
    reads: tuple[int, ...] = ()
    data: Mapping[int, Data] = field(default_factory=dict)


USUAL = {"image": "16,64,56", "sequence": "16,256,64", "vector": "64,2048,1", "words": "64,128,1"}
"""Batch, channels and extent by what an item is."""
VOCABULARY = 10_000
"""Words are 0 … this, without it."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How ``latte bench`` measures a layer.

    Args:
        options: of the constructor.
        times: how many times it reads the source.
        beside: what a further source holds: the class number 0 of each item, or a zero for each element.
        channels, extent: what these must be multiples of.
        source: what an item is: an image (channels, extent, extent), a sequence (channels positions, extent features),
            a vector of channels · extent² elements, or as many words.
        usual: batch, channels, extent, if not those of its form.
        facts: of a layer that draws random numbers, what is compared instead of its results: a function of (source,
            gradient of the value, results).
        lines: the same in PyTorch, where the definition would do more than the layer.
    """

    options: Options = field(default_factory=dict)
    times: int = 1
    beside: Literal["", "classes", "numbers"] = ""
    channels: int = 1
    extent: int = 1
    source: Literal["image", "sequence", "vector", "words"] = "image"
    usual: str = ""
    facts: Callable[[np.ndarray, np.ndarray, Arrays], Arrays] | None = None
    lines: Definition | None = None

    @property
    def usual_shape(self) -> str:
        """Batch, channels and extent that it is measured at by default."""
        return self.usual or USUAL[self.source]

    def item(self, channels: int, extent: int) -> Shape:
        """The shape of an item of the source."""
        match self.source:
            case "image":
                return channels, extent, extent
            case "sequence":
                return channels, extent
        return (channels * extent * extent,)


class PerAxis(tuple[int, ...]):
    """Numbers of which an option has one, or one for each axis."""


@dataclass(frozen=True)
class InRandomNets:
    """A kind of layer in random nets.

    Args:
        drawn: options and what they are chosen from; what is named more often is more likely, the simplest is first.
        options: others.
        ranks: of the sources, without the batch.
        sources: how many it reads.
        exact: whether it computes whole numbers, or halves and quarters, from such.
        kinks: functions of the sources whose zeros are where a derivative jumps.
        fraction: binary digits after the point that it may add.
        multiplies: whether it multiplies its sources, so that such digits add up.
    """

    drawn: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    options: Options = field(default_factory=dict)
    ranks: tuple[int, ...] = (1, 3)
    sources: int = 1
    exact: bool = True
    kinks: tuple[Callable[..., Any], ...] = ()
    fraction: int = 0
    multiplies: bool = False


@dataclass(frozen=True)
class LibraryLayer:
    """A layer of the library.

    Args:
        name: of its constructor in ``latte``.
        definition: the same in PyTorch: ``definition(torch, *sources, **parameters, **options)``, parameters by the
            names of their fields. Where PyTorch would return a view, it makes a copy, as the layer's value is stored.
        cases: those that are tested, by name; the options of the first one are a good example of all that are needed.
        measured: those that ``latte bench layer`` measures, by name.
        random: kinds of layers in random nets, by name.
        lacks: what there is not, and why.
        list_of_sources: whether it takes its sources as one list.
    """

    name: str
    definition: Definition | None = None
    cases: Mapping[str, Case] = field(default_factory=dict)
    measured: Mapping[str, Measured] = field(default_factory=dict)
    random: Mapping[str, InRandomNets] = field(default_factory=dict)
    lacks: Mapping[Need, str] = field(default_factory=dict)
    list_of_sources: bool = False

    def declare(self, net: Net, *sources: Ensemble, options: Options) -> Any:
        """Add the layer to a net: what the constructor returns, a list of ensembles if there are several."""
        given = options_at(options, [source.shape for source in sources])
        constructor = getattr(latte, self.name)
        return constructor(net, list(sources), **given) if self.list_of_sources else constructor(net, *sources, **given)

    def declare_one(self, net: Net, *sources: Ensemble, options: Options) -> Ensemble:
        """The same; the first ensemble where there are several."""
        made = self.declare(net, *sources, options=options)
        first: Ensemble = made[0] if isinstance(made, list) else made
        return first

    def computed(self, torch: Any, *sources: Any, options: Options, **parameters: Any) -> Any:
        """What PyTorch computes of sources with the batch: a tensor, or a list of them."""
        assert self.definition is not None, f"{self.name} has no definition in PyTorch"
        return applied(self.definition, torch, sources, options, parameters)


def applied(
    definition: Definition, torch: Any, sources: Sequence[Any], options: Options, parameters: Mapping[str, Any]
) -> Any:
    """A definition of sources with the batch. An option that has the name of a parameter says whether there is one."""
    given = options_at(options, [tuple(source.shape[1:]) for source in sources])
    return definition(torch, *sources, **{**given, **parameters})


def options_at(options: Options, shapes: Sequence[Shape]) -> Mapping[str, Any]:
    """Options for sources of these shapes."""
    return options(*shapes) if callable(options) else options
