"""Random nets: small records that can be printed, made of choices, and declared any number of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from latte import MemoryDataLayer, Net, SoftmaxLossLayer
from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.tools.library.entries import PerAxis
from swirl.errors import LatteError
from tests.fuzz.net_library import KINDS
from tests.fuzz.programs import Pick

MOST_ELEMENTS = 12_000
"""The most elements of one layer's value for a whole batch."""
MOST_PRODUCTS = 4_000_000
"""Of one layer."""
CHANNELS = (3, 1, 2, 4, 5, 7, 8, 15, 16, 16, 16, 17, 20, 31, 32, 32, 33)
EXTENTS = (5, 1, 2, 3, 4, 6, 7, 8, 9, 13, 16, 17)

AFTER: dict[str, tuple[str, ...]] = {
    "conv": ("relu", "batch_norm", "relu", "max_pooling"),
    "batch_norm": ("relu", "relu", "relu", "tanh"),
    "fully_connected": ("relu", "batch_norm", "tanh", "relu"),
    "relu": ("conv", "max_pooling", "fully_connected"),
    "max_pooling": ("conv", "fully_connected"),
    "added": ("relu",),
    "add": ("relu",),
}
"""What often follows a kind of layer: the chains that have recipes."""


@dataclass(frozen=True)
class Layer:
    """One layer.

    Args:
        kind: in :data:`tests.fuzz.net_library.KINDS`.
        sources: numbers of the layers that it reads; 0 is the data, the first layer is 1.
        options: of its constructor.
    """

    kind: str
    sources: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NetCase:
    """A net, and how it is compiled and run.

    Args:
        batch: items.
        shape: of the data.
        layers: sources first.
        classes: whether the last layer, a vector, gets a softmax loss; the others' gradients are given.
        recipes: number of a layer, or numbers of neighbours → text of a recipe of its own.
        keep: ``"all"``, or None: then chains fuse values away.
        force: whether the gradient of the data is wanted.
        smaller: items of a second, smaller batch; 0 for none.
        seed: of parameters and data.
    """

    batch: int
    shape: tuple[int, ...]
    layers: tuple[Layer, ...]
    classes: bool = False
    recipes: dict[tuple[int, ...], str] = field(default_factory=dict)
    keep: str | None = None
    force: bool = True
    smaller: int = 0
    seed: int = 0

    @property
    def tops(self) -> list[int]:
        """Layers that no other reads."""
        read = {source for layer in self.layers for source in layer.sources}
        return [number for number in range(1, len(self.layers) + 1) if number not in read]

    @property
    def exact(self) -> bool:
        """Whether it computes whole numbers from whole numbers."""
        return not self.classes and all(KINDS[layer.kind].exact for layer in self.layers)


@dataclass(frozen=True)
class Declared:
    """A declared net: its layers, the data first, and the labels where there are any."""

    net: Net
    layers: list[Ensemble]
    labels: Ensemble | None


def declare(case: NetCase, folder: Path | None = None, plain: Path | None = None) -> Declared:
    """The net of a case, not yet compiled.

    Args:
        case: the case.
        folder: for the texts of its own recipes; None to leave them out.
        plain: a recipe that does nothing, for every layer; then no chain is compiled together either.

    Raises:
        LatteError: something does not fit.
    """
    net = Net(case.batch, seed=1, keep="all" if plain is not None else case.keep)
    net.force_backward = case.force
    layers = [MemoryDataLayer(net, case.shape)]
    for layer in case.layers:
        kind = KINDS[layer.kind]
        sources = [layers[number] for number in layer.sources]
        layers.append(kind.declare(net, sources, **layer.options))
    labels = None
    if case.classes:
        labels = MemoryDataLayer(net, (1,))
        SoftmaxLossLayer(net, layers[-1], labels)
    if plain is not None:
        for kind_name in {ensemble.kind for ensemble in net.ensembles}:
            net.use_recipe(kind_name, plain)
    elif folder is not None:
        for numbers, text in case.recipes.items():
            members = [layers[number] for number in numbers]
            path = folder / ("_".join(member.name for member in members) + ".py")
            path.write_text(text)
            net.use_recipe(members if len(members) > 1 else members[0], path)
    return Declared(net, layers, labels)


class NetMaker:
    """Makes one net of choices."""

    def __init__(self, pick: Pick[Any]):
        self.pick = pick

    def chance(self, *weights: int) -> int:
        """An index, as likely as its weight."""
        index: int = self.pick([index for index, weight in enumerate(weights) for _ in range(weight)])
        return index

    def make(self, seed: int = 0) -> NetCase:
        """A net of 1 to 6 layers."""
        batch = self.pick((2, 1, 3, 4, 5, 7, 8, 9))
        image = (self.pick(CHANNELS), self.pick(EXTENTS), self.pick(EXTENTS))
        case = NetCase(batch, image if self.chance(5, 1) == 0 else (self.pick(CHANNELS),), (), seed=seed)
        shapes = [case.shape]
        for _ in range(1 + self.chance(1, 2, 3, 3, 2, 1)):
            for _ in range(8):  # what does not fit is drawn again
                longer = replace(case, layers=(*case.layers, self.layer(case, shapes)))
                found = shapes_of(longer)
                if found is not None:
                    case, shapes = longer, found
                    break
        if not case.layers:
            case = replace(case, layers=(Layer("doubled", (0,)),))
        if len(shapes[-1]) == 1 and shapes[-1][0] > 1 and len(case.layers) in case.tops:
            case = replace(case, classes=self.chance(2, 1) == 1)
        smaller = self.pick(range(1, batch)) if batch > 1 and self.chance(2, 1) == 1 else 0
        case = replace(case, keep=self.pick((None, None, "all")), force=self.pick((True, False)), smaller=smaller)
        return replace(case, recipes=RecipeMaker(self.pick, case, shapes).make())

    # --- layers
    def layer(self, case: NetCase, shapes: Sequence[tuple[int, ...]]) -> Layer:
        branches = [(a, b) for a in case.tops for b in case.tops if a != b and shapes[a] == shapes[b]]
        if branches and self.chance(1, 1) == 1:
            sources = self.pick(branches)
            rank = len(shapes[sources[0]])
            return Layer(self.pick([k for k in KINDS if KINDS[k].sources == 2 and rank in KINDS[k].ranks]), sources)
        last = len(case.layers)
        source = last if self.chance(4, 1) == 0 else self.pick(range(last + 1))
        before = case.layers[source - 1].kind if source else "relu"
        likely = AFTER.get(before.removesuffix("_without_bias"), ())
        rank = len(shapes[source])
        kinds = [kind for kind in KINDS if rank in KINDS[kind].ranks]
        likely = tuple(kind for kind in likely if kind in kinds)
        kind = self.pick(likely if likely and self.chance(1, 2) == 1 else kinds)
        sources = (source,)
        if KINDS[kind].sources == 2:
            sources = source, self.pick([n for n, shape in enumerate(shapes) if shape == shapes[source]])
        return Layer(kind, sources, self.options(kind))

    def options(self, kind: str) -> dict[str, Any]:
        """Options of a layer of a kind."""
        return {name: self.drawn(values) for name, values in KINDS[kind].drawn.items()}

    def drawn(self, values: Sequence[Any]) -> Any:
        """One of them, or one for each axis."""
        both = isinstance(values, PerAxis) and self.chance(3, 1) == 1
        return (self.pick(values), self.pick(values)) if both else self.pick(values)


def shapes_of(case: NetCase) -> list[tuple[int, ...]] | None:
    """The shapes of all layers; None where one does not fit, or is too large."""
    try:
        layers = declare(case).layers
    except (DeclarationError, LatteError):
        return None
    shapes = [layer.shape for layer in layers]
    for layer in layers[1:]:
        size = case.batch * prod(layer.shape)
        weights = layer.fields().get("weights")
        if size > MOST_ELEMENTS or weights is not None and size * prod(weights.shape[1:]) > MOST_PRODUCTS:
            return None
    return shapes


PHASES = ("forward", "backward", "update")
FOLLOWING = ("batch_norm",)
"""Kinds whose shipped recipes follow blocks of any size."""
BY_DEFAULT = ("fully_connected", "max_pooling", "relu", "tanh")
"""Kinds that have none: the default schedule follows, too."""


class RecipeMaker:
    """Makes a net's own recipes for some of its layers and chains."""

    def __init__(self, pick: Pick[Any], case: NetCase, shapes: Sequence[tuple[int, ...]]):
        self.pick, self.case, self.shapes = pick, case, shapes

    def make(self) -> dict[tuple[int, ...], str]:
        """Recipes for none of the layers, half of the time; else for some."""
        found: dict[tuple[int, ...], str] = {}
        if self.pick((True, False)):
            return found
        ways: tuple[Callable[[int], str], ...] = (self.blocks, self.blocks, self.layouts, self.loops)
        for number in range(1, len(self.case.layers) + 1):
            if self.pick((True, False)):
                found[number,] = self.pick(ways)(number)
        for first, second in self.neighbours():
            if self.pick((True, False, False)) and not any({first, second} & set(key) for key in found):
                found[first, second] = self.chain(first, second)
        return found

    @cached_property
    def kinds(self) -> list[str]:
        """The kinds of the layers as recipes know them, that of the data first."""
        return [layer.kind for layer in declare(self.case).layers]

    def neighbours(self) -> list[tuple[int, int]]:
        """Pairs of layers, the second one the only reader of the first."""
        readers: dict[int, list[int]] = {}
        for number, layer in enumerate(self.case.layers, 1):
            for source in layer.sources:
                readers.setdefault(source, []).append(number)
        return [(source, found[0]) for source, found in sorted(readers.items()) if source and len(found) == 1]

    def blocks(self, number: int) -> str:
        """The layer's value and gradient in blocks, then the shipped recipe, or the default schedule."""
        dim, factor = self.pick((0, 0, 0, 1)), self.pick((16, 8, 4, 3, 16))
        if dim >= len(self.shapes[number]):
            dim = 0
        lines = [f'    s.tile("{buffer}", {dim}, {factor})' for buffer in ("value", "grad")]
        kind = self.kinds[number]
        if kind not in FOLLOWING or self.pick((True, False)):
            lines += ['    s.default("forward")'] if kind in BY_DEFAULT and self.pick((True, False)) else []
            return "\n".join(["def forward(s, target):", *lines, ""])
        head = [
            f"import latte.recipes.{kind} as shipped",
            f"from latte.recipes.{kind} import *",
            "",
            "def forward(s, target):",
            *lines,
            "    shipped.forward(s, target)",
            "",
        ]
        return "\n".join(head)

    def layouts(self, number: int) -> str:
        """Commands on the layouts of all that the layer touches."""
        lines = []
        for _ in range(self.pick((1, 2, 3))):
            buffer = self.pick(("value", "inputs", "weights", "grad", "grad_inputs", "grad_weights"))
            dim, other = self.pick((0, 0, 1, 2)), self.pick((0, 1, 2))
            pairs = self.pick(("0, 1, 1", "0, (1, 2), (0, 1)", "1, 0, 0", "1"))
            lines.append(
                "    "
                + self.pick(
                    (
                        f's.tile("{buffer}", {dim}, {self.pick((4, 8, 16, 3))}, optional=True)',
                        f's.tile("{buffer}", {dim}, {self.pick((4, 8, 16, 3))}, optional=True)',
                        f's.transpose("{buffer}", {dim}, {other}, optional=True)',
                        f's.set_padding("{buffer}", {pairs}, optional=True)',
                        f's.untile("{buffer}", optional=True)',
                    )
                )
            )
        return "\n".join(["def forward(s, target):", *lines, ""])

    def loops(self, number: int) -> str:
        """Commands on the loops of all phases."""
        text = []
        for phase in PHASES:
            text += [f"def {phase}(s, target):", *(f"    {line}" for line in self.commands(phase)), ""]
        return "\n".join(text)

    def commands(self, phase: str) -> list[str]:
        return [self.command(phase) for _ in range(self.pick((2, 1, 3, 4)))]

    def command(self, phase: str) -> str:
        loops = f's.loops("{phase}")'
        loop = f"{loops}[{self.pick((-1, 0, -2, 1))} % len({loops})]"
        rest = self.pick(
            (
                f'vectorize("{phase}", {loop}, target.simd_width or 4',
                f'parallelize("{phase}", {loop}',
                f'unroll_and_jam("{phase}", {loop}, {self.pick((2, 3, 4))}',
                f'hoist("{phase}"',
                f'unroll("{phase}", {loop}, {self.pick((2, 4))}',
                f'scalar_replace("{phase}"',
                f'tile_loop("{phase}", {loop}, {self.pick((2, 4, 16))}, tail="{self.pick(("min", "mask", "peel"))}"',
                f'reorder("{phase}", {loops}[::-1]',
                f'fuse_layers("{phase}"',
                f'partial_sums("{phase}", {loop}',
                f'interchange("{phase}", {loops}[-2:]',
                f'split("{phase}", {loop}, [1]',
                f'moments("{phase}", {loop}',
            )
        )
        return f"s.{rest}, optional=True)"

    def chain(self, first: int, second: int) -> str:
        """A recipe for two neighbours."""
        kinds = self.kinds[first], self.kinds[second]
        text = [f"chain = {kinds!r}", "", "def forward(s, target):", '    s.fuse_layers("forward", optional=True)']
        between = f"{kinds[0]}_value"
        more = self.pick(
            (
                "",
                f's.inline("forward", "{between}", optional=True)',
                f's.contract("forward", "{between}", optional=True)',
                "shipped",
            )
        )
        if more == "shipped" and kinds[0] in ("conv", *FOLLOWING, *BY_DEFAULT):
            text.append(f'    s.recipe("{kinds[0]}", "forward")')
        elif more and more != "shipped":
            text.append(f"    {more}")
        if self.pick((True, False)):
            update = self.pick(("", ', "update"'))
            text += ["", "def backward(s, target):", f'    s.fuse_layers("backward"{update}, optional=True)']
            text += [f"    {line}" for line in self.commands("backward")[:2]]
        return "\n".join([*text, ""])
