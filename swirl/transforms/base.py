"""What every command shares: the registry, finding loops by name, refusals that show the nest, checks after a
rewrite."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Concatenate, ParamSpec

from swirl.errors import CommandError, Refused, ValidationError, nearest
from swirl.ir.buffers import Buffer
from swirl.ir.deps import Conflict, NotProved, carried, find, meeting, pinned
from swirl.ir.integers import LARGEST, too_large
from swirl.ir.nest import (
    Loop,
    Nest,
    Path,
    Program,
    at,
    constant,
    enclosing,
    fresh,
    loop_of,
    loops,
    names_in,
    replace_at,
    walk,
)
from swirl.ir.printing import unparse
from swirl.ir.statements import Statement, outer_locals, statements
from swirl.ir.trees import declared_in
from swirl.ir.types import explicit
from swirl.ir.validate import validate

P = ParamSpec("P")
Command = Callable[Concatenate[Program, P], Program]

MOST_BYTES = 2**40
"""A buffer that takes more is a mistake."""

COMMANDS: dict[str, Callable[..., Program]] = {}
"""Every command by name: a pure function program → program that raises :class:`Refused` where it would change
the meaning."""


@dataclass(frozen=True)
class Assumption:
    """What a command takes for granted of the numbers that a program is run on; ``explain`` says it wherever the
    command changed something.

    Args:
        text: a sentence, after "assumes that".
        option: the switch that has to be on for it; None is always.
    """

    text: str
    option: str | None = None


ASSUMPTIONS: dict[str, Assumption] = {}
"""By the command's name."""


def command(*names: str, assumes: Assumption | None = None) -> Callable[[Command[P]], Command[P]]:
    """Registers a command under ``names`` (its own name, and the names that older recipes use).

    Args:
        names: other names.
        assumes: what it takes for granted of the data.

    It gets the program with every conversion of types spelled out: an update of a whole number by a fraction, which
    loses something at each step, is then no sum whose order may change.
    """

    def register(function: Command[P]) -> Command[P]:
        @wraps(function)
        def run(program: Program, *arguments: P.args, **options: P.kwargs) -> Program:
            return function(explicit(program), *arguments, **options)

        for name in (function.__name__, *names):
            COMMANDS[name] = run
            if assumes is not None:
                ASSUMPTIONS[name] = assumes
        return run

    return register


# --- finding loops --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Site:
    """A loop of a program: the nest's index and the path in its body."""

    nest: int
    path: Path


def loop_names(program: Program) -> list[str]:
    """Every loop variable of the program, in order of first appearance."""
    return list(dict.fromkeys(loop_of(node).var for nest in program.nests for _, node in loops(nest.body)))


def resolve(program: Program, name: str) -> tuple[str, ...]:
    """The loop variables that ``name`` means: itself, or what the alias stands for (suffixes of tiling
    kept)."""
    names = loop_names(program)
    if not isinstance(name, str):
        raise CommandError(f"a loop is given by its name, not {name!r}", way_out=f"the loops are {', '.join(names)}")
    if name in names:
        return (name,)
    for alias, targets in program.aliases.items():
        suffix = name[len(alias) :]
        if name.startswith(alias) and (not suffix or suffix.startswith("_")):
            found = tuple(target + suffix for target in targets if target + suffix in names)
            if found:
                return found
    older = [alias + other[len(target) :] for alias, targets in program.aliases.items() for target in targets
             for other in names if other == target or other.startswith(f"{target}_")]  # fmt: skip
    shown = [*names, *older]
    parts = [other for other in shown if other in (f"{name}_outer", f"{name}_inner")]
    hint = f"it is tiled: {' and '.join(parts)}; " if parts else nearest(name, shown)
    raise CommandError(
        f"no loop named {name!r} in {program.name}",
        way_out=f"{hint}the loops are {', '.join(names)}",
    )


def find_loops(program: Program, name: str, nest: int | str | None = None) -> list[Site]:
    """The loops called ``name``, last first, so that rewriting one leaves the paths of the others valid.

    Args:
        nest: only this nest, by index or label.
    """
    wanted = set(resolve(program, name))
    sites = []
    for index, candidate in enumerate(program.nests):
        if nest is not None and nest not in (index, candidate.label):
            continue
        sites += [Site(index, path) for path, node in loops(candidate.body) if loop_of(node).var in wanted]
    if not sites:
        labels = ", ".join(candidate.label for candidate in program.nests)
        raise CommandError(
            f"no loop {name!r} in nest {nest!r} of {program.name}", way_out=f"the nests are {labels}"
        )
    return sites[::-1]


def loop_at(program: Program, site: Site) -> ast.For:
    """The ``for`` at ``site``."""
    node = at(program.nests[site.nest].body, site.path)
    assert isinstance(node, ast.For)
    return node


def check_names(names: object, what: str = "loops") -> list[str]:
    """Several loops (or ``what``) by their names, or a CommandError."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise CommandError(f"several {what} are given as a list of names, not as {names!r}")
    return list(names)


def check_factor(factor: object, what: str = "factor") -> int:
    """A whole number of at least 1, or a CommandError."""
    if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
        raise CommandError(f"{what} must be a whole number of at least 1, not {factor!r}")
    return factor


def check_buffer(program: Program, buffer: object) -> None:
    """Raises CommandError where the program has no such buffer."""
    if buffer not in program.buffers:
        raise CommandError(
            f"no buffer named {buffer!r} in {program.name}",
            way_out=f"{nearest(buffer, program.buffers)}the buffers are {', '.join(program.buffers)}",
        )


def with_mark(program: Program, site: Site, mark: str) -> Program:
    """The program with the loop at ``site`` marked, so that :func:`take_mark` finds it after statements have
    moved."""
    loop = copy.copy(loop_at(program, site))
    loop.mark = mark  # type: ignore[attr-defined]
    function = copy.copy(program.nests[site.nest].function)
    function.body = replace_at(function.body, site.path, [loop])
    return program.with_nest(site.nest, Nest(function))


def take_mark(program: Program, mark: str) -> Site:
    """Where the marked loop is now; the mark is taken off."""
    site = _marked(program, mark)
    if site is None:
        raise ValidationError("a rewrite has lost the loop that it was about")
    return site


def _marked(program: Program, mark: str) -> Site | None:
    for index, nest in enumerate(program.nests):
        for path, node in loops(nest.body):
            if getattr(node, "mark", None) == mark:
                del node.mark  # type: ignore[attr-defined]
                return Site(index, path)
    return None


def rewrite_each(
    program: Program, name: str, nest: int | str | None, rewrite: Callable[[Program, Site], Program],
    occurrence: int | None = None, *, together: bool = False,
) -> Program:  # fmt: skip
    """``rewrite`` applied to every loop called ``name``, wherever the rewrites before have moved it, and
    checked; one that nothing is left of, as its condition never holds, is passed over.

    A loop that ``rewrite`` is refused for stays as it is, and the program's remarks say so.

    Args:
        occurrence: only to one of them, counted from 0 in order of appearance; -1 is the last.
        together: whether all are left where one is refused.

    Raises:
        CommandError, Refused: no loop of that name qualifies; of the first one.
    """
    sites = find_loops(program, name, nest)
    if occurrence is not None:
        count = len(sites)
        if isinstance(occurrence, bool) or not isinstance(occurrence, int) or not -count <= occurrence < count:
            raise CommandError(f"there are {count} loops {name!r}, counted from 0: no {occurrence!r}")
        sites = [sites[::-1][occurrence]]
    result = program
    for number, site in enumerate(sites):
        result = with_mark(result, site, f"{name} {number}")
    left = LeftAlone()
    for number in range(len(sites)):
        before, found = result, _marked(result, f"{name} {number}")
        if found is not None:
            with nullcontext() if together else left.noting(before, found):
                result = checked(before, rewrite(before, found))
                left.changed |= result is not before
    return left.told(result, backwards=True)


class LeftAlone:
    """Which of several loops a command has left as they are: one that does not qualify does not block the others.

    Attributes:
        changed: whether it has changed any of them.
    """

    def __init__(self) -> None:
        self.changed = False
        self._refused: list[tuple[str, CommandError]] = []

    @contextmanager
    def noting(self, program: Program, site: Site) -> Iterator[None]:
        """A refusal inside is noted for the loop at ``site``."""
        try:
            yield
        except CommandError as error:
            nest = program.nests[site.nest]
            around = [loop_of(n).var for n in enclosing(nest.body, site.path) if isinstance(n, ast.For)]
            inside = f" inside {', '.join(around)}" if around else ""
            self._refused.append((f"loop {loop_of(loop_at(program, site)).var}{inside} of {nest.label}", error))

    def told(self, result: Program, *, backwards: bool = False) -> Program:
        """The program with remarks on what was left; where nothing has changed, the first refusal is raised.

        Args:
            backwards: the loops were taken last first.
        """
        refused = self._refused[::-1] if backwards else self._refused
        if refused and not self.changed:
            raise refused[0][1]
        new = tuple(f"{where} stays as it is: {error.message}" for where, error in refused)
        return replace(result, remarks=(*result.remarks, *new)) if new else result


def inner_name(program: Program, site: Site, base: str) -> str:
    """A name for a loop inside the one at ``site``: ``base``, unless it means something there already.

    Loops that do not enclose each other may share a name; a command on that name then means all of them.
    """
    nest = program.nests[site.nest]
    around = {loop_of(n).var for n in enclosing(nest.body, site.path) if isinstance(n, ast.For)}
    inside = names_in(at(nest.body, site.path))
    return fresh(base, set(program.buffers) | declared_in(nest.function) | around | inside)


# --- refusing -------------------------------------------------------------------------------------------
def marked(nest: Nest, path: Path, note: str) -> str:
    """The nest's statements as text, the line of the statement at ``path`` pointed out."""
    lines: list[tuple[str, bool]] = []

    def show(body: list[ast.stmt], field: str, prefix: Path, indent: str) -> None:
        for index, node in enumerate(body):
            here = (*prefix, (field, index))
            if isinstance(node, (ast.For, ast.If)):
                head = copy.copy(node)
                head.body, head.orelse = [ast.Pass()], []
                lines.append(
                    (indent + unparse(ast.fix_missing_locations(head)).splitlines()[0], here == path)
                )
                show(node.body, "body", here, indent + "    ")
                if node.orelse:
                    lines.append((indent + "else:", False))
                    show(node.orelse, "orelse", here, indent + "    ")
            else:
                lines.append((indent + unparse(node), here == path))

    show(nest.body, "body", (), "")
    width = max((len(text) for text, hit in lines if hit), default=0)
    return "\n".join(f"{text.ljust(width)}    ← {note}" if hit else text for text, hit in lines)


WayOut = str | Callable[[], str | None] | None
"""What to do, or what finds it out when somebody reads the refusal (see :mod:`swirl.transforms.ways`)."""


def refuse(problem: str, nest: Nest, path: Path, note: str, *, witness: Conflict | str | None = None,
           way_out: WayOut = None) -> Refused:  # fmt: skip
    """A refusal that shows the current nest with the loop at ``path`` marked."""
    return Refused(
        problem,
        nest=marked(nest, path, note),
        witness=None if witness is None else str(witness),
        way_out=way_out,
    )


def in_current(refusal: Refused, nest: Nest, path: Path, note: str, inner: str, loop: Loop,
               way_out: WayOut = None) -> Refused:  # fmt: skip
    """A refusal that came up half way through a rewrite, told about the nest as it is.

    Args:
        refusal: what was found out.
        nest, path, note: the nest before the rewrite, the loop that is asked about, and what was asked.
        inner: the name that the loop's iterations had by then, counted from 0 where ``loop`` starts.
        loop: the loop that was asked about.
        way_out: by default that of the refusal.
    """
    witness = refusal.witness
    start = constant(loop.start)
    if (
        witness is not None
        and start is not None
        and f"{loop.var}=" not in re.sub(rf"\b{inner}=", "", witness)
    ):
        witness = re.sub(
            rf"\b{inner}=(\d+)", lambda m: f"{loop.var}={start + int(m[1]) * loop.step}", witness
        )
    way_out = (lambda: refusal.way_out) if way_out is None else way_out
    return refuse(refusal.message, nest, path, note, witness=witness, way_out=way_out)


# --- after a rewrite ------------------------------------------------------------------------------------
def checked(before: Program, after: Program) -> Program:
    """``after``, if it is grammatical, no number is too large, and its marks hold: parallel loops race-free, lanes
    independent.

    A command that moves statements may break a mark that an earlier command made; this is where that is
    noticed.
    """
    validate(after)
    for name, buffer in after.buffers.items():
        if buffer is not before.buffers.get(name):
            check_size(name, buffer)
    known = {nest.text for nest in before.nests}
    for nest in after.nests:
        if nest.text not in known:
            check_integers(nest)
            check_marks(nest)
    return after


def check_size(name: str, buffer: Buffer) -> None:
    """Raises CommandError where a buffer would be larger than any memory."""
    if buffer.nbytes > MOST_BYTES:
        raise CommandError(f"{name} would take {buffer.nbytes:,} bytes",
                           way_out="smaller blocks, or fewer zeros around it")  # fmt: skip


@lru_cache(maxsize=1024)
def check_integers(nest: Nest) -> None:
    """Raises Refused where loops or subscripts may pass what the generated code's integers hold."""
    found = too_large(nest)
    if found is not None:
        path, what = found
        raise refuse(f"{what} may pass {LARGEST:,} where it is computed, and integers have 32 bits", nest, path,
                     "too large", way_out="smaller numbers, or fewer loops in one")  # fmt: skip


@lru_cache(maxsize=1024)
def check_marks(nest: Nest) -> None:
    """Raises Refused where a parallel loop of the nest has a race or a vector loop's lanes depend on each
    other."""
    known = statements(nest.body)
    for path, node in loops(nest.body):
        kind = loop_of(node).kind
        try:
            if kind == "parallel":
                conflict = carried(nest.body, path, reductions=True, known=known)
                problem, note = "the parallel loop would no longer be free of races", "runs in parallel"
            elif kind == "vector":
                conflict = lane_conflict(known, path)
                problem, note = "lanes would depend on each other", "a vector loop"
            else:
                continue
        except NotProved:
            raise refuse("not proved within the time allowed", nest, path, f"a {kind} loop") from None
        if conflict is not None:
            raise refuse(problem, nest, path, note, witness=conflict)
        if kind == "parallel":
            check_locals(nest, path, note)


def check_locals(nest: Nest, path: Path, note: str, way_out: WayOut = None) -> None:
    """Raises Refused where the loop at ``path`` assigns a local that is declared outside of it: each thread would have
    one of its own.

    Args:
        way_out: what to do.
    """
    loop = at(nest.body, path)
    assert isinstance(loop, ast.For)
    found = outer_locals(nest.body, loop)
    if found:
        declared = next(node for _, node in walk(nest.body)
                        if isinstance(node, ast.AnnAssign) and unparse(node.target) == found[0])  # fmt: skip
        problem = f"{found[0]} is declared outside of the loop, and one thread does not see what another one assigns"
        witness = f"declared as {unparse(declared)}"
        raise refuse(problem, nest, path, note, witness=witness, way_out=way_out)


def lane_conflict(known: list[Statement], path: Path) -> Conflict | None:
    """Two lanes of one statement in the vector loop at ``path`` that touch one element, one writing; or None.

    ``known`` are the statements of the whole nest.
    """
    depth = len(path) - 1
    for statement in known:
        if statement.path[: len(path)] != path or len(statement.path) == len(path):
            continue
        level = statement.loop_depths.index(depth)
        same = [f"{loop.var}_a = {loop.var}_b" for loop in statement.loops[:level]]
        var = statement.loops[level].var
        outer = {loop.var for loop in statement.loops[:level]}
        if all(
            var in pinned(statement, statement, a, b, outer) for a, b in meeting(statement, statement, True)
        ):
            continue
        conflict = find(statement, statement, [*same, f"{var}_a < {var}_b"], reductions=True)
        if conflict is not None:
            return conflict
    return None


def taken_names(program: Program, nests: Iterable[Nest] | None = None) -> set[str]:
    """Names that a new loop or local must not have."""
    return set(program.buffers).union(*(nest.names for nest in (program.nests if nests is None else nests)))
