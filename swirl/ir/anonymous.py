"""Programs without the names of their layers: equal for equal layers, which share one result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from swirl.ir.nest import Program

_TOKEN = re.compile(r"zL(\d+)z")


@dataclass(frozen=True)
class Anonymous:
    """A program with tokens in place of the names of layers, in its own name, its storage and its nests' labels.

    Args:
        program: with tokens.
        names: what the tokens stand for, in the order of their numbers.
        labels: nest's label → the same with tokens.
    """

    program: Program
    names: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def named(self, made: Program) -> Program:
        """A program made from this one, with the layers' names."""
        buffers = {local: replace(b, name=self.text(b.name)) for local, b in made.buffers.items()}
        nests = tuple(nest.renamed(self.text(nest.label)) for nest in made.nests)
        remarks = tuple(self.text(remark) for remark in made.remarks)
        return replace(made, name=self.text(made.name), nests=nests, buffers=buffers, remarks=remarks)

    def text(self, text: str) -> str:
        """A text about this program, with the layers' names."""
        return text if not self.names else _TOKEN.sub(lambda token: self.names[int(token[1])], text)

    def argument(self, value: Any) -> Any:
        """The arguments of a command in terms of this program: a nest may be named by its label."""
        return self.labels.get(value, value) if isinstance(value, str) else value


def anonymous(program: Program) -> Anonymous:
    """The program without the names of layers: ``conv1.weights`` and ``conv2.weights`` are one. It is kept with the
    program, which is a value."""
    found: Anonymous | None = program.__dict__.get("anonymous")
    if found is None:
        found = program.__dict__["anonymous"] = _anonymous(program)
    return found


def _anonymous(program: Program) -> Anonymous:
    places = [program.name, *(buffer.name for buffer in program.buffers.values())]
    texts = (*places, *program.buffers, *program.aliases, *program.commands, *(nest.text for nest in program.nests))
    if any(map(_TOKEN.search, texts)):
        return Anonymous(program)  # some name looks like a token
    names = tuple(dict.fromkeys(part for place in places for part in place.split(".")[:-1]))
    tokens = {name: f"zL{number}z" for number, name in enumerate(names)}
    labels = {nest.label: renamed_label(nest.label, tokens) for nest in program.nests}
    return Anonymous(with_owners(program, tokens), names, labels)


def with_owners(program: Program, owners: Mapping[str, str]) -> Program:
    """The program with other names for layers, in its own name, its storage and its nests' labels.

    Args:
        program: to be renamed.
        owners: a layer's name → the new one.
    """
    buffers = {local: replace(b, name=renamed_storage(b.name, owners)) for local, b in program.buffers.items()}
    nests = tuple(nest.renamed(renamed_label(nest.label, owners)) for nest in program.nests)
    return replace(program, name=renamed_storage(program.name, owners), nests=nests, buffers=buffers)


def renamed_storage(storage: str, owners: Mapping[str, str]) -> str:
    """``conv1.weights`` with the new name for ``conv1``."""
    *before, last = storage.split(".")
    return ".".join((*(owners.get(owner, owner) for owner in before), last))


def renamed_label(label: str, owners: Mapping[str, str]) -> str:
    """``conv1_forward_0`` with the new name for ``conv1``."""
    longest = max((name for name in owners if label.startswith(f"{name}_")), key=len, default="")
    return owners.get(longest, "") + label.removeprefix(longest)
