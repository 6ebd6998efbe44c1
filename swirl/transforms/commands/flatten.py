"""flatten: loops over neighbouring dimensions of contiguous arrays become one."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import prod

from swirl.errors import CommandError
from swirl.ir.affine import Affine, affine, loop_range, ranges_at, simplify
from swirl.ir.hints import is_name, prefetch_of
from swirl.ir.nest import (
    Loop,
    Nest,
    Program,
    constant,
    expr,
    loop_of,
    names_in,
    reference,
    references,
    subscripts,
    variable_of,
)
from swirl.ir.paths import Path, at, loops, replace_at, walk
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, clone
from swirl.transforms.arguments import LoopNames
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import WayOut, refuse
from swirl.transforms.rewrites.checks.ways_out import step, tried
from swirl.transforms.rewrites.sites import Site, find_loops, inner_name, resolve_name


@command()
def flatten(program: Program, loop_vars: LoopNames) -> Program:
    """Join directly nested loops that run over whole neighbouring dimensions of every array they touch.

    rewrite (value and inputs are (N, C, 56, 56)):
        for y in range(56):                         for yx in range(3136):
            for x in range(56):             →           value[n, c, yx] = max(0.0, inputs[n, c, yx])
                value[n, c, y, x] = …

    This program sees the arrays with the joined dimension; memory is the same. Elsewhere, an element of constant
    subscripts, as the first one of an image, has its place in that dimension. A random number's position may use the
    loops' variables if it counts the elements in the same way: ``rand(s, 0, 1, (n * 56 + y) * 56 + x)``.

    Args:
        loop_vars: two or more loops, outermost first.

    Raises:
        Refused: the loops are not directly nested or do not cover the dimensions, a reference uses their
            variables in another way, or an array is touched elsewhere in another way, or has blocks of these
            dimensions or of later ones; or the joined loop has 2**31 iterations or more, which the C++ counts in an
            ``int``.

    Source: Wolfe, *High Performance Compilers for Parallel Computing*, chapter 9 (loop collapsing).
    """
    if len(loop_vars) < 2:
        raise CommandError(f"flatten takes two loops or more, not {loop_vars}")
    names = [resolve_name(program, name) for name in loop_vars]
    groups = [tuple(group) for group in zip(*names, strict=True)] if len({len(n) for n in names}) == 1 else []
    if not groups:
        raise CommandError(f"{loop_vars} do not stand for the same number of loops each")
    joined: dict[str, tuple[int, int]] = {}
    flat = step("flatten", loop_vars)
    nested = tried(program, (step("reorder", loop_vars), flat), *((step("distribute", n), flat) for n in loop_vars))
    for nest in program.nests:
        for path, node in walk(nest.body):
            if prefetch_of(node) is not None:
                raise refuse(
                    "a prefetch names the dimensions apart",
                    nest,
                    path,
                    "asked to be flattened",
                    way_out="prefetch after flatten",
                )
    for index, nest in enumerate(program.nests):
        for group in groups:
            nest = _flatten_in(program, index, nest, group, joined, nested)
        program = program.with_nest(index, nest)
    if not joined:
        site = find_loops(program, loop_vars[0])[0]
        raise refuse(
            "the loops are not directly nested",
            program.nests[site.nest],
            site.path,
            "asked to be flattened",
            way_out=nested,
        )
    program = program.with_nests([_with_elements(program, nest, joined) for nest in program.nests])
    buffers = {}
    for name, (dim, count) in joined.items():
        shape = program.buffers[name].shape
        buffers[name] = replace(
            program.buffers[name], shape=(*shape[:dim], prod(shape[dim : dim + count]), *shape[dim + count :])
        )
    result = program.with_buffers(**buffers)
    _check_all_flat(result)
    return checked(program, result)


def _flatten_in(
    program: Program,
    index: int,
    nest: Nest,
    group: tuple[str, ...],
    joined: dict[str, tuple[int, int]],
    nested: WayOut,
) -> Nest:
    """Every place in one nest where the loops of ``group`` are directly nested."""
    for path, node in reversed(list(loops(nest.body))):
        if variable_of(node) != group[0]:
            continue
        chain = _chain(nest, path, group)
        if chain is None:
            raise refuse("the loops are not directly nested", nest, path, "asked to be flattened", way_out=nested)
        heads, inner = chain
        extents = []
        for head in heads:
            if head.kind != "range" or head.step != 1 or unparse(head.start) != "0" or head.extent is None:
                raise refuse(
                    f"{head.var} is not a plain loop over a whole dimension",
                    nest,
                    path,
                    "asked to be flattened",
                    way_out="flatten before tiling, splitting or marking the loops",
                )
            extents.append(head.extent)
        if prod(extents) >= 2**31:
            raise refuse(
                f"the joined loop would have {prod(extents):,} iterations, more than an int counts",
                nest,
                path,
                "asked to be flattened",
                way_out=f"leave {group[0]} out",
            )
        joint = "".join(group), "_".join(group)  # "i" and "n" make "in", a word of the grammar
        base = next(filter(is_name, joint), "joined")
        var = inner_name(program.with_nest(index, nest), Site(index, path), base)
        rewrite = _Join(program, nest, path, group, extents, var, joined)
        body = [rewrite.visit(clone(statement)) for statement in inner]
        new = Loop(var, "range", ast.Constant(0), ast.Constant(prod(extents))).node(body)
        nest = nest.with_body(replace_at(nest.body, path, [new]))
    return nest


def _chain(nest: Nest, path: Path, group: tuple[str, ...]) -> tuple[list[Loop], list[ast.stmt]] | None:
    heads = []
    node = at(nest.body, path)
    for position, name in enumerate(group):
        if not isinstance(node, ast.For) or variable_of(node) != name:
            return None
        heads.append(loop_of(node))
        if position + 1 < len(group):
            if len(node.body) != 1:
                return None
            node = node.body[0]
    assert isinstance(node, ast.For)
    return heads, node.body


class _Join(Transformer):
    """Replaces the subscripts ``y, x`` by ``yx``; any other use of the variables is refused."""

    def __init__(
        self,
        program: Program,
        nest: Nest,
        path: Path,
        group: tuple[str, ...],
        extents: list[int],
        var: str,
        joined: dict[str, tuple[int, int]],
    ):
        self.program, self.nest, self.path = program, nest, path
        self.group, self.extents, self.var, self.joined = group, extents, var, joined
        # Subscripts of loops that run once, as over a 1×1 window.
        self.once = {var: span for var, span in ranges_at(nest.body, path).items() if span[0] == span[1]}

    def fail(self, node: ast.AST, why: str) -> Exception:
        return refuse(f"{unparse(node)} {why}", self.nest, self.path, "asked to be flattened")

    def visit_For(self, node: ast.For) -> ast.AST:
        loop = loop_of(node)
        if loop.extent == 1:
            self.once |= loop_range(loop, {})
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.group:
            raise self.fail(node, "is used outside of plain subscripts")
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """The position of a random number counts the elements as the joined loop does."""
        if unparse(node.func) != "rand" or not names_in(node.args[-1]) & set(self.group):
            return self.generic_visit(node)
        *others, index = node.args
        addends = _addends(index)
        # What a run-time scalar says is no part of an affine form, and does not move with the loops.
        fixed = [each for each in addends if not names_in(each) & set(self.group) and affine(each) is None]
        form = affine(_sum([each for each in addends if each not in fixed]), self.once, fix=True)
        steps = [prod(self.extents[position + 1 :]) for position in range(len(self.group))]
        unit = form.coefficient(self.group[-1]) if form is not None else 0
        if form is None or [form.coefficient(var) for var in self.group] != [step * unit for step in steps]:
            raise self.fail(node, f"does not count {', '.join(self.group)} as neighbouring dimensions")
        rest = Affine({key: c for key, c in form.terms.items() if key not in self.group}, form.constant, form.atoms)
        if any(rest.mentions(var) for var in self.group):
            raise self.fail(node, f"does not count {', '.join(self.group)} as neighbouring dimensions")
        joined = rest.add(Affine({self.var: unit}, 0, {self.var: expr(self.var)}))
        return ast.Call(node.func, [*(self.visit(other) for other in others), _sum([*fixed, joined.to_expr()])], [])

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        indices = subscripts(node)
        used = {name for index in indices for name in names_in(index)} & set(self.group)
        if not used:
            return node
        indices = [
            simplify(index, self.once, fix=True) if names_in(index) & set(self.group) else index for index in indices
        ]
        name = unparse(node.value)
        texts = [unparse(index) for index in indices]
        positions = [i for i in range(len(texts)) if tuple(texts[i : i + len(self.group)]) == self.group]
        buffer = self.program.buffers.get(name)
        if buffer is None or not positions or sum(t in self.group for t in texts) != len(self.group):
            raise self.fail(node, f"does not run over {', '.join(self.group)} as neighbouring subscripts")
        dim = positions[0]
        # With blocks of an earlier dimension, these stay neighbours, a block's elements apart.
        layout = buffer.layout
        rearranged = layout.halo or layout.order or any(d >= dim for d, _ in layout.blocks)
        if rearranged or buffer.shape[dim : dim + len(self.group)] != tuple(self.extents):
            raise self.fail(node, "is not contiguous over the whole of these dimensions")
        if self.joined.setdefault(name, (dim, len(self.group))) != (dim, len(self.group)):
            raise self.fail(node, "is flattened in other dimensions elsewhere")
        others = [self.visit(index) for index in (*indices[:dim], *indices[dim + len(self.group) :])]
        return reference(name, [*others[:dim], expr(self.var), *others[dim:]], isinstance(node.ctx, ast.Store))


def _addends(node: ast.expr) -> list[ast.expr]:
    """The parts of a sum."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_addends(node.left), *_addends(node.right)]
    return [node]


def _sum(parts: Sequence[ast.expr]) -> ast.expr:
    """The sum of one part or more."""
    return reduce(lambda left, right: ast.BinOp(left, ast.Add(), right), parts)


def _with_elements(program: Program, nest: Nest, joined: dict[str, tuple[int, int]]) -> Nest:
    """A nest in which elements of flattened arrays whose old subscripts are literals have the joined one."""

    class Place(Transformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
            self.generic_visit(node)
            name, indices = unparse(node.value), subscripts(node)
            if name not in joined or len(indices) != len(program.buffers[name].shape):
                return node
            dim, count = joined[name]
            place = 0
            for index, extent in zip(
                indices[dim : dim + count], program.buffers[name].shape[dim : dim + count], strict=True
            ):
                value = constant(index)
                if value is None:
                    return node
                place = place * extent + value
            joint = [*indices[:dim], expr(place), *indices[dim + count :]]
            return reference(name, joint, isinstance(node.ctx, ast.Store))

    return nest.with_body([Place().visit(clone(statement)) for statement in nest.body])


def _check_all_flat(program: Program) -> None:
    """Raises Refused where a flattened array is still referenced with its old number of subscripts."""
    for nest in program.nests:
        for path, node in loops(nest.body):
            for ref in references(node):
                name = unparse(ref.value)
                if name in program.buffers and len(subscripts(ref)) != len(program.buffers[name].shape):
                    raise refuse(
                        f"{unparse(ref)} uses the dimensions apart",
                        nest,
                        path,
                        "touches a flattened array",
                        way_out="flatten its loops too, in the same command",
                    )
