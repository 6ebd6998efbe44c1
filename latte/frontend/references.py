"""What ``self.weights[c, ky, kx]`` in a neuron, and ``inputs[n, c]`` in an ensemble, mean as buffer
references."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from latte.frontend.batch_numbers import with_batch
from latte.frontend.padding import INSIDE
from latte.frontend.scope import BodyScope, Source
from latte.frontend.subscripts import check_subscripts, index_of, subscript_list
from latte.model.body import MISSING
from latte.model.buffers import repeated_sources
from latte.model.ensemble import Connection, Ensemble
from latte.model.index import Index, as_index, maximum, minimum
from latte.model.mapping import Window
from swirl.ir.nest import clone, reference
from swirl.ir.printing import unparse
from swirl.ir.trees import nodes

Position = Index | ast.Subscript
"""A subscript: quasi-affine, or an element of integers."""


def self_attribute(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return None


class References(ABC):
    """What references in a body mean as references to buffers.

    Args:
        scope: of the body.
    """

    def __init__(self, scope: BodyScope):
        self.scope = scope

    @abstractmethod
    def windows_of(self, node: ast.expr) -> list[Window]:
        """What ``eachindex(node)`` runs over: one window for each dimension, starting at 0."""

    @abstractmethod
    def reference(self, node: ast.expr, indices: list[ast.expr] | None) -> ast.expr:
        """``node[indices]`` as a reference to a buffer."""

    def constant_array(self, node: ast.expr) -> str | None:
        """The name of a NumPy array of the surrounding Python, if it is one."""
        if isinstance(node, ast.Name) and node.id in self.scope.body.arrays and node.id not in self.scope.loops:
            return node.id
        return None

    def _as_array(self, node: ast.expr) -> str | None:
        """What to write for a tuple or list of the surrounding Python whose elements loops choose."""
        name = self_attribute(node)
        value = getattr(self.scope.ensemble, name, None) if name is not None else self.scope.body.evaluate(node)
        if name is not None and value is None:
            value = getattr(self.scope.ensemble.neuron_class, name, None)
        if not isinstance(value, (tuple, list)):
            return None
        return (
            f"np.array({unparse(node)}), of which loops may choose elements; of a {type(value).__name__}, constants do"
        )

    def whole(self, node: ast.expr) -> ast.expr | None:
        """What stands for a whole expression, where that is one reference; None: its parts are translated."""
        return None

    def element(self, node: ast.expr) -> ast.expr:
        """``self.value``, ``self.weights[…]``, ``inputs[…]``."""
        if isinstance(node, ast.Subscript):
            return ast.copy_location(self.reference(node.value, subscript_list(self.scope, node)), node)
        return ast.copy_location(self.reference(node, None), node)

    def positions(self, node: ast.expr, indices: list[ast.expr], extents: Sequence[int | None]) -> list[Position]:
        """The subscripts of a reference: quasi-affine, or elements of integers that are in range.

        Args:
            node: what is referred to, for messages.
            indices: as they were written.
            extents: of its dimensions; None where elements of integers cannot be subscripts.
        """
        return [
            self._read(node, index, dimension, extents[dimension]) or index_of(self.scope, index)
            for dimension, index in enumerate(indices)
        ]

    def _read(self, node: ast.expr, index: ast.expr, dimension: int, extent: int | None) -> ast.Subscript | None:
        """A subscript that is read from an array of integers (there is one such level); None for others."""
        scope, text = self.scope, unparse(index)
        if isinstance(index, ast.Name):
            found: ast.expr | None = scope.elements.get(index.id)
            if found is None and index.id in scope.locals and index.id not in scope.ranges:
                scope.fail(
                    index,
                    f"{text} cannot be a subscript here: such a local is affine in loop variables, or an element of "
                    "integers with a range; assigned once, before and in the same block or one around it",
                    f"{text} = … once, in a line before (abs, min and max may be part of it), or the element itself in "
                    f"place of {text}; what is computed from data goes by way of a Field(…, dtype='int32', below=…)",
                )
        elif isinstance(index, (ast.Subscript, ast.Attribute)) and scope.constants.fold(index) is MISSING:
            found = self.element(index)
        else:
            found = None
        if found is None:
            return None
        assert isinstance(found, ast.Subscript) and isinstance(found.value, ast.Name)
        name, whole = found.value.id, f"dimension {dimension} of {unparse(node)}"
        if scope.buffers[name].dtype != "int32":
            dtype = scope.buffers[name].dtype
            scope.fail(index, f"{text} is {dtype}, and subscripts are integers", "dtype='int32', below=… declares some")
        if any(isinstance(part, ast.Subscript) for part in nodes(found.slice)) or hasattr(found, INSIDE):
            scope.fail(index, f"{text} cannot be a subscript: it is itself read at such a subscript, or padded")
        if extent is None:
            scope.fail(
                index, f"{text} cannot be a subscript where the source is padded, clamped or reshaped, or a part"
            )
        below = scope.below.get(name)
        if below is None or below > extent:
            range_ = "has no declared range" if below is None else f"is below {below}"
            scope.fail(index, f"{text} {range_}, {whole} has {extent} elements", f"below={extent} where it is declared")
        return clone(found)


class NeuronReferences(References):
    """In bodies of neurons fields are one neuron's; the loops over batch and neurons are around them."""

    def __init__(self, source: Source):
        ensemble = source.ensemble
        self.dims = (ensemble.batch_dim, *ensemble.dims)
        """The implicit loops, outermost first."""
        forbidden = {**dict.fromkeys(self.dims, "a dimension of the layer"), "self": "the neuron"}
        super().__init__(BodyScope(source, _shapes_in_neurons(ensemble, source.body.arrays), forbidden))
        self.specs = ensemble.fields(source.batch_size)
        for dim, extent in zip(self.dims, (source.batch_size, *ensemble.shape), strict=True):
            self.scope.enter(dim, Window(as_index(0), as_index(extent)))
        self.scope.over_items.add(ensemble.batch_dim)
        self._check_dimensions(source)

    def _check_dimensions(self, source: Source) -> None:
        """Refuse a name that is a dimension and also a number of the Python code around: which is meant?"""
        for node in nodes(source.body.tree):
            if isinstance(node, ast.Name) and node.id in self.dims:
                value = self.scope.constants.fold(node)
                if value is not MISSING:
                    self.scope.fail(
                        node,
                        f"{node.id} is a dimension of the layer, and {value!r} in the Python code around",
                        "choose another name for one of them",
                    )

    def _connection(self, attribute: str) -> tuple[Connection, str] | None:
        """The connection of ``inputs``, ``inputs1``, ``grad_inputs``, ``input``, … and the buffer's name."""
        gradient = attribute.startswith("grad_")
        plain = attribute.removeprefix("grad_")
        for connection in self.scope.ensemble.connections:
            one = connection.name.replace("inputs", "input")
            if plain == connection.name or (plain == one and connection.reads_one):
                name = repeated_sources(self.scope.ensemble).get(connection.name, connection.name)
                return connection, f"grad_{name}" if gradient else name
        return None

    def _attribute(self, node: ast.expr) -> str:
        attribute = self_attribute(node) or self.constant_array(node)
        if attribute is None:
            self.scope.fail(
                node,
                f"{unparse(node)} is not a field",
                self._as_array(node) or "fields are self.value, self.inputs, self.weights, …",
            )
        return attribute

    def windows_of(self, node: ast.expr) -> list[Window]:
        attribute = self._attribute(node)
        found = self._connection(attribute)
        if found:
            return [Window(as_index(0), window.length) for window in found[0].windows or ()]
        if attribute in self.scope.ensemble.declared_fields():
            return extents_of(self.scope.ensemble.declared_fields()[attribute].shape)
        self._no_field(node, attribute)

    def _no_field(self, node: ast.expr, attribute: str) -> NoReturn:
        if attribute.startswith(("input", "grad_input")):
            one = attribute.removeprefix("grad_") == "input" and self.scope.ensemble.connections
            self.scope.fail(
                node,
                f"self.{attribute}: {self.scope.ensemble!r} has no such connection",
                "self.input needs a connection that reads one element; write self.inputs[…]"
                if one
                else "net.add_connections(source, ensemble, mapping)",
            )
        connected = [connection.name for connection in self.scope.ensemble.connections]
        self.scope.fail(
            node,
            f"{self.scope.ensemble!r} has no field {attribute!r}",
            self._as_array(node) or f"its fields are {', '.join([*self.specs, *connected])}",
        )

    def reference(self, node: ast.expr, indices: list[ast.expr] | None) -> ast.expr:
        attribute = self._attribute(node)
        found = self._connection(attribute)
        if found:
            connection, name = found
            if indices is None:
                if not connection.reads_one:
                    self.scope.fail(
                        node,
                        f"self.{attribute} is all that the neuron reads, not one element",
                        f"self.{attribute}[…], in a loop over eachindex(self.{attribute})",
                    )
                relative: list[Position] = [as_index(0)] * len(connection.shape)
            else:
                relative = self._indices(node, indices, _whole_extents(connection))
            return self._through(connection, name, node, relative)
        spec = self.specs.get(attribute)
        if spec is None:
            self._no_field(node, attribute)
        element = spec.shape[len(spec.dims) :] if spec.dims else spec.shape
        if spec.shape == (1,) and not spec.dims and indices is None:
            own: list[Position] = [as_index(0)]
        else:
            own = self._indices(node, indices or [], list(element))
            check_subscripts(self.scope, _written(node, indices), own, list(element))
        leading = [self.scope.ranges[self.scope.ensemble.batch_dim if dim == "n" else dim] for dim in spec.dims]
        return reference(attribute, [_tree(index) for index in (*leading, *own)])

    def _indices(self, node: ast.expr, indices: list[ast.expr], extents: Sequence[int | None]) -> list[Position]:
        if len(indices) != len(extents):
            self.scope.fail(
                node, f"{unparse(node)} has {len(extents)} dimensions here and is given {len(indices)} subscripts"
            )
        return self.positions(node, indices, extents)

    def _through(self, connection: Connection, name: str, node: ast.expr, relative: list[Position]) -> ast.expr:
        """An element of the source: through the windows, then padding, clamping, and the view of its
        shape."""
        windows = connection.windows or ()
        check_subscripts(self.scope, node, relative, [window.extent for window in windows])
        conditions: list[ast.expr] = []
        positions: list[Position] = []
        for window, index, extent, pads in zip(windows, relative, connection.shape, connection.padding, strict=True):
            if not isinstance(index, Index):
                positions.append(index)
                continue
            position = window.start + index * window.step
            if connection.clamp:
                position = maximum(0, minimum(extent - 1, position))
            elif any(pads):
                conditions += _inside(position, extent)
            positions.append(as_index(position))
        if connection.reshape:
            affine = [position for position in positions if isinstance(position, Index)]  # all of them
            positions = [*_reshaped(affine, connection.reshape, connection.source.shape)]
        batch = self.scope.ranges[self.scope.ensemble.batch_dim]
        result = reference(name, [_tree(index) for index in (batch, *positions)])
        if conditions:
            setattr(result, INSIDE, tuple(conditions))
        return result


def _tree(position: Position) -> ast.expr:
    return position.tree if isinstance(position, Index) else position


def _whole_extents(connection: Connection) -> list[int | None]:
    """The extents of a source's dimensions, as the sink sees it; None where it does not see them as they are."""
    whole = not connection.clamp and connection.reshape is None
    padding, windows = connection.padding, connection.windows or ()
    return [
        window.extent if whole and not any(pads) and window.start.value == 0 and window.step == 1 else None
        for window, pads in zip(windows, padding, strict=True)
    ]


def _written(node: ast.expr, indices: list[ast.expr] | None) -> ast.expr:
    """The reference as the user wrote it, for messages."""
    if not indices:
        return node
    index = indices[0] if len(indices) == 1 else ast.Tuple(indices, ast.Load())
    return ast.copy_location(ast.Subscript(node, index, ast.Load()), node)


def _inside(position: Index, extent: int) -> list[ast.expr]:
    """The comparisons that keep ``position`` in 0 … extent - 1; only those that can fail."""
    conditions = []
    free = Index(position.terms)  # the constant is on the other side
    if position.low < 0:
        conditions.append(ast.parse(f"{free.text} >= {-position.constant}", mode="eval").body)
    if position.high >= extent:
        conditions.append(ast.parse(f"{free.text} < {extent - position.constant}", mode="eval").body)
    return conditions


def _reshaped(positions: list[Index], view: tuple[int, ...], shape: tuple[int, ...]) -> list[Index]:
    """Subscripts of the source from subscripts of its view."""
    flat = as_index(0)
    for index, extent in zip(positions, view, strict=True):
        flat = flat * extent + index
    result = []
    for extent in reversed(shape[1:]):
        result.append(flat % extent)
        flat = flat // extent
    return [flat, *reversed(result)]


def _shapes_in_neurons(ensemble: Ensemble, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for name, array in arrays.items():
        known |= {f"{name}.shape": array.shape, f"{name}.ndim": array.ndim}
    for connection in ensemble.connections:
        windows = connection.windows or ()
        if all(window.extent is not None for window in windows):
            known[f"self.{connection.name}.shape"] = tuple(window.extent for window in windows)
        known[f"self.{connection.name}.ndim"] = len(windows)
    for name, declared in ensemble.declared_fields().items():
        known[f"self.{name}.shape"] = declared.shape
        known[f"self.{name}.ndim"] = len(declared.shape)
    return known


class ArrayReferences(References):
    """In bodies of ensembles explicit loops run over whole arrays, which are the method's arguments or
    ``self.<field>``.

    Raises:
        BodyError: an argument is not a field.
    """

    def __init__(self, source: Source):
        forbidden = {**dict.fromkeys(source.body.parameters, "a field"), "self": "the ensemble"}
        repeated = repeated_sources(source.ensemble)
        arrays = dict(source.buffers)
        arrays |= {name: arrays[first] for name, first in repeated.items() if first in arrays}
        shapes = {
            f"{spelling}.{what}": value
            for name, buffer in arrays.items()
            for spelling in (name, f"self.{name}")
            for what, value in (("shape", with_batch(buffer.shape, buffer)), ("ndim", len(buffer.shape)))
        }
        super().__init__(BodyScope(source, shapes, forbidden))
        for name in source.body.parameters:
            if name not in arrays:
                self.scope.fail(
                    source.body.tree,
                    f"the argument {name!r} of {source.body.function.__qualname__} is not a field of "
                    f"{source.ensemble!r}",
                    f"a source is called as net.add_connections(…, name={name!r}) says; the ensemble's fields are "
                    f"{', '.join(source.buffers)}",
                )

    def _array(self, node: ast.expr) -> str:
        name = self_attribute(node) or self.constant_array(node)
        if name is None and isinstance(node, ast.Name) and node.id in self.scope.body.parameters:
            name = node.id
        if name is None and isinstance(node, ast.Name) and node.id in self.scope.buffers:
            self.scope.fail(
                node,
                f"{node.id} is not an argument of {self.scope.body.function.__qualname__}",
                f"add it: def {self.scope.body.tree.name}(self, …, {node.id})",
            )
        name = repeated_sources(self.scope.ensemble).get(name or "", name)
        if name is None or name not in self.scope.buffers:
            self.scope.fail(
                node,
                f"{unparse(node)} is not a field of {self.scope.ensemble!r}",
                self._as_array(node) or f"its fields are {', '.join(self.scope.buffers)}",
            )
        return name

    def windows_of(self, node: ast.expr) -> list[Window]:
        return extents_of(self.scope.buffers[self._array(node)].shape)

    def reference(self, node: ast.expr, indices: list[ast.expr] | None) -> ast.expr:
        name = self._array(node)
        shape = self.scope.buffers[name].shape
        if indices is None:
            self.scope.fail(
                node,
                f"{unparse(node)} is a whole array; bodies compute single elements",
                f"write {unparse(node)}[…]",
            )
        if len(indices) != len(shape):
            self.scope.fail(node, f"{name} has {len(shape)} dimensions {shape} and is given {len(indices)} subscripts")
        positions = self.positions(node, indices, shape)
        check_subscripts(self.scope, _written(node, indices), positions, list(shape))
        return reference(name, [_tree(position) for position in positions])


def extents_of(shape: tuple[int, ...]) -> list[Window]:
    """Windows over a whole array."""
    return [Window(as_index(0), as_index(extent)) for extent in shape]
