"""The programs of a region as they were lowered or derived: what a plan is made of, before any recipe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from swirl.ir.anonymous import anonymous, renamed_storage, with_owners
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program
from swirl.ir.text import identity
from swirl.transforms.rewrites.joined_programs import Part


@dataclass(frozen=True)
class Declared:
    """Programs that are scheduled together.

    Args:
        name: ``conv1``, or ``conv1_relu1``.
        layers: the names of the layers, sources first.
        parts: phase → the layers' programs, in order of execution.
        local: of a chain: storage → name of the buffer in the joined programs.
        internal: of a chain: phase → storage that only these programs need.
        lays_out: prefixes of the storage whose layout these programs choose (``"conv1."``).
        parameters: storage of parameters, and of their gradients → whether these programs choose the layout.
        names: kind of layer → its own names for buffers → buffer; for ``""`` the names in these programs, also of
            buffers that belong to phases which are joined with another layer's.
    """

    name: str
    layers: tuple[str, ...]
    parts: Mapping[str, tuple[Part, ...]]
    local: Mapping[str, str] = field(default_factory=dict)
    internal: Mapping[str, frozenset[str]] = field(default_factory=dict)
    lays_out: tuple[str, ...] = ()
    parameters: Mapping[str, bool] = field(default_factory=dict)
    names: Mapping[str, Mapping[str, Buffer]] = field(default_factory=dict)

    @property
    def joined(self) -> bool:
        """Whether these are the programs of several layers."""
        return len(self.layers) > 1

    def chooses(self, storage: str) -> bool:
        """Whether these programs choose the layout of a storage: its layers' own."""
        return self.parameters.get(storage, storage.startswith(self.lays_out))

    def programs(self) -> Iterator[Program]:
        """Every program in it."""
        yield from (part.program for parts in self.parts.values() for part in parts)

    def buffers(self) -> Iterator[Buffer]:
        """Every buffer that a program or a name stands for."""
        yield from (buffer for program in self.programs() for buffer in program.buffers.values())
        yield from (buffer for known in self.names.values() for buffer in known.values())

    @cached_property
    def touched(self) -> frozenset[str]:
        """Names of layers whose storage it has."""
        return frozenset(buffer.name.partition(".")[0] for buffer in self.buffers())

    def has(self, pattern: re.Pattern[str]) -> bool:
        """Whether a name in these programs, other than those of layers, has this form."""
        return any(pattern.search(identity(anonymous(program).program)) for program in self.programs())

    def owners(self) -> list[str]:
        """The names of layers, and of these programs, that appear in it, in the order of their appearance."""
        places = [f"{self.name}.", *(f"{layer}." for layer in self.layers)]
        places += [
            place for program in self.programs() for place in (program.name, *_storage(program.buffers.values()))
        ]
        places += [*self.local, *(storage for known in self.internal.values() for storage in sorted(known))]
        places += [*self.lays_out, *self.parameters, *_storage(self.buffers())]
        return list(dict.fromkeys(owner for place in places for owner in place.split(".")[:-1]))

    def with_owners(self, owners: Mapping[str, str]) -> Declared:
        """The same with other names for layers.

        Args:
            owners: name → the new one.
        """

        def storage(place: str) -> str:
            return renamed_storage(place, owners)

        def buffer(known: Buffer) -> Buffer:
            return replace(known, name=storage(known.name))

        return Declared(
            owners.get(self.name, self.name),
            tuple(owners.get(layer, layer) for layer in self.layers),
            {
                phase: tuple(replace(part, program=with_owners(part.program, owners)) for part in parts)
                for phase, parts in self.parts.items()
            },
            {storage(place): local for place, local in self.local.items()},
            {phase: frozenset(map(storage, known)) for phase, known in self.internal.items()},
            tuple(map(storage, self.lays_out)),
            {storage(place): chooses for place, chooses in self.parameters.items()},
            {kind: {local: buffer(b) for local, b in known.items()} for kind, known in self.names.items()},
        )

    def identity(self, owners: Mapping[str, str]) -> str:
        """A text that is the same for two exactly if :meth:`with_owners` makes them equal, without making them."""

        def storage(place: str) -> str:
            return renamed_storage(place, owners)

        def written(known: Buffer) -> str:
            return repr(replace(known, name=storage(known.name)))

        parts = {
            phase: [
                (identity(anonymous(part.program).program), *map(owners.get, anonymous(part.program).names), part.loops)
                for part in parts
            ]
            for phase, parts in self.parts.items()
        }
        return repr(
            (
                owners.get(self.name),
                [owners.get(layer) for layer in self.layers],
                parts,
                [(storage(place), local) for place, local in self.local.items()],
                {phase: sorted(map(storage, known)) for phase, known in self.internal.items()},
                [storage(place) for place in self.lays_out],
                [(storage(place), chooses) for place, chooses in self.parameters.items()],
                {kind: [(local, written(b)) for local, b in known.items()] for kind, known in self.names.items()},
            )
        )


def _storage(buffers: Iterable[Buffer]) -> list[str]:
    return [buffer.name for buffer in buffers]
