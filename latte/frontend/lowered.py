"""The bodies of all layers of a net, lowered."""

from __future__ import annotations

from dataclasses import dataclass

from latte.frontend.lower import lower
from latte.model.ensemble import Ensemble
from latte.model.graph import Graph
from swirl.ir.nest import Program


@dataclass(frozen=True)
class LoweredLayer:
    """A layer whose body has been lowered.

    Args:
        ensemble: the layer.
        batch_size: items in a batch.
        forward: in training.
        inference: ``forward`` where ``self.training`` is False.
    """

    ensemble: Ensemble
    batch_size: int
    forward: Program
    inference: Program

    def written(self, phase: str) -> Program | None:
        """``backward`` or ``update`` as the user wrote it; None where it is derived.

        Raises:
            BodyError: with the line of the body.
        """
        if not self.ensemble.has_phase(phase):
            return None
        return lower(self.ensemble, phase, batch_size=self.batch_size)


def lower_layers(graph: Graph, batch_size: int) -> dict[str, LoweredLayer]:
    """The layers of a net with bodies, by name.

    Args:
        graph: of the net.
        batch_size: extent of the batch dimension.

    Raises:
        DeclarationError: there are no layers, or one reads nothing.  BodyError: with the line of the body.
    """
    graph.check_complete()
    found = {}
    for ensemble in graph.ensembles:
        if ensemble.has_body:
            forward = lower(ensemble, "forward", batch_size=batch_size)
            inference = lower(ensemble, "forward", batch_size=batch_size, training=False)
            found[ensemble.name] = LoweredLayer(ensemble, batch_size, forward, inference)
    return found
