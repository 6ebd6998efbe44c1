"""The bodies of all layers of a net, lowered."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, replace

from latte.frontend.lower import lower
from latte.frontend.operands import stored_operands
from latte.model.buffers import body_buffers
from latte.model.ensemble import Ensemble
from latte.model.graph import Graph
from swirl.errors import DeclarationError
from swirl.ir.buffers import DTYPES, MOST_BYTES
from swirl.ir.nest import Program


@dataclass(frozen=True)
class LoweredLayer:
    """A layer whose body has been lowered.

    Args:
        ensemble: the layer.
        batch_size: items in a batch.
        forward: in training.
        inference: ``forward`` where ``self.training`` is False.
        instead_of: where training runs the inference body: what forward is otherwise.
    """

    ensemble: Ensemble
    batch_size: int
    forward: Program
    inference: Program
    instead_of: Program | None = None

    def inferring(self) -> LoweredLayer:
        """The layer where training runs the inference body, too."""
        return replace(self, forward=self.inference, instead_of=self.forward)

    @property
    def arrays(self) -> set[str]:
        """The names of the layer's arrays: those that its bodies may use, and those that lowering forward has made."""
        return {*body_buffers(self.ensemble, self.batch_size), *self.forward.buffers, *self.inference.buffers}

    def written(self, phase: str) -> Program | None:
        """``backward`` or ``update`` as the user wrote it; None where it is derived: also where it belongs to another
        body than the one that runs, and does not ask for ``self.training``.

        Raises:
            BodyError: with the line of the body.
        """
        if not self.ensemble.has_phase(phase):
            return None
        of_training = lower(self.ensemble, phase, batch_size=self.batch_size)
        if self.instead_of is None or self.instead_of.text == self.forward.text:
            return of_training
        of_inference = lower(self.ensemble, phase, batch_size=self.batch_size, training=False)
        return None if of_inference.text == of_training.text else of_inference


def lower_layers(graph: Graph, batch_size: int) -> dict[str, LoweredLayer]:
    """The layers of a net with bodies, by name.

    Args:
        graph: of the net.
        batch_size: extent of the batch dimension.

    Raises:
        DeclarationError: there are no layers, or one reads nothing, or has more values than any memory.
        BodyError: with the line of the body.
    """
    graph.check_complete()
    found = {}
    for ensemble in graph.ensembles:
        _check_size(ensemble, batch_size)
        if ensemble.has_body:
            found[ensemble.name] = LoweredLayer(ensemble, batch_size, *_forward(ensemble, batch_size))
    return found


def _forward(ensemble: Ensemble, batch_size: int) -> tuple[Program, Program]:
    """The forward program in training and in inference, with operands of products stored: in the same arrays only where
    the programs are the same."""
    training = lower(ensemble, "forward", batch_size=batch_size)
    taken = {*body_buffers(ensemble, batch_size), *(edge.name for edge in ensemble.connections)}
    stored = stored_operands(training, taken)
    if not _asks_for_training(ensemble):
        return stored, stored
    inference = lower(ensemble, "forward", batch_size=batch_size, training=False)
    same = training.text == inference.text and training.buffers == inference.buffers
    return stored, stored if same else stored_operands(inference, taken.union(stored.buffers))


def _asks_for_training(ensemble: Ensemble) -> bool:
    """Whether forward may use ``self.training``."""
    tree = ensemble.body("forward").tree
    return any(isinstance(node, ast.Attribute) and node.attr == "training" for node in ast.walk(tree))


def _check_size(ensemble: Ensemble, batch_size: int) -> None:
    """DeclarationError where a layer's values take more than any memory: before a recipe lays them out."""
    for spec in ensemble.fields(batch_size).values():
        size = math.prod(spec.shape) * DTYPES[spec.dtype]().itemsize
        if size > MOST_BYTES:
            raise DeclarationError(
                f"{ensemble.name}.{spec.name} of {batch_size:,} items would take {size:,} bytes",
                location=ensemble.location,
                way_out="a smaller batch needs less",
            )
