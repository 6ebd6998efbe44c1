"""What a user has frozen: layers and single parameters, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Freezing:
    """What a user has frozen, by name.

    Args:
        layers: that are frozen as a whole.
        parameters: storage (``conv1.weights``) that is frozen by itself.
        thawed: parameters that train although their layer is frozen.
    """

    layers: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    thawed: frozenset[str] = frozenset()

    def __contains__(self, parameter: str) -> bool:
        """Whether a parameter, by its storage, does not train."""
        whole = parameter.partition(".")[0] in self.layers and parameter not in self.thawed
        return whole or parameter in self.parameters

    def with_layers(self, names: Iterable[str], frozen: bool) -> Freezing:
        """The same with whole layers frozen, or thawed with all their parameters."""
        changed = frozenset(names)
        layers = self.layers | changed if frozen else self.layers - changed
        return Freezing(layers, _of_others(self.parameters, changed), _of_others(self.thawed, changed))

    def with_parameters(self, storage: Iterable[str], frozen: bool) -> Freezing:
        """The same with single parameters frozen, or thawed."""
        changed = frozenset(storage)
        if frozen:
            return replace(self, parameters=self.parameters | changed, thawed=self.thawed - changed)
        within = {name for name in changed if name.partition(".")[0] in self.layers}
        return replace(self, parameters=self.parameters - changed, thawed=self.thawed | within)

    def saved(self) -> dict[str, list[str]]:
        """The names as JSON has them."""
        return {name: sorted(getattr(self, name)) for name in ("layers", "parameters", "thawed")}

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Freezing:
        """What :meth:`saved` has said."""
        return cls(**{name: frozenset(saved.get(name, ())) for name in ("layers", "parameters", "thawed")})


def _of_others(parameters: frozenset[str], layers: frozenset[str]) -> frozenset[str]:
    """Those of the parameters that are not of these layers."""
    return frozenset(name for name in parameters if name.partition(".")[0] not in layers)
