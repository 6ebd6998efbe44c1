"""Freezing layers and parameters of a net, and what follows for its programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from latte.model.ensemble import Ensemble
from latte.model.graph import Graph
from latte.model.source_location import user_location
from swirl.errors import CommandError, nearest


@dataclass(frozen=True)
class Frozen:
    """What follows from a :class:`Freezing` for the programs of a net: two of them may come to the same.

    Args:
        parameters: storage of the parameters that do not train; a shared one is frozen with its owner.
        inferring: layers that run their inference body in training, too: those that are frozen as a whole and have a
            state, a running mean for instance, as in Keras.
    """

    parameters: frozenset[str] = frozenset()
    inferring: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.parameters or self.inferring)


def frozen_now(graph: Graph) -> Frozen:
    """What does not train now."""
    freezing = graph.settings.freezing
    stateful = (e for e in graph.ensembles if any(field.role == "state" for field in e.declared_fields().values()))
    inferring = frozenset(ensemble.name for ensemble in stateful if ensemble.name in freezing.layers)
    return Frozen(frozenset(name for name in parameters_of(graph) if name in freezing), inferring)


def parameters_of(graph: Graph) -> list[str]:
    """The storage of all parameters of a net; a shared one once, as its owner's."""
    own = (spec for ensemble in graph.ensembles for spec in ensemble.fields().values() if spec.role == "param")
    return list(dict.fromkeys(spec.storage for spec in own))


def freeze(graph: Graph, keys: Sequence[Ensemble | str], frozen: bool) -> None:
    """See :meth:`latte.net.Net.freeze` and :meth:`latte.net.Net.unfreeze`.

    Raises:
        CommandError: there are no such layers or parameters. Nothing is changed then.
    """
    what = "freeze" if frozen else "unfreeze"
    if not keys:
        raise CommandError(
            f"{what} is for layers, and none is given", location=user_location(), way_out=f'net.{what}("*"): all'
        )
    layers, parameters = chosen(graph, keys, what)
    before = graph.settings.freezing
    graph.settings.freezing = before.with_layers(layers, frozen).with_parameters(parameters, frozen)


def chosen(graph: Graph, keys: Iterable[Any], what: str) -> tuple[list[str], list[str]]:
    """The names of the layers, and the storage of the single parameters, that layers, names and patterns stand for.

    Args:
        graph: of the net.
        keys: layers, names (``conv1``, ``conv1.weights``) and patterns (``conv*``, ``*.bias``). One without a dot is
            for layers.
        what: asks for them, for messages.

    Raises:
        CommandError: one is something else, or there is no such layer or parameter; the message has the nearest name,
            and those that there are.
    """
    layers, parameters = [ensemble.name for ensemble in graph.ensembles], parameters_of(graph)
    found: tuple[dict[str, None], dict[str, None]] = {}, {}
    for given in keys:
        key = graph.find(given).name if isinstance(given, Ensemble) else given
        if not isinstance(key, str):
            raise CommandError(
                f"{what} is for layers, their names, or patterns, not for {key!r}",
                location=user_location(),
                way_out='each by itself: conv1, "conv1", "conv*", "*.bias"',
            )
        single = "." in key
        known = parameters if single else layers
        matching = [name for name in known if fnmatchcase(name, key)]
        if not matching:
            kind = "parameter" if single else "layer"
            raise CommandError(
                f"{what}: no {kind} is called {key!r}",
                location=user_location(),
                way_out=f"{nearest(key, [*layers, *parameters])}the {kind}s are {', '.join(known) or 'none'}",
            )
        found[single].update(dict.fromkeys(matching))
    return list(found[False]), list(found[True])
