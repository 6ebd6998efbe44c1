"""What a module of PyTorch is made of: a net that a function declares, with the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from latte.frontend.lowered import lower_layers
from latte.layers.data import MemoryDataLayer
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import DataEnsemble, in_python, is_loss
from latte.model.neuron import FieldSpec
from latte.model.source_location import user_location
from latte.net import Net
from swirl.errors import DataError, DeclarationError

Build = Callable[..., Any]
"""Takes a net and an ensemble for each input; returns the ensemble that is the output, or several of them."""


@dataclass(frozen=True)
class Input:
    """An input of a module.

    Args:
        shape: without the batch; None: that of the first call.
        dtype: ``float32``, or ``int32`` for whole numbers; None: that of the first call.
        below: of whole numbers: all are 0, 1, … up to the number before, which is checked in each call. So they may be
            subscripts: the words of a vocabulary.
    """

    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    below: int | None = None

    @staticmethod
    def of(given: Any) -> Input:
        """An input from what a user gives: an :class:`Input`, or a shape.

        Raises:
            DeclarationError: it is neither.
        """
        if isinstance(given, Input):
            shape = given.shape
        else:
            shape = (given,) if isinstance(given, int) else given
        if shape is None and isinstance(given, Input):
            return given
        if not isinstance(shape, Sequence) or isinstance(shape, str) or not all(_is_extent(each) for each in shape):
            raise DeclarationError(
                f"an input is given by its shape without the batch, not by {given!r}",
                way_out="inputs=[(64, 28, 28)], or inputs=[latte.torch.Input((20,), 'int32', below=1000)]",
            )
        known = given if isinstance(given, Input) else Input()
        return Input(tuple(map(int, shape)), known.dtype or ("int32" if known.below else "float32"), known.below)

    @property
    def known(self) -> bool:
        """Whether its shape and type are there."""
        return self.shape is not None and self.dtype is not None


def _is_extent(each: Any) -> bool:
    return isinstance(each, (int, np.integer)) and not isinstance(each, bool) and bool(each > 0)


class Declared:
    """A net that is declared for inputs of these shapes.

    Args:
        build: declares the layers.
        inputs: all with shapes and types.
        batch_size: the most items of a call; net.batch_size while layers are declared.
        seed: of initial values.
        recipes: folders of recipe files.

    Attributes:
        net: the net.
        inputs: its data layers.
        outputs: the layers that are returned.
        single: whether ``build`` has returned one, not a sequence.

    Raises:
        DeclarationError: ``build`` returns something else than layers, or declares data or losses of its own.
    """

    def __init__(self, build: Build, inputs: Sequence[Input], batch_size: int, seed: int, recipes: Sequence[str] = ()):
        self.net = Net(batch_size, seed=seed, compat=False, recipes=tuple(recipes))
        self.inputs = [
            MemoryDataLayer(self.net, given.shape or (1,), dtype=given.dtype or "float32", below=given.below)
            for given in inputs
        ]
        returned = build(self.net, *self.inputs)
        self.single = isinstance(returned, Ensemble)
        self.outputs = self._checked(returned)

    def _checked(self, returned: Any) -> list[Ensemble]:
        graph = self.net.graph
        found = [returned] if isinstance(returned, Ensemble) else returned
        if not isinstance(found, (list, tuple)) or not found or not all(isinstance(each, Ensemble) for each in found):
            raise DeclarationError(
                f"a module is built by a function that returns a layer, or several, not {returned!r}",
                way_out="lambda net, x: ReLULayer(net, x)",
            )
        for ensemble in found:
            graph.find(ensemble)
            if isinstance(ensemble, DataEnsemble):
                raise DeclarationError("a module returns an input as it is", way_out="return a layer that reads it")
            if ensemble.fields()["value"].dtype != "float32":
                raise DeclarationError(f"{ensemble.name} has whole numbers, which a module does not return")
        if len({ensemble.name for ensemble in found}) != len(found):
            raise DeclarationError("a module returns a layer twice", way_out="return it once")
        others = [each for each in graph.data() if each not in self.inputs]
        if others:
            raise DeclarationError(
                f"{others[0].name} is a data layer that no call gives", way_out="let the function take it as an input"
            )
        for loss in graph.losses():
            if in_python(loss) or not any(loss is each for each in found):
                way_out = "use PyTorch's losses" if in_python(loss) else f"return {loss.name}, or leave it out"
                raise DeclarationError(f"{loss.name} is a loss that a module does not compute", way_out=way_out)
        return list(found)

    @cached_property
    def parameters(self) -> dict[str, FieldSpec]:
        """Storage → what it holds, of all parameters; shared ones once."""
        return self._of("param")

    @cached_property
    def states(self) -> dict[str, FieldSpec]:
        """The same of running statistics.

        Raises:
            DeclarationError: one has elements for each item.
        """
        found = self._of("state")
        for name, spec in found.items():
            if spec.buffer.items:
                raise DeclarationError(
                    f"{name} has elements for each item, which a module does not keep from one call to the next",
                    way_out="return it from one call, and give it to the next one",
                )
        return found

    def _of(self, role: str) -> dict[str, FieldSpec]:
        found: dict[str, FieldSpec] = {}
        for ensemble in self.net.ensembles:
            for spec in ensemble.fields().values():
                if spec.role == role and spec.owner == ensemble.name:
                    found.setdefault(spec.storage, spec)
        return found

    def initial(self, storage: str) -> np.ndarray:
        """The values that a parameter or state begins with."""
        owner, _, name = storage.partition(".")
        return self.net[owner].initial(name)

    def labels(self) -> list[bool]:
        """Of each input, whether a layer reads it as a label, of which no gradient is computed."""
        return [any(edge.is_label for edge in self.net.graph.readers(each)) for each in self.inputs]

    def seeded(self) -> frozenset[str]:
        """The outputs that other layers read, too."""
        graph = self.net.graph
        return frozenset(each.name for each in self.outputs if graph.has_gradient_reader(each))

    def inferring(self) -> frozenset[str]:
        """The layers that may compute something else in inference than in training."""
        return frozenset(ensemble.name for ensemble in self.net.ensembles if ensemble.has_body)

    @cached_property
    def random(self) -> bool:
        """Whether a layer draws random numbers in training."""
        graph = self.net.graph
        layers = lower_layers(graph, graph.settings.batch_size).values()
        return any(buffer.name == "net.seed" for layer in layers for buffer in layer.forward.buffers.values())

    def output_shapes(self) -> list[tuple[int, ...]]:
        """Of each output, without the batch; ``()`` where it is one number for the batch."""
        return [() if is_loss(each) or not each.batched else each.shape for each in self.outputs]

    def check_number(self, given: int) -> None:
        """Refuse another number of inputs.

        Raises:
            DataError: with the shapes.
        """
        if given != len(self.inputs):
            shapes = ", ".join(str(each.shape) for each in self.inputs)
            raise DataError(
                f"this module takes {len(self.inputs)} inputs, not {given}",
                location=user_location(),
                way_out=f"of shapes {shapes}",
            )
