"""What the last ``forward`` or ``test`` of a net has measured."""

from __future__ import annotations


class Measure:
    """``net.loss``, ``net.accuracy``: the session's; 0 before the net is compiled. Programs for the original set them.

    Args:
        name: of the session's attribute.
    """

    def __init__(self, name: str):
        self._name = name

    def __get__(self, net: object, owner: type) -> float:
        return float(getattr(getattr(net, "_session", None), self._name, 0.0))

    def __set__(self, net: object, value: float) -> None:
        session = getattr(net, "_session", None)
        if session is not None:
            setattr(session, self._name, value)
