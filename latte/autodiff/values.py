"""The forward values that derivatives read: whether they are still there, or how backward gets them again."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from latte.autodiff.prepare import Body
from latte.autodiff.uses import Use, sites, use_of, uses
from swirl.analysis.statements import Statement
from swirl.errors import DerivativeError
from swirl.ir.buffers import Buffer
from swirl.ir.names import changed_in
from swirl.ir.nest import clone, local_type, loop_of, names_in, substitute
from swirl.ir.paths import Path
from swirl.ir.printing import unparse
from swirl.ir.trees import ASSIGNMENTS, as_value, changed, declared_in, name_of, nodes, target_of


class Overwritten(Exception):
    """A derivative needs a value of ``name`` that the forward program overwrites at ``by``."""

    def __init__(self, name: str, used: Statement, by: Statement):
        super().__init__(name)
        self.name, self.used, self.by = name, used, by


class TooDear(Exception):
    """Computing ``local`` again moves ``bytes_again`` (None: impossible), keeping it ``bytes_kept``."""

    def __init__(self, local: str, bytes_again: int | None, bytes_kept: int):
        super().__init__(local)
        self.local, self.bytes_again, self.bytes_kept = local, bytes_again, bytes_kept


@dataclass(frozen=True)
class Choices:
    """What was decided: locals always computed again, or kept; those that can be; a copy of ``grad``."""

    recompute: frozenset[str] = frozenset()
    keep: frozenset[str] = frozenset()
    keepable: frozenset[str] = frozenset()
    copy_output: bool = False


class Values:
    """What the forward program leaves for one reversal.

    Args:
        nests: the prepared forward nests.
        buffers: of the forward program.
        choices: what the caller decided.

    ``needed`` collects the locals that derivatives read, ``notes`` what is computed again and why.
    """

    carries_arrays = False
    """Whether local arrays may carry a gradient."""

    def __init__(self, nests: list[Body], buffers: Mapping[str, Buffer], choices: Choices):
        self.nests, self.buffers, self.choices = nests, buffers, choices
        self.sites = {id(site.node): site for site in sites(nests)}
        self.uses = [use for site in self.sites.values() for use in uses(site)]
        self.writes = [use for use in self.uses if not use.reads]
        self.declared = {
            site.node.target.id: site
            for site in self.sites.values()
            if isinstance(site.node, ast.AnnAssign) and isinstance(site.node.target, ast.Name)
        }
        self.needed: set[str] = set()
        self._inside: set[str] = set()
        self.notes: list[str] = []

    def dtype(self, name: str) -> str:
        """The type of a buffer or local."""
        if name in self.buffers:
            return self.buffers[name].dtype
        declaration = self.declared[name].node
        assert isinstance(declaration, ast.AnnAssign)
        return local_type(declaration).dtype

    def later_write(self, use: Use, itself: bool) -> Use | None:
        """A later write that may change what ``use`` read (``itself``: or one by the same statement)."""
        for write in self.writes:
            if write.name != use.name:
                continue
            if use.name in self.declared:
                home = self.declared[use.name]
                if write.site is home:
                    continue
                inner = [
                    depth
                    for depth in use.site.loop_depths
                    if depth + 1 >= len(home.path) and write.site.path[: depth + 1] == use.site.path[: depth + 1]
                ]
                if inner or write.site.path > use.site.path or (itself and write.site.path == use.site.path):
                    return write
            elif use.meets_later(write, itself=itself):
                return write
        return None

    def stays(self, element: ast.Name | ast.Subscript, site: Statement) -> bool:
        """Whether what a statement read is still there at the end: of a local, in its block."""
        return self.later_write(use_of(element, "read", site), itself=True) is None

    def value(self, tree: ast.expr, site: Statement) -> ast.expr:
        """:meth:`check` for one expression."""
        (result,) = self.check([ast.Expr(tree)], site)
        assert isinstance(result, ast.Expr)
        return result.value

    def check(self, trees: Body, site: Statement, locals_too: bool = True) -> Body:
        """``trees``, every forward value in them still there when backward runs.

        Raises:
            Overwritten: one is not.
            DerivativeError: one is in a local array, which is not computed again.
        """
        seen = set()
        for tree in trees:
            for node in nodes(tree):
                if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                    use = use_of(node, "read", site)
                elif isinstance(node, ast.Name) and locals_too and node.id in self.declared:
                    self.needed.add(node.id)
                    use = use_of(node, "read", site)
                else:
                    continue
                text = unparse(node)
                if text in seen or (use.name not in self.buffers and use.name not in self.declared):
                    continue
                seen.add(text)
                write = self.later_write(use, itself=True)
                if write is not None:
                    raise Overwritten(use.name, site, write.site)
                if use.name in self.declared and isinstance(node, ast.Subscript):
                    raise DerivativeError(f"the local array {use.name} is not computed again")
        return trees

    def again(self, body: Body, result: Body) -> Body:
        """Locals of the forward block that ``result`` reads: read back from a buffer, or computed again."""
        names = _declared(body)
        for name in names & set().union(*(names_in(s) for s in result), set()):
            kept = self._stored_as(name, body)
            if kept is not None:
                result = [substitute(statement, {name: kept}) for statement in result]
        needed = names & set().union(*(names_in(s) for s in result), set())
        self._inside = set().union(*map(declared_in, body))
        return [*self._slice_block(body, needed), *result]

    def _stored_as(self, name: str, body: Body) -> ast.expr | None:
        """The buffer element that holds the last value of a local, where there is one."""
        for statement, target in stores(name, body):
            site = self.sites[id(statement)]
            use, local = use_of(target, "read", site), use_of(statement.value, "read", site)
            trivial = self.declared[name].node.value  # type: ignore[attr-defined]
            only = sum(write.name == name for write in self.writes) == 1
            if only and isinstance(trivial, (ast.Name, ast.Subscript, ast.Constant)):
                return None
            if self.later_write(use, itself=False) is None and self.later_write(local, itself=False) is None:
                return as_value(target)
        return None

    def _slice_block(self, body: Body, needed: set[str]) -> Body:
        """What of ``body`` computes the ``needed`` locals, and the block's own locals that this reads."""
        own = _declared(body)
        needed = set(needed)
        again: Body = []
        for statement in reversed(body):
            part = self._slice(statement, needed)
            if part is None:
                continue
            for name in (own & names_in(part)) - needed:
                kept = self._stored_as(name, body)
                if kept is not None:
                    part = substitute(part, {name: kept})
            again.insert(0, part)
            needed |= own & names_in(part)
        return again

    def _slice(self, statement: ast.stmt, needed: set[str]) -> ast.stmt | None:
        if isinstance(statement, (ast.For, ast.If)):
            try:
                body, orelse = (self._slice_block(part, needed) for part in (statement.body, statement.orelse))
            except Overwritten:
                # The statement that computes the local is gone: its value must be kept.
                for name in sorted(needed & changed_in(statement) & self.choices.keepable):
                    raise TooDear(name, None, self._bytes_kept(name)) from None
                raise
            if not body and not orelse:
                return None
            if isinstance(statement, ast.For):
                self._weigh(statement, needed & changed_in(*body))
                return loop_of(statement).plain.node(body)
            self._check_again(statement.test, self.sites[id(statement)])
            return ast.If(clone(statement.test), body or [ast.Pass()], orelse)
        if not isinstance(statement, ASSIGNMENTS):
            return None
        target = target_of(statement)
        if not isinstance(target, ast.Name) or target.id not in needed:
            return None
        assert statement.value is not None
        try:
            self._check_again(statement.value, self.sites[id(statement)])
        except Overwritten:
            if target.id not in self.choices.keepable:
                raise
            raise TooDear(target.id, None, self._bytes_kept(target.id)) from None
        return changed(statement)

    def _check_again(self, value: ast.expr, site: Statement) -> None:
        """Check that what an expression that is computed again reads is still there. Locals of blocks around have their
        last value then; those of the block itself are computed again with it.

        Raises:
            Overwritten: something is not.
        """
        self.check([ast.Expr(value)], site, locals_too=False)
        for name in sorted(names_in(value) & set(self.declared) - self._inside):
            write = self.later_write(use_of(ast.Name(name, ast.Load()), "read", site), itself=True)
            if write is not None:
                raise Overwritten(name, site, write.site)

    def _bytes_kept(self, name: str) -> int:
        """A store in forward and a fetch in backward."""
        return 2 * (8 if self.dtype(name) == "float64" else 4)

    def _weigh(self, loop_node: ast.For, needed: set[str]) -> None:
        """Ask for a local to be kept where the loop that computes it moves more bytes than keeping it."""
        for name in sorted(needed & set(self.declared)):
            if name in self.choices.recompute or name not in self.choices.keepable:
                continue
            again = _bytes_moved(loop_node, self.buffers)
            kept = self._bytes_kept(name)
            if again > kept or name in self.choices.keep:
                raise TooDear(name, again, kept)
            self.notes.append(f"{name} is computed again: {again} bytes a time, keeping it would move {kept}")

    def result_at_hand(self, statement: ast.stmt, target: ast.expr) -> bool:
        """Whether backward can read the value that ``statement`` computes, at no extra cost."""
        if isinstance(statement, ast.AugAssign):
            return False
        site = self.sites[id(statement)]
        if isinstance(target, ast.Name):
            # A local: if it is needed anyway, or is in a buffer.
            there = target.id in self.needed or self._stored_as(target.id, self.block_at(site.path)) is not None
            return there and self.later_write(use_of(target, "read", site), itself=False) is None
        assert isinstance(target, ast.Subscript)
        return self.later_write(use_of(target, "read", site), itself=False) is None

    def block_at(self, path: Path) -> Body:
        """The block that contains the statement at ``path``."""
        body: Body = self.nests[path[0][1]]
        for (_, index), (field, _) in pairwise(path[1:]):
            body = getattr(body[index], field)
        return body

    def statement_at(self, path: Path) -> ast.stmt:
        return self.block_at(path)[path[-1][1]]


def stores(local: str, body: Body) -> Iterator[tuple[ast.Assign, ast.Subscript]]:
    """The statements of a block that store a local in an array, and the elements."""
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name) and statement.value.id == local:
            target = statement.targets[0]
            if isinstance(target, ast.Subscript):
                yield statement, target


def _declared(body: Body) -> set[str]:
    """The locals of a block, without those of blocks inside it."""
    return {name_of(statement.target) for statement in body if isinstance(statement, ast.AnnAssign)}


def _bytes_moved(loop_node: ast.For, buffers: Mapping[str, Buffer]) -> int:
    """Bytes of the buffer elements that one run of the loop reads; loops of unknown length count as 16."""
    total = 0
    seen = set()
    for statement in loop_node.body:
        if isinstance(statement, ast.For):
            total += _bytes_moved(statement, buffers)
            continue
        for node in nodes(statement):
            if not isinstance(node, ast.Subscript) or name_of(node) not in buffers or unparse(node) in seen:
                continue
            seen.add(unparse(node))
            total += 8 if buffers[name_of(node)].dtype == "float64" else 4
    return total * (loop_of(loop_node).extent or 16)
