"""Programs of neighbouring layers as one program."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from swirl.ir.buffers import Buffer
from swirl.ir.nest import Nest, Program, fresh, make_nest, names_in, substitute, variable_of
from swirl.ir.paths import loops
from swirl.ir.trees import declared_in


@dataclass(frozen=True)
class Part:
    """The program of one layer, to be joined with others.

    Args:
        program: of one phase.
        loops: its loops' names → names in the joined program, for dimensions that it shares with another layer.
    """

    program: Program
    loops: Mapping[str, str] = field(default_factory=dict)


def join(name: str, parts: Sequence[Part], names: Mapping[str, str]) -> Program:
    """One program of several that run one after the other: shared buffers get one name.

    Args:
        name: of the joined program.
        parts: in order of execution.
        names: storage → name of the buffer in the joined program.
    """
    buffers: dict[str, Buffer] = {}
    for part in parts:
        buffers |= {names[record.name]: record for record in part.program.buffers.values()}
    nests: list[Nest] = []
    aliases: dict[str, tuple[str, ...]] = {}
    for part in parts:
        own = {key: names[record.name] for key, record in part.program.buffers.items()}
        nests += [_renamed(nest, own, part.loops, buffers) for nest in part.program.nests]
        for alias, targets in part.program.aliases.items():
            renamed = tuple(part.loops.get(target, target) for target in targets)
            aliases[alias] = tuple(dict.fromkeys((*aliases.get(alias, ()), *renamed)))
    fixed = next((part.program.fixed for part in parts if part.program.fixed), "")
    return Program(name, tuple(nests), buffers, aliases, fixed=fixed)


def follow(first: Program, second: Program) -> Program:
    """``first``, then ``second``; their buffers have the same names for the same storage."""
    names = {record.name: key for key, record in (*second.buffers.items(), *first.buffers.items())}
    joined = join(first.name, [Part(first), Part(second)], names)
    return replace(joined, commands=first.commands)


def _renamed(nest: Nest, own: Mapping[str, str], wanted: Mapping[str, str], buffers: Mapping[str, Buffer]) -> Nest:
    """The nest with the joined program's names for its buffers and loops; a name that would mean two things is
    changed."""
    bound = _bound(nest)
    mapping = {old: new for old, new in own.items() if old != new}
    mapping |= {old: new for old, new in wanted.items() if old in bound and new not in buffers and old != new}
    taken = set(buffers) | names_in(nest.function) | set(mapping.values())
    for name in sorted(bound - set(mapping)):
        if name in buffers or name in mapping.values():
            mapping[name] = fresh(f"{name}_1", taken)
            taken.add(mapping[name])
    substitution: dict[str, ast.expr] = {old: ast.Name(new, ast.Load()) for old, new in mapping.items()}
    return make_nest(nest.label, [substitute(s, substitution) for s in nest.body], buffers)


def _bound(nest: Nest) -> set[str]:
    """The loop variables and locals of a nest."""
    return declared_in(nest.function) | {variable_of(node) for _, node in loops(nest.body)}
