"""Parameters that several layers share: one array, to whose gradient each of them adds."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from latte.model.neuron import Declaration, FieldSpec, Param
from latte.model.settings import NetSettings
from latte.model.source_location import user_location
from swirl.errors import DeclarationError, UnknownName


class Shared(Param):
    """A parameter of another layer as a field: ``weights = conv1.weights`` in a class, or in ``add_field``.

    Both layers read and train one array. It is initialised and saved as the first layer's; the getters and setters of
    both work on it.

    Args:
        parameter: as the field is declared: dimensions of the layer that shares it, then a shape.
        of: storage of the array (``conv1.weights``).
        extents: its whole shape.
        settings: of the net that the first layer is in.
        stream: place of its layer in the net, and its own there: its initial values are drawn by them.
    """

    def __init__(
        self, parameter: Param, of: str, extents: tuple[int, ...], settings: NetSettings, stream: tuple[int, int]
    ):
        fan_in = prod(parameter.shape) if parameter.fan_in is None else parameter.fan_in
        super().__init__(
            *parameter.dims, shape=parameter.shape, init=parameter.init, dtype=parameter.dtype, fan_in=fan_in
        )
        self.of, self.extents, self.settings, self.stream = of, extents, settings, stream

    def __repr__(self) -> str:
        return f"<parameter {self.of} {self.extents}>"

    def over(self, *dims: str) -> Shared:
        """The same array with other leading dimensions: ``embedding1.weights.over("k")`` of shape (1000, 64) is one
        array of shape (64,) for each of the 1000 k.

        Args:
            dims: of the layer that shares it, by name; without any, each neuron has the whole array.

        Raises:
            DeclarationError: the array has fewer dimensions, or they are not names.
        """
        if len(dims) > len(self.extents):
            names = ", ".join(map(repr, dims))
            raise DeclarationError(
                f"{self.of} has the shape {self.extents}, and no {len(dims)} dimensions for {names}",
                location=user_location(),
            )
        parameter = Param(*dims, shape=self.extents[len(dims) :], init=self.init, dtype=self.dtype, fan_in=self.fan_in)
        return Shared(parameter, self.of, self.extents, self.settings, self.stream)

    def storage(self, layer: str, name: str) -> str:
        return self.of


def share(
    layer: str, name: str, declared: Declaration, fields: Mapping[str, FieldSpec], settings: NetSettings, position: int
) -> Shared:
    """A field of a layer, for another layer to declare.

    Args:
        layer: for messages.
        name: of the field, and
        declared: its declaration.
        fields: of the layer.
        settings: of its net.
        position: its place in the net.

    Raises:
        UnknownName: the field is not a parameter, or the net is compiled: then nothing can share it any more.
    """
    if not isinstance(declared, Param) or settings.compiled:
        what = (
            "data that the compiled net holds" if settings.compiled else "computed, not a Param that layers can share"
        )
        raise UnknownName(
            f"{name} of {layer} is {what}", location=user_location(), way_out=f"get_{name}() reads it in a compiled net"
        )
    stream = declared.stream if isinstance(declared, Shared) else (position, list(fields).index(name))
    return Shared(declared, fields[name].storage, fields[name].shape, settings, stream)


def shareable(fields: Mapping[str, Declaration], settings: NetSettings | None) -> list[str]:
    """The fields of a layer that another layer may declare."""
    if settings is None or settings.compiled:
        return []
    return [name for name, declared in fields.items() if isinstance(declared, Param)]


def check_shared(
    layer: str,
    fields: Mapping[str, Declaration],
    extents: Mapping[str, int],
    settings: NetSettings,
    position: int,
    location: str | None,
) -> None:
    """Check what a layer shares with others.

    Args:
        layer: for messages.
        fields: its declarations.
        extents: of its dimensions.
        settings: of its net.
        position: its place in the net.
        location: of the layer.

    Raises:
        DeclarationError: it is of another net or a later layer, twice in one layer, or of another shape.
    """
    names: dict[str, str] = {}
    for name, declared in fields.items():
        if not isinstance(declared, Shared):
            continue
        reason, way_out = None, None
        shape = tuple(extents.get(dim, 0) for dim in declared.dims) + declared.shape
        if declared.settings.origin != settings.origin:
            reason, way_out = "is in another net", "set_… and get_… copy values from one net to another"
        elif declared.stream[0] >= position:
            reason, way_out = "belongs to a later layer", "declare the parameter in the first layer that uses it"
        elif declared.of in names:
            reason, way_out = f"is its field {names[declared.of]!r} already", "use one name for it"
        elif missing := [dim for dim in declared.dims if dim not in extents]:
            reason = f"has the dimension {missing[0]!r}, which the layer does not have"
            way_out = f"the layer has {', '.join(map(repr, extents))}: .over(…) names those that fit {declared.extents}"
        elif (shape or (1,)) != declared.extents:
            reason = f"has the shape {declared.extents}, not {shape}"
            way_out = ".over(…) names the layer's dimensions that come first in its shape"
        if reason is not None:
            raise DeclarationError(
                f"the field {name!r} of {layer} is {declared.of}, which {reason}", location=location, way_out=way_out
            )
        names[declared.of] = name
