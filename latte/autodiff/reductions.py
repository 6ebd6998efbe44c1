"""Reductions that choose one iteration: finding and grouping them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from latte.autodiff.adjoint_terms import same
from latte.autodiff.prepare import Body, line_of, origin
from latte.autodiff.uses import Use, sites, use_of, uses
from swirl.analysis.accesses import parsed
from swirl.analysis.dependences import touched_once
from swirl.analysis.domains import Domain
from swirl.analysis.statements import Statement
from swirl.errors import DerivativeError
from swirl.ir.nest import Loop, names_in
from swirl.ir.paths import Path
from swirl.ir.trees import as_value, name_of, target_of


@dataclass(frozen=True)
class Reduction:
    """``target = candidate if test else target`` at ``site``, over ``loops``; ``starts`` set the target first.

    ``test`` is None for ``max`` and ``min``, whose ``sign`` says which candidates are better.
    """

    site: Statement
    target: ast.expr
    candidate: ast.expr
    sign: str
    test: ast.expr | None
    loops: tuple[Loop, ...]
    home: tuple[Loop, ...]
    starts: tuple[Statement, ...]

    @property
    def region(self) -> Path:
        """The path of the outermost loop of the reduction."""
        return self.site.path[: next(depth for depth, loop in self._around if loop in self.loops) + 1]

    @property
    def moved_inside(self) -> tuple[Loop, ...]:
        """The loops inside of the region that move the target."""
        return tuple(loop for depth, loop in self._around if loop in self.home and depth >= len(self.region))

    @property
    def _around(self) -> list[tuple[int, Loop]]:
        return list(zip(self.site.loop_depths, self.site.loops, strict=True))


@dataclass(frozen=True)
class Round:
    """Reductions of one target between which nothing else writes it.

    The round starts from the values that ``starts`` set; without any, from what the target holds when the first region
    begins (after a sum, or an earlier round).
    """

    members: tuple[Reduction, ...]
    starts: tuple[Statement, ...]


def reductions(program: str, nests: list[Body], active: set[str]) -> list[Reduction]:
    """Every ``t = max(t, x)`` and ``t = x if test else t`` of an active ``t`` under a loop that does not move ``t``.

    Raises:
        DerivativeError: nothing sets the target before.
    """
    every = sites(nests)
    found = []
    for site in every:
        statement = site.node
        choice = _choice(statement)
        if choice is None:
            continue
        target, candidate, sign, test = choice
        if name_of(target) not in active:
            continue
        starts = [s for s in _seeing(site, target, every) if s.path < site.path and _sets(s.node, target)]
        home = _home(site, target, starts)
        loops = tuple(loop for loop in site.loops if loop not in home)
        if not loops:
            continue
        if not starts:
            raise DerivativeError(
                f"`{origin(statement)}` has no value to start from",
                location=program,
                way_out="set the target before the loops",
                line=line_of(statement),
            )
        found.append(Reduction(site, as_value(target), candidate, sign, test, loops, home, tuple(starts)))
    return found


def _choice(statement: ast.stmt) -> tuple[ast.expr, ast.expr, str, ast.expr | None] | None:
    """Target, candidate, and the sign or test that chooses the candidate; None for any other statement."""
    if not isinstance(statement, ast.Assign):
        return None
    target, value = statement.targets[0], statement.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("max", "min"):
        others = [arg for arg in value.args if not same(arg, target)]
        # A candidate made of earlier choices does not stand for one iteration.
        if len(value.args) == 2 and len(others) == 1 and name_of(target) not in names_in(others[0]):
            return target, others[0], ">" if value.func.id == "max" else "<", None
    if isinstance(value, ast.IfExp) and not same(value.body, value.orelse):
        test, candidate, kept = value.test, value.body, value.orelse
        if same(candidate, target):
            test, candidate, kept = ast.UnaryOp(ast.Not(), test), kept, candidate
        # Where the test does not depend on what was chosen so far, reversal can evaluate it again.
        if same(kept, target) and name_of(target) not in names_in(candidate) and _reads_choice(statement, test, target):
            return target, candidate, "", test
    return None


def _reads_choice(statement: ast.stmt, test: ast.expr, target: ast.expr) -> bool:
    return getattr(statement, "was_branch", False) or name_of(target) in names_in(test)


def rounds(every: list[Reduction], nests: list[Body], active: set[str]) -> list[Round]:
    """The reductions of each target that are determined by their winners, in rounds; the others are left out.

    One is if its target has one value at the end of the region: nothing else writes the target in there or sends a
    gradient through a value that is not the last, and no other region concerns the same element.
    """
    every_site = sites(nests)
    found: list[Round] = []
    for group in _by_target(every):
        own = {id(member.site.node) for member in group}
        others = [s for s in _seeing(group[0].site, group[0].target, every_site) if id(s.node) not in own]
        writes = [
            site
            for site in others
            if not isinstance(site.node, ast.If) and name_of(target_of(site.node)) == name_of(group[0].target)
        ]
        reads = [site for site in others if _flows(site, group[0], active)]
        if all(_told_by_argmax(member, group, writes, reads) for member in group):
            divided = _divided(group, writes, reads)
            if all(part.starts or _alike(part.members) for part in divided):
                found += divided
    return found


def _alike(members: tuple[Reduction, ...]) -> bool:
    """Whether the reductions of one region have one target, moved by the same loops."""
    first = members[0]
    return all(same(m.target, first.target) and m.moved_inside == first.moved_inside for m in members)


def _flows(site: Statement, found: Reduction, active: set[str]) -> bool:
    """Whether a gradient flows back from a site to the target of a reduction."""
    if isinstance(site.node, ast.If) or name_of(target_of(site.node)) not in active:
        return False
    return name_of(found.target) in names_in(site.node.value)  # type: ignore[attr-defined]


def _divided(group: list[Reduction], writes: list[Statement], reads: list[Statement]) -> list[Round]:
    """A group in rounds: first all that only starts reach, then those of one region each."""
    starts = {site.path for member in group for site in member.starts}
    first = [site for site in writes if site.path < group[0].region]
    # A reader of what a region finds sends it a gradient that no winner of the region takes away.
    seen = {m.region for m in group if any(_before(site, m) for site in reads)}
    from_starts = all(site.path in starts for site in first) and group[0].region not in seen
    found: list[list[Reduction]] = []
    for member in group:
        last = found[-1][-1].region if found else ()
        parted = member.region in seen or any(last < site.path < member.region for site in writes)
        if not found or (last != member.region and (parted or len(found) > 1 or not from_starts)):
            found.append([])
        found[-1].append(member)
    return [
        Round(tuple(members), tuple(first) if index == 0 and from_starts else ()) for index, members in enumerate(found)
    ]


def _before(site: Statement, found: Reduction) -> bool:
    """Whether a site may read an element before the reduction changes it: in its place, or in an earlier iteration."""
    if isinstance(found.target, ast.Name):
        return site.path < found.region
    return any(read.meets_later(_changes(found)) for read in uses(site) if read.reads)


def _changes(found: Reduction) -> Use:
    return use_of(found.target, "write", found.site)


def _told_by_argmax(found: Reduction, group: list[Reduction], writes: list[Statement], reads: list[Statement]) -> bool:
    region = found.region
    if any(site.path[: len(region)] == region for site in (*writes, *reads)):
        return False
    variables = {loop.var for loop in found.moved_inside}
    around = variables | {loop.var for loop in found.loops}
    if variables and any(names_in(parsed(test)) & variables for test in found.site.guards):
        return False
    if any((names_in(loop.start) | names_in(loop.stop)) & around for loop in found.moved_inside):
        return False
    if isinstance(found.target, ast.Name):  # its masks have an element for each iteration of these
        return all(loop.extent is not None and loop.step == 1 for loop in found.home)
    if any(isinstance(target_of(site.node), ast.Name) for site in writes):  # a local array has no masks
        return False
    everywhere = replace(found.site, domain=Domain(found.site.loops))
    alone = touched_once(everywhere, everywhere.access(found.target, "write"), found.home)
    others = [*writes, *(member.site for member in group if member.region != region)]
    return alone and all(_in_textual_order(found, site) for site in others)


def _in_textual_order(found: Reduction, other: Statement) -> bool:
    """Whether ``other``, a write of the same buffer, meets an element before the region, or after it."""
    here, there = _changes(found), use_of(target_of(other.node), "write", other)
    return not (here.meets_later(there) if other.path < found.region else there.meets_later(here))


def _by_target(every: list[Reduction]) -> list[list[Reduction]]:
    """The reductions of each target: a later winner replaces an earlier one."""
    groups: dict[tuple[object, ...], list[Reduction]] = {}
    for found in every:
        key = (name_of(found.target), *(() if isinstance(found.target, ast.Subscript) else found.starts[0].path[:-1]))
        groups.setdefault(key, []).append(found)
    return list(groups.values())


def _seeing(site: Statement, target: ast.expr, every: list[Statement]) -> list[Statement]:
    """The sites that see the target of ``site``: all see a buffer; a local is seen in the block that declares it, from
    there on. A block before may declare another local of its name."""
    if isinstance(target, ast.Subscript):
        return every
    declared = [s.path for s in every if isinstance(s.node, ast.AnnAssign) and same(s.node.target, target)]
    own = _declaration(site, declared)
    return [s for s in every if _declaration(s, declared) == own]


def _declaration(site: Statement, declared: list[Path]) -> Path:
    """Which of the declarations of one name a site sees: the innermost one before it."""
    seen = (path for path in declared if path <= site.path and site.path[: len(path) - 1] == path[:-1])
    return max(seen, key=len, default=())


def _sets(statement: ast.stmt, target: ast.expr) -> bool:
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return False
    other = target_of(statement)
    if isinstance(target, ast.Subscript) and isinstance(other, ast.Subscript):
        return name_of(other) == name_of(target) and start_value(statement) is not None
    return isinstance(target, ast.Name) and same(other, target) and start_value(statement) is not None


def start_value(statement: ast.stmt) -> ast.expr | None:
    assert isinstance(statement, (ast.Assign, ast.AnnAssign))
    value, target = statement.value, target_of(statement)
    if isinstance(value, ast.Call) and any(same(arg, target) for arg in value.args):
        return None
    if isinstance(value, ast.IfExp) and (same(value.body, target) or same(value.orelse, target)):
        return None
    return value


def _home(site: Statement, target: ast.expr, starts: list[Statement]) -> tuple[Loop, ...]:
    """The loops that move the target: by its subscripts, or those around a local's declaration."""
    if isinstance(target, ast.Subscript):
        moving = names_in(target.slice)
        return tuple(loop for loop in site.loops if loop.var in moving)
    declaration = next((s for s in starts if isinstance(s.node, ast.AnnAssign)), None)
    return declaration.loops if declaration else ()
