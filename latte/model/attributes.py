"""Which attributes of an ensemble may be set, and when."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from latte.model.checks import check_flags
from latte.model.source_location import user_location
from swirl.errors import CommandError, DeclarationError, UnknownName, nearest


class Trainable:
    """An attribute of ensembles: whether one trains. In a net, its settings have what is frozen."""

    def __get__(self, ensemble: Any, owner: type) -> Any:
        if ensemble is None:
            return self
        if ensemble.settings is None:
            return vars(ensemble).get("_trainable", True)
        return ensemble.name not in ensemble.settings.freezing.layers

    def __set__(self, ensemble: Any, value: bool) -> None:
        check_flags(DeclarationError, trainable=value)
        settings = vars(ensemble).get("settings")
        if settings is None:
            vars(ensemble)["_trainable"] = bool(value)
        else:
            settings.freezing = settings.freezing.with_layers([ensemble.name], frozen=not value)


OF_THE_NET = {
    "accessor",
    "asked_padding",
    "batch_dim",
    "commands",
    "connections",
    "location",
    "neuron_class",
    "neurons",
}
OF_THE_NET |= {"phase_methods", "position", "settings"}
"""Attributes that nobody sets but the net and the layer's constructor."""
DECLARED = {"shape", "dims", "kind", "name"}
"""What a net is compiled with."""


def check_settable(of: object, name: str, value: Any, fields: Collection[str], compiled: Mapping[str, Any]) -> None:
    """Refuse to set a field, which has a setter, or what the compiled code has as a number.

    Args:
        of: the ensemble, which is in a net.
        name, value: of the attribute.
        fields: names of its fields that are not attributes.
        compiled: attribute → its value in the compiled code.

    Raises:
        CommandError: it is one of these.
    """
    if name in fields:
        raise CommandError(
            f"{name} of {of!r} is data that the compiled net holds, not an attribute",
            location=user_location(),
            way_out=f"set_{name}(array), once the net is compiled",
        )
    if name in compiled and not (type(value) is type(compiled[name]) and value == compiled[name]):
        raise CommandError(
            f"{name} of {of!r} is {compiled[name]!r} in the compiled code, which cannot be changed",
            location=user_location(),
            way_out=f"set {name} before net.compile(); declare a State for what changes in training",
        )


def check_known(of: object, classes: Collection[type], name: str) -> None:
    """Refuse to set an attribute that a layer of the library does not have: nothing would read it. Layers of your
    own classes may have attributes, which their bodies read.

    Args:
        of: the ensemble, which is in a net.
        classes: its own, and that of its neurons.
        name: of the attribute.

    Raises:
        UnknownName: there is no such attribute.
    """
    if name in vars(of) or hasattr(type(of), name) or not all(map(_of_library, classes)):
        return
    settable = {each for each in vars(of) if not each.startswith("_")} - OF_THE_NET - DECLARED
    for base in type(of).__mro__:
        settable |= {n for n, v in vars(base).items() if isinstance(v, Trainable) or getattr(v, "fset", None)}
    raise UnknownName(
        f"{of!r} has no attribute {name!r}: setting it would change nothing",
        location=user_location(),
        way_out=f"{nearest(name, settable)}it has {', '.join(sorted(settable))}",
    )


def _of_library(owner: type) -> bool:
    return owner.__module__.partition(".")[0] == __name__.partition(".")[0]
