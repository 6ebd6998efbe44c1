"""Programs of loop nests in Python's own AST: the records, and small tools to build, find and replace parts.

The grammar is in ``docs/ir.md``. Trees are treated as values: nothing here changes a tree that it was given.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from keyword import iskeyword
from typing import Any, TypeVar

from swirl.ir.buffers import Buffer
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, as_target, as_value, changed, names_of
from swirl.ir.trees import clone as clone
from swirl.ir.trees import names_in as names_in
from swirl.ir.trees import reference as reference
from swirl.ir.trees import references as references
from swirl.ir.trees import subscripts as subscripts

T = TypeVar("T", bound=ast.AST)

LOOP_KINDS = ("range", "parallel", "vector", "unrolled")


# --- building -------------------------------------------------------------------------------------------
def expr(source: str | int | float | ast.expr, **parts: ast.expr | str | int) -> ast.expr:
    """An expression from text; names given as keywords are replaced by those expressions.

    >>> unparse(expr("a + 1", a=expr("x * 2")))
    'x * 2 + 1'
    """
    tree: ast.expr
    if isinstance(source, ast.expr):
        tree = clone(source)
    elif source.__class__ is int and source >= 0:  # most are; parsing takes fifty times as long
        tree = ast.Constant(source)
    elif isinstance(source, str) and source.isascii() and source.isidentifier() and not iskeyword(source):
        tree = ast.Name(source, ast.Load())
    else:
        tree = ast.parse(str(source), mode="eval").body
    return substitute(tree, {name: expr(part) for name, part in parts.items()}) if parts else tree


def stmts(source: str, **parts: ast.expr | str | int) -> list[ast.stmt]:
    """Statements from text; names given as keywords are replaced by those expressions."""
    body = ast.parse(source).body
    if parts:
        mapping = {name: expr(part) for name, part in parts.items()}
        body = [substitute(statement, mapping) for statement in body]
    return body


def clones(body: list[T]) -> list[T]:
    """Copies of statements or expressions, see :func:`clone`."""
    return [clone(node) for node in body]


class _Substitute(Transformer):
    def __init__(self, mapping: Mapping[str, ast.expr]):
        self.mapping = mapping

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.mapping:
            return node
        new = self.mapping[node.id]
        if not isinstance(new, (ast.Name, ast.Subscript)):
            return clone(new)
        return as_target(new) if isinstance(node.ctx, ast.Store) else as_value(new)


def substitute(tree: T, mapping: Mapping[str, ast.expr]) -> T:
    """A copy of ``tree`` with names replaced by expressions (loop targets and declarations too, where names
    map to names)."""
    return _Substitute(mapping).visit(clone(tree))


# --- loops ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Loop:
    """The head of a ``for``: variable, kind and bounds. ``options`` are a ``parallel`` loop's
    (``schedule="dynamic,1"``)."""

    var: str
    kind: str
    start: ast.expr
    stop: ast.expr
    step: int = 1
    options: tuple[tuple[str, str], ...] = ()
    mark: str | None = field(default=None, compare=False)  # set by a rewrite, to find a loop that it has moved

    @property
    def extent(self) -> int | None:
        """Number of iterations where the bounds are constants, else None."""
        start, stop = constant(self.start), constant(self.stop)
        if start is None or stop is None:
            return None
        return len(range(start, stop, self.step))

    @property
    def most(self) -> int | None:
        """The same where the end is the least of a constant and others: the greatest number of iterations."""
        call = self.stop
        least = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "min"
        ends = [end for end in map(constant, call.args) if end is not None] if isinstance(call, ast.Call) else []
        return replace(self, stop=ast.Constant(min(ends))).extent if least and ends else self.extent

    @property
    def plain(self) -> Loop:
        """The loop as one of kind ``range``."""
        return Loop(self.var, "range", self.start, self.stop, self.step)

    def node(self, body: list[ast.stmt]) -> ast.For:
        """The loop as a tree, with ``body``."""
        args = [self.stop]
        if self.step != 1 or constant(self.start) != 0:
            args.insert(0, self.start)
        if self.step != 1:
            args.append(expr(self.step))
        keywords = [ast.keyword(key, ast.Constant(value)) for key, value in self.options]
        call = ast.Call(ast.Name(self.kind, ast.Load()), clones(args), keywords)
        result = ast.For(ast.Name(self.var, ast.Store()), call, body, [], None)
        if self.mark is not None:
            result.mark = self.mark  # type: ignore[attr-defined]
        return result


def with_inner(node: ast.For, body: list[ast.stmt]) -> ast.For:
    """The same loop around another body; a mark on the loop stays on it."""
    return changed(node, body=body)


def constant(node: ast.expr) -> int | None:
    """The value of an integer literal (signs included), else None."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = constant(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def loop_of(node: ast.For) -> Loop:
    """The head of a ``for`` statement of the grammar."""
    assert isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call)
    assert isinstance(node.iter.func, ast.Name)
    args, options = node.iter.args, node.iter.keywords
    start, stop = (args[0], args[1]) if len(args) > 1 else (_ZERO, args[0])
    step = constant(args[2]) if len(args) > 2 else 1
    assert step is not None
    given = [(o.arg or "", str(o.value.value)) for o in options if isinstance(o.value, ast.Constant)] if options else ()
    return Loop(node.target.id, node.iter.func.id, start, stop, step, tuple(given), getattr(node, "mark", None))


_ZERO = ast.Constant(0)


def variable_of(node: ast.For) -> str:
    """The variable of a loop, without the rest of its head."""
    assert isinstance(node.target, ast.Name)
    return node.target.id


def kind_of(node: ast.For) -> str:
    """The kind of a loop, without the rest of its head."""
    assert isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name)
    return node.iter.func.id


def for_loop(
    var: str,
    stop: int | str | ast.expr,
    body: list[ast.stmt],
    *,
    start: int | str | ast.expr = 0,
    step: int = 1,
    kind: str = "range",
) -> ast.For:
    """``for var in kind(start, stop, step): body``."""
    return Loop(var, kind, expr(start), expr(stop), step).node(body)


def nested(loops: Iterable[Loop], body: list[ast.stmt]) -> list[ast.stmt]:
    """``body`` in loops, the first of them outermost."""
    for loop in reversed(list(loops)):
        body = [loop.node(body)]
    return body


def counting(names: Iterable[str], extents: Iterable[int]) -> list[Loop]:
    """Loops over every index of an array of these extents."""
    return [Loop(name, "range", ast.Constant(0), ast.Constant(n)) for name, n in zip(names, extents, strict=True)]


# --- records --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Nest:
    """One top-level loop with its body (or one straight statement), as a function of the buffers it
    touches."""

    function: ast.FunctionDef

    @property
    def label(self) -> str:
        return self.function.name

    @property
    def body(self) -> list[ast.stmt]:
        return self.function.body

    @cached_property
    def text(self) -> str:
        """The printed function: the nest's identity."""
        return unparse(self.function)

    @cached_property
    def body_text(self) -> str:
        """The printed statements, without the function's head."""
        return "\n".join(unparse(s) for s in self.body)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every plain name in it."""
        return frozenset(names_in(self.function))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the buffers that the nest touches."""
        return tuple(arg.arg for arg in self.function.args.args)

    def with_body(self, body: list[ast.stmt]) -> Nest:
        """A nest of the same label with another body; the arguments follow from what the body touches."""
        return make_nest(self.label, body, self.arguments)

    def renamed(self, label: str) -> Nest:
        """The nest under another label."""
        nest = Nest(changed(self.function, name=label))
        nest.__dict__["text"] = self.text.replace(f"def {self.label}(", f"def {label}(", 1)
        nest.__dict__["names"] = self.names
        nest.facts.update(self.facts)
        return nest

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What has been found out about the body, by name: see :func:`swirl.analysis.statements.statements_of`."""
        return {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Nest) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def make_nest(label: str, body: list[ast.stmt], buffers: tuple[str, ...] | Mapping[str, Buffer]) -> Nest:
    """A nest whose arguments are those names of ``buffers`` that ``body`` touches, in that order."""
    used = names_of(body)
    args = [ast.arg(name) for name in buffers if name in used]
    arguments = ast.arguments(posonlyargs=[], args=args, kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.FunctionDef(label, arguments, body or [ast.Pass()], [], None)
    if "type_params" in ast.FunctionDef._fields:  # Python ≥ 3.12
        setattr(function, "type_params", [])  # noqa: B010
    nest = Nest(function)
    nest.__dict__["names"] = frozenset(used)
    return nest


@dataclass(frozen=True)
class Program:
    """Nests that run one after the other, and the buffers they name.

    Args:
        name: ``conv1.forward``.
        nests: in order of execution.
        buffers: name inside the nests → buffer.
        aliases: other names of loops, e.g. ``_neuron_index_1`` → ``("c",)``.
        commands: what was applied so far, as text (provenance).
        remarks: what the last command has left unchanged, and why; not part of the program's identity.
        fixed: why it is right for whole batches alone; empty where nothing is known that forbids fewer items
            (:mod:`swirl.analysis.items`).
    """

    name: str
    nests: tuple[Nest, ...]
    buffers: Mapping[str, Buffer]
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    remarks: tuple[str, ...] = field(default=(), compare=False)
    fixed: str = ""

    @property
    def text(self) -> str:
        """All nests printed: with the buffers, the program's identity."""
        return "\n\n".join(nest.text for nest in self.nests)

    def with_nests(self, nests: list[Nest] | tuple[Nest, ...]) -> Program:
        return replace(self, nests=tuple(nests))

    def with_nest(self, index: int, *new: Nest) -> Program:
        """This program with the nest at ``index`` replaced by ``new``."""
        return self.with_nests((*self.nests[:index], *new, *self.nests[index + 1 :]))

    def with_buffers(self, **new: Buffer) -> Program:
        return replace(self, buffers={**self.buffers, **new})

    def alike(self, other: Program) -> bool:
        """Whether the programs differ only in their names, after which nests may be labelled."""
        same = (list(self.buffers.items()), self.aliases, self.commands, len(self.nests))
        return same == (list(other.buffers.items()), other.aliases, other.commands, len(other.nests)) and all(
            mine.renamed(theirs.label).text == theirs.text and self._label(mine, other.name) == theirs.label
            for mine, theirs in zip(self.nests, other.nests, strict=True)
        )

    def renamed(self, name: str) -> Program:
        """The program under another name; nests that are labelled after it are labelled after the new one."""
        nests = [nest.renamed(self._label(nest, name)) for nest in self.nests]
        return replace(self, name=name, nests=tuple(nests))

    def _label(self, nest: Nest, name: str) -> str:
        """The label of a nest after the program has been renamed."""
        own = self.name.replace(".", "_")
        return name.replace(".", "_") + nest.label.removeprefix(own) if nest.label.startswith(own) else nest.label


def parse_program(
    source: str,
    buffers: Mapping[str, Buffer],
    name: str = "program",
    aliases: Mapping[str, tuple[str, ...]] | None = None,
) -> Program:
    """A program from text: either function definitions (one a nest), or plain statements (one nest a
    statement)."""
    nests = []
    for index, statement in enumerate(ast.parse(source).body):
        if isinstance(statement, ast.FunctionDef):
            nests.append(make_nest(statement.name, statement.body, dict(buffers)))
        else:
            nests.append(make_nest(f"{name.replace('.', '_')}_{index}", [statement], dict(buffers)))
    return Program(name, tuple(nests), dict(buffers), dict(aliases or {}))


# --- finding and replacing ------------------------------------------------------------------------------
def fresh(base: str, taken: set[str]) -> str:
    """``base``, or ``base_1``, ``base_2``, … : the first that is not taken."""
    name, count = base, 0
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    return name


@dataclass(frozen=True)
class LocalType:
    """The type of a declared local: ``float32`` or ``float32[14, 2]``."""

    dtype: str
    shape: tuple[int, ...] = ()

    def node(self) -> ast.expr:
        return expr(f"{self.dtype}[{', '.join(map(str, self.shape))}]" if self.shape else self.dtype)


def local_type(node: ast.AnnAssign) -> LocalType:
    """The type in a declaration ``name: type = …``."""
    if isinstance(node.annotation, ast.Name):
        return LocalType(node.annotation.id)
    assert isinstance(node.annotation, ast.Subscript) and isinstance(node.annotation.value, ast.Name)
    shape = tuple(value for value in map(constant, subscripts(node.annotation)) if value is not None)
    return LocalType(node.annotation.value.id, shape)


def declare(name: str, type_: LocalType, value: ast.expr | None = None) -> ast.AnnAssign:
    """``name: type = value``; an array starts as ``empty(extents)``."""
    if type_.shape:
        value = expr(f"empty({', '.join(map(str, type_.shape))})")
    assert value is not None
    return ast.AnnAssign(ast.Name(name, ast.Store()), type_.node(), value, 1)
