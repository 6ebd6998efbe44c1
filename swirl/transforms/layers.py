"""Programs of neighbouring layers as one program, and their loops as one."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from swirl.errors import CommandError, Refused
from swirl.ir.buffers import Buffer
from swirl.ir.deps import NotProved
from swirl.ir.nest import Nest, Program, at, fresh, loop_of, loops, make_nest, names_in, substitute
from swirl.ir.trees import declared_in
from swirl.transforms.base import Site, check_names, checked, command, refuse
from swirl.transforms.canonical import canonicalise
from swirl.transforms.contract import contract, own_buffers
from swirl.transforms.joining import fuse_at
from swirl.transforms.ways import step, tried


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
    """One program of several that run one after the other: what they share gets one name.

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
            moved = tuple(part.loops.get(target, target) for target in targets)
            aliases[alias] = tuple(dict.fromkeys((*aliases.get(alias, ()), *moved)))
    return Program(name, tuple(nests), buffers, aliases)


def follow(first: Program, second: Program) -> Program:
    """``first`` and behind it ``second``, whose buffers have the same names for the same storage."""
    names = {record.name: key for key, record in (*second.buffers.items(), *first.buffers.items())}
    joined = join(first.name, [Part(first), Part(second)], names)
    return replace(joined, commands=first.commands)


def _renamed(nest: Nest, own: Mapping[str, str], wanted: Mapping[str, str], buffers: Mapping[str, Buffer]) -> Nest:
    """The nest with the joined program's names for its buffers and loops; what then means two things gets another
    name."""
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
    return declared_in(nest.function) | {loop_of(node).var for _, node in loops(nest.body)}


@command()
def fuse_layers(program: Program, *, keep: Sequence[str] = (), required: bool = True) -> Program:
    """Join the loops of neighbouring layers, and contract the buffers in between that nobody else reads.

    rewrite:
        for n: for k: y[n, k] = e                       for n: for k:
        for n: for c: z[n, c] = max(0.0, y[n, c])   →       y_t: float32 = e
                                                            z[n, k] = max(0.0, y_t)

    Loops are joined from the outermost inwards as far as the dependences allow, without making a loop that could
    run in parallel one that can't. Where one layer alone has something to compute in a phase, there is nothing to join.

    Args:
        keep: buffers that are not contracted.
        required: whether it is refused where no two loops can be joined. Of two phases, whose programs become one
            whatever their loops are (``fuse_layers("backward", "update")``), it is not.

    Raises:
        CommandError: ``keep`` names no buffer.  Refused: no two loops can be joined.
    """
    keep = check_names(keep, "buffers")
    for name in keep:
        if name not in program.buffers:
            raise CommandError(f"no buffer named {name!r} in {program.name}",
                               way_out=f"the buffers are {', '.join(program.buffers)}")  # fmt: skip
    fused = canonicalise(program)
    if required and len(program.nests) > 1 and len(fused.nests) == len(program.nests):
        raise _apart(program)
    fused = checked(program, fused)
    for name in own_buffers(fused):
        if name not in keep:
            try:
                fused = contract(fused, name)
            except Refused:
                continue
    return fused


def stored_between(program: Program, keep: Sequence[str] = ()) -> list[str]:
    """Why buffers that nobody else reads have not been contracted, a sentence each."""
    result = []
    for name in own_buffers(program):
        if name not in keep and any(name in nest.arguments for nest in program.nests):
            try:
                contract(program, name)
            except Refused as refusal:
                result.append(f"{name} stays in memory: {refusal.message}")
    return result


def _apart(program: Program) -> Refused:
    """Why the first two nests stay apart."""
    nest = program.nests[0]
    first, second = nest.body[0], program.nests[1].body[0]
    path = (("body", 0),)
    if not isinstance(first, ast.For) or not isinstance(second, ast.For):
        return refuse("no two loops follow each other", nest, path, "asked to fuse layers")
    try:
        fuse_at(program, Site(0, path))
    except Refused as refusal:
        return refusal
    except NotProved:
        return refuse("not proved within the time allowed", nest, path, "asked to fuse layers")
    assert isinstance(at(nest.body, path), ast.For)
    return refuse("joined, the loops could no longer run in parallel", nest, path, "asked to fuse layers",
                  way_out=tried(program, (step("fuse", loop_of(first).var, loop_of(second).var),)))  # fmt: skip
