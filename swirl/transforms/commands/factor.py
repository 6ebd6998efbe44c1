"""factor: loop-invariant factors are taken out of a loop's sums and assignments."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction

from swirl.analysis.items import places_of_items
from swirl.errors import Refused
from swirl.ir.names import stored_in, whole_scope
from swirl.ir.nest import (
    LocalType,
    Program,
    clone,
    declare,
    fresh,
    kind_of,
    names_in,
    references,
    substitute,
    variable_of,
    with_inner,
)
from swirl.ir.paths import Path, at, edit_at, loops, replace_at, walk
from swirl.ir.polynomial import Atom, Monomial, Polynomial, number, of_atom
from swirl.ir.printing import unparse
from swirl.ir.trees import changed, name_of, nodes, targets_in
from swirl.ir.types import dtype_of, is_float
from swirl.transforms.arguments import LoopName, NestName
from swirl.transforms.command import Assumption, command
from swirl.transforms.rewrites.blocks import block_at, joined_updates, rebuilt, with_last, without_dead
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.loops.strips import plain_loop
from swirl.transforms.rewrites.sites import Site, find_loops, loop_at, take_mark, taken_names, with_mark
from swirl.transforms.rewrites.sums.reductions import accumulation, reductions_over
from swirl.transforms.rewrites.values.loop_variance import Key, Moving, Summand, chain, is_number, plain_atom


@command(assumes=Assumption("sums and their factors are finite"))
def factor(
    program: Program, loop_var: LoopName, *, keep_differences: bool = False, nest: NestName | None = None
) -> Program:
    """Take what a loop does not change out of its sums and assignments; equal sums are computed once.

    rewrite:
        for i in range(N):                              gx_sum: float32 = 0.0; g_sum: float32 = 0.0
            s += a * g[i] * (x[i] - m) / b      →       for i in range(N):
            y[i] = a * ((x[i] - m) / b) + c                 gx_sum += g[i] * x[i]; g_sum += g[i]
                                                            y[i] = x_scale * x[i] + y_offset
                                                        s += a / b * gx_sum - a * m / b * g_sum

    An expression counts as a polynomial in what moves with the loop; its coefficients are computed outside. A sum
    that an earlier loop over the same iterations makes, or can make, is made there. An assignment is rewritten where
    that leaves fewer operations in the loop; with an update of the same element right after it, it becomes one.

    Sums and their factors are assumed finite: ``Σ a·g`` and ``a·Σ g`` differ where ``a`` is infinite and a ``g`` zero.

    Args:
        loop_var: the loop; sums over it and the loops inside it.
        keep_differences: ``x[i] - m`` stays one term. Split, ``Σ g·x − m·Σ g`` loses digits where ``m`` is large
            against ``x − m``.
        nest: only in this nest (index or label).

    Raises:
        Refused: there is nothing to take out, for instance because of a division by what moves with the loop; or the
            loop contains loops that are scheduled already.

    Source: Lake, section 3.2, carried from divisions to sums.
    """
    sites = find_loops(program, loop_var, nest)[::-1]
    result = program
    for index, site in enumerate(sites):
        result = with_mark(result, site, f"factor {index}")
    refusals: list[Refused] = []
    for index in range(len(sites)):
        before = result
        site = take_mark(before, f"factor {index}")
        try:
            result = checked(before, _Factoring(before, site, keep_differences).rewritten())
        except Refused as refusal:
            refusals.append(refusal)
    if len(refusals) == len(sites):
        raise refusals[0]
    return result


# --- the rewrite ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Place:
    """The innermost block of an earlier loop over the same iterations: its path, and its names of the loops."""

    loop: Path
    block: Path
    names: dict[str, ast.expr]
    existing: str | None  # the local that holds the sum already


class _Factoring:
    """One loop split into its sums and assignments."""

    def __init__(self, program: Program, site: Site, keep_differences: bool):
        self.program, self.site = program, site
        self.nest = joined_updates(program, program.nests[site.nest], site.path)
        self.node = loop_at(program.with_nest(site.nest, self.nest), site)
        self.joined = self.nest != program.nests[site.nest]
        self.loop = plain_loop(self.nest, site.path, self.node, "asked to be factored")
        for _, inner in loops(self.node.body):
            if kind_of(inner) != "range":
                kind = f"{self.loop.var} holds the {kind_of(inner)} loop {variable_of(inner)}"
                raise self._refusal(kind, way_out="give this command before the one that made it so")
        self.moving = Moving(self.node, keep_differences)
        self.taken = taken_names(program, [self.nest])
        self.before: list[ast.stmt] = []
        self.after: list[ast.stmt] = []
        self.earlier: dict[Path, list[tuple[Path, ast.stmt, ast.stmt]]] = {}
        self.sums: dict[Key, str] = {}
        self.own: set[str] = set()  # sums that the loop makes itself
        self.replaced: dict[int, list[ast.stmt]] = {}
        self.counted: set[str] = set()  # loops whose iterations are counted

    def _refusal(self, problem: str, **more: str) -> Refused:
        return refuse(problem, self.nest, self.site.path, "asked to be factored", **more)

    def rewritten(self) -> Program:
        """The program with the loop rewritten.

        Raises:
            Refused: nothing changes.
        """
        sums, assignments = self._statements()
        for statement in self._worthwhile(sums):
            self._sum(statement)
        for statement in assignments:
            self._assign(statement)
        if not self.replaced and not self.joined:
            raise self._nothing(sums)
        inside = without_dead(rebuilt(self.node.body, self.replaced))
        loop = [with_inner(self.node, inside)] if inside else []
        body = replace_at(self.nest.body, self.site.path, [*self.before, *loop, *self.after])
        for path in sorted(self.earlier, reverse=True):  # all before the loop, so that paths stay valid
            declared = [declaration for _, declaration, _ in self.earlier[path]]
            for block, _, adding in self.earlier[path]:
                body = edit_at(body, block, lambda node, s=adding: [with_last(node, s)])  # type: ignore[misc]
            body = edit_at(body, path, lambda node, d=declared: [*d, node])  # type: ignore[misc]
        made = self.program.with_nest(self.site.nest, self.nest.with_body(body))
        places = places_of_items(self.program, self.nest) if self.counted else {}
        if places is None or self.counted & places.keys():
            return replace(made, fixed=made.fixed or f"factor has counted the iterations of {self.loop.var}")
        return made

    def _statements(self) -> tuple[list[Summand], list[Summand]]:
        """The statements that add to one element in all iterations, and the others."""
        targets = {r.text for r in reductions_over(self.nest.body, self.site.path) if r.kind == "add"}
        scope = whole_scope(self.nest, self.program.buffers)
        sums: list[Summand] = []
        assignments: list[Summand] = []
        for path, node in walk(self.node.body):
            if not isinstance(node, (ast.Assign, ast.AugAssign)) or reduction_kind(node) in ("max", "min"):
                continue
            target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
            dtype = dtype_of(target, scope)
            if not is_float(dtype):
                continue
            whole = self.moving.polynomial(node.value)
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Sub) and unparse(target) in targets:
                whole = -whole
            path = (*self.site.path, *path)
            statement = Summand(
                path,
                node,
                chain(self.nest, self.site.path, path[:-1]),
                self.moving.parts(whole),
                dtype,
                self.moving.cost(self.moving.written_out(node.value)),
            )
            is_sum = isinstance(node, ast.AugAssign) and unparse(target) in targets
            (sums if is_sum else assignments).append(statement)
        return sums, assignments

    # --- sums
    def _worthwhile(self, sums: list[Summand]) -> list[Summand]:
        """The statements whose sums leave no more operations in the loop, in textual order."""
        uses = Counter(statement.key(part) for statement in sums for part in statement.parts if part)
        chosen: list[Summand] = []
        made: set[Key] = set()
        changed = True
        while changed:
            changed = False
            for statement in sums:
                if statement in chosen or not self._allowed(statement):
                    continue
                new = [
                    p for p in statement.parts if p and statement.key(p) not in made and not self._place(statement, p)
                ]
                shared = all(uses[statement.key(part)] > 1 for part in new)
                cost = sum(1 + self.moving.cost(self._product(statement, part)) for part in new)
                if (not new or shared) if statement.trivial else cost <= statement.cost + 1:
                    chosen.append(statement)
                    made |= {statement.key(part) for part in new}
                    changed = True
        return [statement for statement in sums if statement in chosen]

    def _allowed(self, statement: Summand) -> bool:
        """Whether the factors outside may be computed although the statement may not run."""
        return statement.around.sure or all(part and is_number(c) for part, c in statement.parts.items())

    def _product(self, statement: Summand, part: Monomial) -> ast.expr:
        node = statement.parts[part].product(part)
        assert node is not None
        return node

    def _place(self, statement: Summand, part: Monomial) -> _Place | None:
        """The earlier loop over the same iterations that makes the sum, or can make it from what it reads anyway."""
        product = self._product(statement, part)
        names = names_in(product)
        if not statement.around.sure or names & (self.moving.stored | self.moving.locals):
            return None
        field, position = self.site.path[-1]
        block = block_at(self.nest, self.site.path)
        found = None
        for index in range(position - 1, -1, -1):
            node = block[index]
            if names.intersection(stored_in([node], declared=True)):
                break
            if isinstance(node, ast.For):
                place = self._inside((*self.site.path[:-1], (field, index)), statement, product)
                if place is not None and (place.existing or found is None):
                    found = place
                if found is not None and found.existing:
                    break
        return found

    def _inside(self, loop: Path, statement: Summand, product: ast.expr) -> _Place | None:
        node = at(self.nest.body, loop)
        assert isinstance(node, ast.For)
        buffers = {unparse(ref.value) for ref in references(product)}
        for inner, _ in [((), node), *loops(node.body)]:
            block: Path = (*loop, *inner)
            around = chain(self.nest, loop, block)
            if not around.sure or around.bounds() != statement.around.bounds():
                continue
            if any(head.kind != "range" for head in around.heads):
                continue
            pairs = zip(statement.around.heads, around.heads, strict=True)
            names: dict[str, ast.expr] = {old.var: ast.Name(new.var, ast.Load()) for old, new in pairs}
            existing = self._existing(loop, block, unparse(substitute(product, names)), statement.dtype)
            if existing or buffers <= names_in(at(self.nest.body, block)):
                return _Place(loop, block, names, existing)
        return None

    def _existing(self, loop: Path, block: Path, product: str, dtype: str) -> str | None:
        """A local, 0 before the loop, to which only that product is added."""
        node = at(self.nest.body, block)
        assert isinstance(node, ast.For)
        outside = block_at(self.nest, loop)[: loop[-1][1]]
        stored = [name_of(target) for target in targets_in(self.nest.body, declared=True)]
        for statement in node.body:
            if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Add):
                continue
            name = unparse(statement.target)
            if unparse(statement.value) != product or stored.count(name) != 2:
                continue
            if any(unparse(s) == f"{name}: {dtype} = 0.0" for s in outside):
                return name
        return None

    def _local(self, statement: Summand, part: Monomial) -> tuple[str, ast.stmt | None]:
        """The local that holds a sum, and the statement that adds to it here, if that is new."""
        key = statement.key(part)
        if key in self.sums:
            return self.sums[key], None
        product = self._product(statement, part)
        place = self._place(statement, part)
        if place is not None and place.existing:
            self.sums[key] = place.existing
            return place.existing, None
        name = self._fresh(f"{self._words(product)}_sum")
        self.sums[key] = name
        zero = declare(name, LocalType(statement.dtype), ast.Constant(0.0))
        if place is not None:
            add = ast.AugAssign(ast.Name(name, ast.Store()), ast.Add(), substitute(product, place.names))
            self.earlier.setdefault(place.loop, []).append((place.block, zero, add))
            return name, None
        self.own.add(name)
        self.before.append(zero)
        return name, ast.AugAssign(ast.Name(name, ast.Store()), ast.Add(), product)

    def _sum(self, statement: Summand) -> None:
        inside: list[ast.stmt] = []
        total = Polynomial()
        names = set()
        for part, coefficient in statement.parts.items():
            if not part:
                assert statement.around.count is not None
                self.counted |= {head.var for head in statement.around.heads}
                total += coefficient * number(statement.around.count)
                continue
            name, add = self._local(statement, part)
            names.add(name)
            total += coefficient * of_atom(Atom(ast.Name(name, ast.Load())))
            inside += [add] if add is not None else []
        assert isinstance(statement.node, ast.AugAssign)
        self.replaced[id(statement.node)] = inside
        less = all(coefficient < 0 for coefficient in total.terms.values())
        value = (-total if less else total).to_expr()
        update = ast.AugAssign(clone(statement.node.target), ast.Sub() if less else ast.Add(), value)
        (self.after if names & self.own else self.before).append(update)

    # --- assignments
    def _assign(self, statement: Summand) -> None:
        """Rewrite an assignment where that leaves fewer operations in the loop."""
        factors: list[Polynomial] = []
        declared: list[tuple[str, ast.stmt]] = []
        for part, coefficient in statement.parts.items():
            plain = plain_atom(coefficient)
            if plain is not None:
                factors.append(of_atom(Atom(plain)))
            elif is_number(coefficient):
                factors.append(coefficient)
            else:
                words = self._words(self._product(statement, part) if part else _target(statement.node))
                name = fresh(f"{words}_{'scale' if part else 'offset'}", self.taken | {n for n, _ in declared})
                declared.append((name, declare(name, LocalType(statement.dtype), coefficient.to_expr())))
                factors.append(of_atom(Atom(ast.Name(name, ast.Load()))))
        # Coefficients come before what they multiply.
        total = Polynomial({}, {key: atom for f in factors if set(f.terms) != {()} for key, atom in f.atoms.items()})
        for (part, coefficient), factor_ in zip(statement.parts.items(), factors, strict=True):
            total += factor_ * Polynomial({part: Fraction(1)}, coefficient.atoms)
        value = total.to_expr()
        if self.moving.cost(value) >= statement.cost or (declared and not statement.around.sure):
            return
        self.taken |= {name for name, _ in declared}
        self.before += [declaration for _, declaration in declared]
        self.replaced[id(statement.node)] = [changed(statement.node, value=value)]

    # --- names and messages
    def _fresh(self, base: str) -> str:
        name = fresh(base, self.taken)
        self.taken.add(name)
        return name

    def _words(self, node: ast.expr) -> str:
        """The parts of an expression, for a name."""
        moving = [unparse(ref.value) for ref in references(node) if self.moving.moves(ref)]
        moving += [n.id for n in nodes(node) if isinstance(n, ast.Name) and n.id in self.moving.locals]
        others = [unparse(ref.value) for ref in references(node)]
        return "_".join([*dict.fromkeys(moving)][:3] or others[:1] or [self.loop.var])

    def _nothing(self, sums: list[Summand]) -> Refused:
        if not sums:
            return self._refusal(
                f"no sum runs over {self.loop.var}, and no assignment gets shorter",
                way_out="name the loop that the sum runs over",
            )
        node = sums[0].node
        divisors = [
            atom
            for s in sums
            for c in s.parts.values()
            for atom in c.atoms.values()
            if atom.inverse and self.moving.moves(atom.node)
        ]
        if divisors:
            return self._refusal(
                f"no factor stays the same: {unparse(divisors[0].node)} moves with {self.loop.var}, and divides",
                witness=unparse(node),
                way_out="divide by something that does not move",
            )
        if not all(self._allowed(statement) for statement in sums):
            return self._refusal(
                "the sum may be empty, and what would be computed outside may not exist then",
                witness=unparse(node),
            )
        return self._refusal("no factor and no summand stays the same", witness=unparse(node))


def reduction_kind(node: ast.stmt) -> str | None:
    found = accumulation(node)
    return found.kind if found else None


def _target(node: ast.Assign | ast.AugAssign) -> ast.expr:
    return node.target if isinstance(node, ast.AugAssign) else node.targets[0]
