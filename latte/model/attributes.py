"""Which attributes of an ensemble may be set, and when."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from latte.model.source_location import user_location
from swirl.errors import CommandError

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
            f"{name} of {of!r} is {compiled[name]!r} in the compiled code, and stays so",
            location=user_location(),
            way_out=f"set {name} before net.compile(); what changes in training is a State",
        )
