"""Settings of a solver for some layers or parameters alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from latte.model.ensemble import Ensemble
from latte.model.frozen import chosen, parameters_of
from latte.model.graph import Graph
from latte.model.source_location import user_location
from latte.solver.schedules import Schedule, restored
from latte.solver.settings import Setting, unknown_setting
from swirl.errors import CommandError, DataError, DeclarationError

Layers = tuple[tuple[str, Mapping[str, Any]], ...]
"""Names and patterns, in order, and their settings: numbers, switches, schedules."""
Group = tuple[tuple[str, int], ...]
"""Each setting that is not the solver's, and the number of the entry of :data:`Layers` that it is from."""


def checked_layers(graph: Graph, layers: Any, own: Mapping[str, Setting], solver: str) -> Layers:
    """The settings that a user gives for layers and parameters.

    Args:
        graph: of the net.
        layers: layer, name or pattern (``"fc*"``, ``"*.bias"``) → settings by name; None for none.
        own: the solver's settings.
        solver: its class, for messages.

    Raises:
        CommandError: there is no such layer or parameter.
        DeclarationError: something is not a dictionary, a layer has no parameters, or a value is out of range.
        UnknownName: the solver has no such setting.
    """
    if layers is None:
        return ()
    if not isinstance(layers, Mapping):
        raise _no_dictionary("layers", layers)
    found = []
    for key, given in layers.items():
        if not parameters_for(graph, key):
            raise DeclarationError(
                f"layers: {_name(key)} has no parameters of its own",
                location=user_location(),
                way_out=f"those that have: {', '.join(parameters_of(graph)) or 'none'}",
            )
        if not isinstance(given, Mapping):
            raise _no_dictionary(f"layers: the settings of {_name(key)}", given)
        for name, value in given.items():
            if name not in own:
                raise unknown_setting(solver, name, own)
            if own[name].default is None:
                raise DeclarationError(
                    f"{name} applies to the gradients of all parameters: {_name(key)} cannot have another one",
                    location=user_location(),
                    way_out=f"{solver}(net, …, {name}=…)",
                )
            own[name].check(value)
        found.append((_name(key), {name: own[name].as_held(value) for name, value in given.items()}))
    return tuple(found)


def parameters_for(graph: Graph, key: Any) -> list[str]:
    """The storage of the parameters that a layer, a name or a pattern stands for: those of the layers themselves, or
    single ones.

    Raises:
        CommandError: there is no such layer or parameter.
    """
    layers, single = chosen(graph, [key], "layers")
    return [name for name in parameters_of(graph) if name in single or name.partition(".")[0] in layers]


def groups_of(graph: Graph, layers: Layers) -> dict[str, Group]:
    """Storage of a parameter → its group; of several entries for a setting, the last one counts."""
    winners: dict[str, dict[str, int]] = {name: {} for name in parameters_of(graph)}
    for number, (key, given) in enumerate(layers):
        for parameter in parameters_for(graph, key):
            winners[parameter].update(dict.fromkeys(given, number))
    return {name: tuple(sorted(won.items())) for name, won in winners.items()}


def own_settings(layers: Layers, group: Group) -> dict[str, Any]:
    """The settings of a group that are not the solver's."""
    return {name: layers[number][1][name] for name, number in group}


def saved_layers(layers: Layers) -> list[list[Any]]:
    """Settings for layers as JSON has them."""
    return [
        [key, {name: value.saved() if isinstance(value, Schedule) else value for name, value in given.items()}]
        for key, given in layers
    ]


def restored_layers(
    graph: Graph, saved: Any, own: Mapping[str, Setting], solver: str, schedules: Iterable[Schedule], *, strict: bool
) -> Layers:
    """What :func:`saved_layers` has said.

    Args:
        graph: of the net.
        saved: names and patterns with their settings.
        own: the solver's settings.
        solver: its class, for messages.
        schedules: whose kinds are known, beside those of :mod:`latte.solver.schedules`.
        strict: whether names that the net does not have are refused; they are left out otherwise.

    Raises:
        DataError: it is something else, or does not fit.
    """
    entries = saved if isinstance(saved, Sequence) else [None]
    found: Layers = ()
    for entry in entries:
        if not (isinstance(entry, Sequence) and len(entry) == 2 and isinstance(entry[1], Mapping)):
            raise DataError(f"the solver was saved with settings of layers {saved!r}", location=user_location())
        key, given = entry
        known = list(schedules)
        values = {name: restored(value, known) if isinstance(value, dict) else value for name, value in given.items()}
        try:
            found += checked_layers(graph, {key: values}, own, solver)
        except (CommandError, DeclarationError) as error:
            if strict or isinstance(error, DeclarationError):
                message = f"the solver was saved with settings of {key}: {error.message}"
                raise DataError(message, location=error.location, way_out=error.way_out) from error
    return found


def _name(key: Any) -> Any:
    return key.name if isinstance(key, Ensemble) else key


def _no_dictionary(what: str, given: Any) -> DeclarationError:
    return DeclarationError(
        f"{what} must be a dictionary, not {given!r}",
        location=user_location(),
        way_out='layers={"fc*": dict(learning_rate=0.1), "*.bias": dict(weight_decay=0)}',
    )
