"""The reversal of prepared nests: every statement becomes what it adds to the adjoints of what it read."""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from latte.autodiff.order import Access, Site, accesses, meets_later
from latte.autodiff.partials import RESULT, Partials, active_in
from latte.autodiff.prepare import ELEMENT, FLOATS, Body, add_to, all_sites, assign, load, origin, store
from latte.autodiff.terms import Condition, Term, leading_minus, negated, same, selected, summed
from latte.autodiff.tidy import merge_first, tidy, written_names
from swirl.errors import DerivativeError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import (
    LocalType,
    Loop,
    constant,
    declare,
    expr,
    fresh,
    loop_of,
    names_in,
    subscripts,
    substitute,
)


class Overwritten(Exception):
    """A derivative needs a value of ``name`` that the forward program writes over at ``by``."""

    def __init__(self, name: str, used: Site, by: Site):
        super().__init__(name)
        self.name, self.used, self.by = name, used, by


class OutputChanges(Exception):
    """Reversal would write to the gradient of the output: it needs a copy."""


class TooDear(Exception):
    """Computing ``local`` again would move ``bytes_again`` a time, where keeping it moves ``bytes_kept``."""

    def __init__(self, local: str, bytes_again: int, bytes_kept: int):
        super().__init__(local)
        self.local, self.bytes_again, self.bytes_kept = local, bytes_again, bytes_kept


@dataclass(frozen=True)
class Choices:
    """What the caller or an earlier attempt decided: locals always computed again, and the gradient of the output."""

    recompute: frozenset[str] = frozenset()
    keep: frozenset[str] = frozenset()
    copy_output: bool = False


def active_names(nests: list[Body], buffers: Mapping[str, Buffer], wanted: Collection[str], output: str) -> set[str]:
    """Locals and buffers that depend on ``wanted`` and that ``output`` depends on."""
    flows: list[tuple[str, list[str]]] = []
    for site in all_sites(nests):
        reads = [a.name for a in accesses(site) if a.kind == "read"]
        for a in accesses(site):
            if a.kind != "read" and _carries_gradient(a.name, site, buffers):
                value = site.statement.value  # type: ignore[attr-defined]
                flows.append((a.name, [name for name in reads if active_in(value, lambda n, r=name: n == r)]))  # type: ignore[misc]
    varied, useful = set(wanted), {output}
    size = -1
    while size != len(varied) + len(useful):
        size = len(varied) + len(useful)
        for target, reads in flows:
            if varied.intersection(reads):
                varied.add(target)
            if target in useful:
                useful.update(reads)
    return {name for name in varied & useful if name not in buffers or _is_float(buffers[name])}


def _is_float(buffer: Buffer) -> bool:
    return buffer.dtype in FLOATS and buffer.role not in ("state", "scalar")


def _carries_gradient(name: str, site: Site, buffers: Mapping[str, Buffer]) -> bool:
    if name in buffers:
        return _is_float(buffers[name])
    statement = site.statement
    if isinstance(statement, ast.AnnAssign):
        return ast.unparse(statement.annotation).split("[")[0] in FLOATS
    return True


class Reversal:
    """Reverses one prepared program.

    Args:
        nests: see ``prepare``.
        buffers: of the forward program.
        wanted: names whose gradient is wanted.
        output: name whose gradient is given.
        taken: names in use.

    After :meth:`run`, ``adjoints`` maps adjoint buffers to the forward buffers they belong to.
    """

    def __init__(self, name: str, nests: list[Body], buffers: Mapping[str, Buffer], wanted: Collection[str],
                 output: str, taken: set[str], choices: Choices):  # fmt: skip
        self.name, self.nests, self.buffers, self.output = name, nests, buffers, output
        self.choices, self.taken = choices, set(taken)
        self.active = active_names(nests, buffers, wanted, output)
        self.sites = {id(site.statement): site for site in all_sites(nests)}
        self.accesses = [a for site in self.sites.values() for a in accesses(site)]
        self.writes = [a for a in self.accesses if a.kind != "read"]
        self.declared = {a.name: a.site for a in self.writes if isinstance(a.site.statement, ast.AnnAssign)}
        self.adjoints: dict[str, str] = {}
        self.notes: list[str] = []
        self.needed: set[str] = set()
        self._names: dict[str, str] = {}

    def run(self) -> list[Body]:
        """The reversed nests, last first; empty ones left out.

        Raises:
            DerivativeError, Overwritten, OutputChanges, TooDear
        """
        result = []
        for index in reversed(range(len(self.nests))):
            body = self.block(self.nests[index])
            if any(isinstance(statement, ast.AnnAssign) for statement in body):
                result.append(body)
            else:
                result += [[statement] for statement in body]
        return result

    # --- names --------------------------------------------------------------------------------------------------------
    def adjoint_name(self, name: str) -> str:
        """The name of the adjoint of a buffer or local."""
        if name not in self._names:
            if name == self.output:
                new = "grad_" + name if self.choices.copy_output else "grad"
            elif name in self.buffers:
                new = "grad_" + name
            else:
                short = "grad_" + name.removesuffix(ELEMENT)
                new = fresh(short, self.taken | {"grad_" + buffer for buffer in self.buffers})
                if name.removesuffix(ELEMENT) in self.buffers and name != name.removesuffix(ELEMENT):
                    # The adjoint of an element in a local may take the name of the buffer's, where that is not used.
                    plain = name.removesuffix(ELEMENT)
                    if plain == self.output or not any(a.name == plain for a in self.accesses if a.kind == "read"):
                        new = fresh(short, self.taken)
            self._names[name] = new
            self.taken.add(new)
        if name in self.buffers:
            self.adjoints[self._names[name]] = name
        return self._names[name]

    def adjoint(self, reference: ast.expr) -> ast.expr:
        """``x[i]`` → ``grad_x[i]``."""
        if isinstance(reference, ast.Name):
            return ast.Name(self.adjoint_name(reference.id), ast.Load())
        assert isinstance(reference, ast.Subscript) and isinstance(reference.value, ast.Name)
        name = self.adjoint_name(reference.value.id)
        return ast.Subscript(ast.Name(name, ast.Load()), copy.deepcopy(reference.slice), ast.Load())

    def new_local(self, base: str = "grad_part") -> str:
        name = fresh(base, self.taken)
        self.taken.add(name)
        return name

    def refuse(self, statement: ast.stmt, why: str) -> DerivativeError:
        return DerivativeError(
            f"`{origin(statement)}` cannot be differentiated: {why}",
            place=self.name,
            way_out="write the statement otherwise, or define backward and update by hand",
        )

    # --- blocks -------------------------------------------------------------------------------------------------------
    def block(self, body: Body) -> Body:
        result: Body = []
        for statement in reversed(body):
            result += self.statement(statement)
        for statement in body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name = statement.target.id
                if name in self.active and name in self._names:
                    result = merge_first(result, declare(self._names[name], self._type(statement), expr("0.0")))
        result = self._values_again(body, result)
        return tidy(result)

    def _type(self, statement: ast.AnnAssign) -> LocalType:
        if not isinstance(statement.annotation, ast.Name):
            raise self.refuse(statement, "local arrays carry no gradient")
        return LocalType(statement.annotation.id)

    def statement(self, statement: ast.stmt) -> Body:
        if isinstance(statement, ast.For):
            body = self.block(statement.body)
            return [self._loop(statement).node(body)] if body else []
        if isinstance(statement, ast.If):
            body = self.block(statement.body)
            orelse = self.block(statement.orelse)
            if not body and not orelse:
                return []
            self._check([statement.test], self.sites[id(statement)])
            test = statement.test if body else ast.UnaryOp(ast.Not(), statement.test)
            return [ast.If(copy.deepcopy(test), body or orelse, orelse if body else [])]
        if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            return self._assignment(statement)
        return []

    def _loop(self, statement: ast.For) -> Loop:
        """The loop in its own order, or backwards where a value goes from one iteration to the next."""
        loop = loop_of(statement)
        depth = next(site.path for site in self.sites.values() if any(s is site.statement for s in ast.walk(statement)))
        level = self._depth_of(statement, depth)
        if not self._carries(level, depth[:level]):
            return Loop(loop.var, "range", loop.start, loop.stop, loop.step)
        if loop.step == 1:
            last = expr("stop - 1", stop=loop.stop)
        else:
            last = expr("a + (b - a - s) // k * k", a=loop.start, b=loop.stop, k=loop.step,
                        s=1 if loop.step > 0 else -1)  # fmt: skip
        sign = 1 if loop.step > 0 else -1
        before = expr("a - s", a=loop.start, s=sign)
        return Loop(loop.var, "range", _folded(last), _folded(before), -loop.step)

    def _depth_of(self, statement: ast.For, path: tuple[tuple[str, int], ...]) -> int:
        body: Body = self.nests[path[0][1]]
        for level, (field, index) in enumerate(path[1:], 2):
            node = body[index]
            if node is statement:
                return level
            body = getattr(node, path[level][0]) if level < len(path) else []
        raise AssertionError("loop not found")

    def _carries(self, level: int, prefix: tuple[tuple[str, int], ...]) -> bool:
        inside = [a for a in self.accesses if a.site.path[:level] == prefix and a.name in self.active]
        for a in inside:
            for b in inside:
                if a.name != b.name or a.kind == b.kind == "read" or a.kind == b.kind == "add":
                    continue
                if a.name in self.declared:
                    if len(self.declared[a.name].path) <= level:
                        return True
                elif meets_later(a, b, carried_at=level):
                    return True
        return False

    # --- statements ---------------------------------------------------------------------------------------------------
    def _assignment(self, statement: ast.Assign | ast.AugAssign | ast.AnnAssign) -> Body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        value = statement.value
        assert value is not None
        name = _name_of(target)
        if name not in self.active or not active_in(value, self._is_active):
            return self._clear(statement, target) if name in self.active else []
        site = self.sites[id(statement)]
        shared: Body = []
        given = self.adjoint(target)
        partials = Partials(self._is_active, self.new_local, self._dtype(name), shared)
        result = ast.Name(RESULT, ast.Load()) if self._result_at_hand(statement, target) else None
        try:
            partials.walk(value, Term(over=(given,)), result)
        except DerivativeError as error:
            raise self.refuse(statement, error.message) from error
        own = [(ref, term) for ref, term in partials.found if same(ref, target)]
        rest = [(ref, term) for ref, term in partials.found if not same(ref, target)]
        self._refuse_indirect(statement, rest)
        out = self._contributions(rest)
        if isinstance(statement, ast.AugAssign):
            last: Body = []
        elif own:
            self._guard_output(name)
            last = [assign(given, summed(selected(term.product(), term.conditions) for _, term in own))]
        else:
            last = self._clear(statement, target)
        if last or len(rest) > 1:
            if any(_name_of(ref) == name for ref, _ in rest):
                # The statement reads other elements of what it writes: take its adjoint first.
                local = self.new_local(f"{self.adjoint_name(name)}_here")
                taken = ast.Name(local, ast.Load())
                shared, out, last = (_replaced(part, given, taken) for part in (shared, out, last))
                for part in last:
                    if isinstance(part, ast.Assign):
                        part.targets = [store(given)]
                out = [declare(local, LocalType(self._dtype(name)), given), *shared, *last, *out]
                return self._finished(out, target, site)
        return self._finished([*shared, *out, *last], target, site)

    def _finished(self, out: Body, target: ast.expr, site: Site) -> Body:
        """``out`` with the result's placeholder replaced, and every forward value in it checked."""
        self._check(out, site)
        return [substitute(part, {RESULT: load(target)}) for part in out]

    def _result_at_hand(self, statement: ast.stmt, target: ast.expr) -> bool:
        """Whether backward can read the value that ``statement`` computes, at no cost of its own."""
        if isinstance(statement, ast.AugAssign):
            return False
        site = self.sites[id(statement)]
        if isinstance(target, ast.Name):
            # A local: where it is needed anyway, or lies in a buffer.
            there = target.id in self.needed or self._stored_as(target.id, self._block_of(site)) is not None
            return there and self._later_write(Access(target.id, (), "read", site), own=False) is None
        use = Access(_name_of(target), tuple(subscripts(target)), "read", site)
        return self._later_write(use, own=False) is None

    def _block_of(self, site: Site) -> Body:
        body: Body = self.nests[site.path[0][1]]
        for (_, index), (field, _) in zip(site.path[1:], site.path[2:], strict=False):
            body = getattr(body[index], field)
        return body

    def _is_active(self, name: str) -> bool:
        return name in self.active

    def _dtype(self, name: str) -> str:
        if name in self.buffers:
            return self.buffers[name].dtype
        declaration = self.declared[name].statement
        assert isinstance(declaration, ast.AnnAssign)
        return self._type(declaration).dtype

    def _guard_output(self, name: str) -> None:
        if name == self.output and not self.choices.copy_output:
            raise OutputChanges

    def _clear(self, statement: ast.stmt, target: ast.expr) -> Body:
        """``grad_t[…] = 0.0``, where an earlier value of the element has an adjoint of its own."""
        if isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
            return []
        site = self.sites[id(statement)]
        name = _name_of(target)
        here = next(a for a in accesses(site) if a.kind == "set")
        for write in self.writes:
            if write.name != name or not self._consumes(write.site.statement):
                continue
            if isinstance(target, ast.Name) or meets_later(write, here):
                self._guard_output(name)
                return [assign(self.adjoint(target), expr("0.0"))]
        return []

    def _consumes(self, statement: ast.stmt) -> bool:
        return active_in(statement.value, self._is_active)  # type: ignore[attr-defined]

    def _refuse_indirect(self, statement: ast.stmt, found: list[tuple[ast.expr, Term]]) -> None:
        for ref, _ in found:
            if isinstance(ref, ast.Subscript) and any(isinstance(n, ast.Subscript) for n in ast.walk(ref.slice)):
                raise self.refuse(statement, f"`{ast.unparse(ref)}` is read through an index buffer")

    def _contributions(self, found: list[tuple[ast.expr, Term]]) -> Body:
        grouped: dict[str, list[tuple[ast.expr, Term]]] = {}
        for ref, term in found:
            grouped.setdefault(ast.unparse(ref), []).append((ref, term))
        out: Body = []
        for group in grouped.values():
            parts = []
            for ref, term in group:
                guards = [c for c in term.conditions if self._is_guard(c)]
                chosen = selected(term.product(), [c for c in term.conditions if c not in guards])
                parts.append((guards, chosen))
            self._guard_output(_name_of(group[0][0]))
            target = self.adjoint(group[0][0])
            if all(not guards for guards, _ in parts):
                chosen = _either([term for _, term in group]) or summed(chosen for _, chosen in parts)
                out.append(self._add(target, chosen))
                continue
            for guards, chosen in parts:
                statement = self._add(target, chosen)
                for guard in reversed(guards):
                    test = guard.test if guard.wanted else ast.UnaryOp(ast.Not(), guard.test)
                    statement = ast.If(copy.deepcopy(test), [statement], [])
                out.append(statement)
        return out

    def _add(self, target: ast.expr, value: ast.expr) -> ast.stmt:
        statement = add_to(target, negated(value) if leading_minus(value) else value)
        if leading_minus(value):
            assert isinstance(statement, ast.AugAssign)
            statement.op = ast.Sub()
        return statement

    def _is_guard(self, condition: Condition) -> bool:
        """A test of loop variables alone guards the subscripts too: it must be an ``if``, not a select."""
        names = names_in(condition.test)
        return not names & (set(self.buffers) | set(self.declared))

    # --- forward values -----------------------------------------------------------------------------------------------
    def _later_write(self, use: Access, own: bool) -> Access | None:
        for write in self.writes:
            if write.name != use.name:
                continue
            if use.name in self.declared:
                home = self.declared[use.name]
                if write.site is home:
                    continue
                inner = [d for d, _ in use.site.loops if d >= len(home.path) and write.site.path[:d] == use.site.path[:d]]
                if inner or write.site.path > use.site.path or (own and write.site.path == use.site.path):
                    return write
            elif meets_later(use, write, own=own):
                return write
        return None

    def _check(self, trees: list[ast.expr] | Body, site: Site, locals_too: bool = True) -> None:
        """Every forward value in ``trees`` is still there when backward runs.

        Raises:
            Overwritten: one is not.
        """
        seen = set()
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                    use = Access(node.value.id, tuple(subscripts(node)), "read", site)
                elif isinstance(node, ast.Name) and locals_too and node.id in self.declared:
                    self.needed.add(node.id)
                    use = Access(node.id, (), "read", site)
                else:
                    continue
                text = ast.unparse(node)
                if text in seen or (use.name not in self.buffers and use.name not in self.declared):
                    continue
                seen.add(text)
                write = self._later_write(use, own=True)
                if write is not None:
                    raise Overwritten(use.name, site, write.site)

    def _values_again(self, body: Body, result: Body) -> Body:
        """Locals of the forward block that ``result`` reads: read back from a buffer, or computed again."""
        names = {s.target.id for s in body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)}
        for name in names & set().union(*(names_in(s) for s in result), set()):
            kept = self._stored_as(name, body)
            if kept is not None:
                result = [substitute(statement, {name: kept}) for statement in result]
        needed = names & set().union(*(names_in(s) for s in result), set())
        return [*self._slice_block(body, needed), *result]

    def _stored_as(self, name: str, body: Body) -> ast.expr | None:
        """The buffer element that holds the last value of a local, where there is one."""
        for statement in body:
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
                target = statement.targets[0]
                if statement.value.id != name or not isinstance(target, ast.Subscript):
                    continue
                site = self.sites[id(statement)]
                use = Access(_name_of(target), tuple(subscripts(target)), "read", site)
                local = Access(name, (), "read", site)
                trivial = self.declared[name].statement.value  # type: ignore[attr-defined]
                only = sum(write.name == name for write in self.writes) == 1
                if only and isinstance(trivial, (ast.Name, ast.Subscript, ast.Constant)):
                    return None
                if self._later_write(use, own=False) is None and self._later_write(local, own=False) is None:
                    return load(target)
        return None

    def _slice_block(self, body: Body, needed: set[str]) -> Body:
        """What of ``body`` computes the ``needed`` locals; what that reads of the block's own locals comes too."""
        own = {s.target.id for s in body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)}
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
            body, orelse = self._slice_block(statement.body, needed), self._slice_block(statement.orelse, needed)
            if not body and not orelse:
                return None
            if isinstance(statement, ast.For):
                self._weigh(statement, needed & written_names(body))
                loop = loop_of(statement)
                return Loop(loop.var, "range", loop.start, loop.stop, loop.step).node(body)
            self._check([statement.test], self.sites[id(statement)], locals_too=False)
            return ast.If(copy.deepcopy(statement.test), body or [ast.Pass()], orelse)
        if not isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            return None
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if not isinstance(target, ast.Name) or target.id not in needed:
            return None
        assert statement.value is not None
        self._check([statement.value], self.sites[id(statement)], locals_too=False)
        return copy.copy(statement)

    def _weigh(self, loop_node: ast.For, needed: set[str]) -> None:
        """Ask for a local to be kept where the loop that computes it moves more bytes than keeping it."""
        for name in sorted(needed & set(self.declared)):
            if name in self.choices.recompute or name.endswith(ELEMENT):
                continue
            again = _bytes_moved(loop_node, self.buffers)
            kept = 2 * (8 if self._dtype(name) == "float64" else 4)
            if again > kept or name in self.choices.keep:
                raise TooDear(name, again, kept)
            self.notes.append(f"{name} is computed again: {again} bytes a time, keeping it would move {kept}")


def _either(terms: list[Term]) -> ast.expr | None:
    """``a if c else b`` for two terms of which one counts where ``c`` holds, the other where it does not."""
    if len(terms) != 2 or any(len(term.conditions) != 1 for term in terms):
        return None
    (first,), (second,) = terms[0].conditions, terms[1].conditions
    if not same(first.test, second.test) or not first.wanted or second.wanted:
        return None
    return ast.IfExp(copy.deepcopy(first.test), terms[0].product(), terms[1].product())


def _bytes_moved(loop_node: ast.For, buffers: Mapping[str, Buffer]) -> int:
    """Bytes of the buffer elements that one run of the loop reads; loops of unknown length count as 16."""
    total = 0
    seen = set()
    for statement in loop_node.body:
        if isinstance(statement, ast.For):
            total += _bytes_moved(statement, buffers)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in buffers:
                if ast.unparse(node) not in seen:
                    seen.add(ast.unparse(node))
                    total += 8 if buffers[node.value.id].dtype == "float64" else 4
    return total * (loop_of(loop_node).extent or 16)


def _name_of(target: ast.expr) -> str:
    if isinstance(target, ast.Subscript):
        target = target.value
    assert isinstance(target, ast.Name)
    return target.id


def _folded(node: ast.expr) -> ast.expr:
    """Integer arithmetic on literals done."""
    class Fold(ast.NodeTransformer):
        def visit_BinOp(self, part: ast.BinOp) -> ast.expr:
            self.generic_visit(part)
            left, right = constant(part.left), constant(part.right)
            if left is None or right is None:
                return part
            value = {ast.Add: lambda: left + right, ast.Sub: lambda: left - right, ast.Mult: lambda: left * right,
                     ast.FloorDiv: lambda: left // right}[type(part.op)]()  # type: ignore[index]  # fmt: skip
            return expr(value)

    return Fold().visit(copy.deepcopy(node))


def _replaced(body: Body, old: ast.expr, new: ast.expr) -> Body:
    class Replace(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
            return copy.deepcopy(new) if same(node, old) and isinstance(node.ctx, ast.Load) else node

        def visit_Name(self, node: ast.Name) -> ast.expr:
            return copy.deepcopy(new) if same(node, old) and isinstance(node.ctx, ast.Load) else node

    return [Replace().visit(copy.deepcopy(part)) for part in body]
