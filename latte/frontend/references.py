"""What ``self.weights[c, ky, kx]`` in a neuron, and ``inputs[n, c]`` in an ensemble, mean as buffer
references."""

from __future__ import annotations

import ast
from typing import Any, NoReturn

from latte.frontend.guards import GUARD
from latte.frontend.translate import Translator, extents_of
from latte.model.buffers import repeated_sources
from latte.model.ensemble import Connection
from latte.model.index import Index, as_index, maximum, minimum
from latte.model.mapping import Window
from swirl.ir.nest import reference


def _self_attribute(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return None


class NeuronTranslator(Translator):
    """Bodies of neurons: fields are one neuron's, the loops over batch and neurons are around them."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.specs = self.ensemble.fields(self.constants.fixed["self.batch_size"])
        extents = (self.constants.fixed["self.batch_size"], *self.ensemble.shape)
        for dim, extent in zip(self.dims, extents, strict=True):
            self.enter(dim, Window(as_index(0), as_index(extent)))

    @property
    def dims(self) -> tuple[str, ...]:
        """The implicit loops, outermost first."""
        return (self.ensemble.batch_dim, *self.ensemble.dims)

    def forbidden_names(self) -> dict[str, str]:
        return {**dict.fromkeys(self.dims, "a dimension of the layer"), "self": "the neuron"}

    def shapes(self) -> dict[str, Any]:
        known: dict[str, Any] = {}
        for connection in self.ensemble.connections:
            windows = connection.windows or ()
            if all(window.extent is not None for window in windows):
                known[f"self.{connection.name}.shape"] = tuple(window.extent for window in windows)
            known[f"self.{connection.name}.ndim"] = len(windows)
        for name, declared in self.ensemble.declared_fields().items():
            known[f"self.{name}.shape"] = declared.shape
            known[f"self.{name}.ndim"] = len(declared.shape)
        return known

    def _connection(self, attribute: str) -> tuple[Connection, str] | None:
        """The connection behind ``inputs``, ``inputs1``, ``grad_inputs``, ``input``, … and the buffer's
        name."""
        gradient = attribute.startswith("grad_")
        plain = attribute.removeprefix("grad_")
        for connection in self.ensemble.connections:
            one = connection.name.replace("inputs", "input")
            if plain == connection.name or (plain == one and connection.one_to_one):
                name = repeated_sources(self.ensemble).get(connection.name, connection.name)
                return connection, f"grad_{name}" if gradient else name
        return None

    def _attribute(self, node: ast.expr) -> str:
        attribute = _self_attribute(node)
        if attribute is None:
            self.fail(
                node,
                f"{ast.unparse(node)} is no field",
                "fields are self.value, self.inputs, self.weights, …",
            )
        return attribute

    def windows_of(self, node: ast.expr) -> list[Window]:
        attribute = self._attribute(node)
        found = self._connection(attribute)
        if found:
            return [Window(as_index(0), window.length) for window in found[0].windows or ()]
        if attribute in self.ensemble.declared_fields():
            return extents_of(self.ensemble.declared_fields()[attribute].shape)
        self._no_field(node, attribute)

    def _no_field(self, node: ast.expr, attribute: str) -> NoReturn:
        if attribute.startswith(("input", "grad_input")):
            one = attribute.removeprefix("grad_") == "input" and self.ensemble.connections
            self.fail(
                node,
                f"self.{attribute}: {self.ensemble!r} has no such connection",
                "self.input needs a one-to-one connection; write self.inputs[…]"
                if one
                else "net.add_connections(source, ensemble, mapping)",
            )
        connected = [connection.name for connection in self.ensemble.connections]
        self.fail(
            node,
            f"{self.ensemble!r} has no field {attribute!r}",
            f"its fields are {', '.join([*self.specs, *connected])}",
        )

    def reference(self, node: ast.expr, indices: list[ast.expr] | None) -> ast.expr:
        attribute = self._attribute(node)
        found = self._connection(attribute)
        if found:
            connection, name = found
            if indices is None:
                if not connection.one_to_one:
                    self.fail(
                        node,
                        f"self.{attribute} is all that the neuron reads, not one element",
                        f"self.{attribute}[…], in a loop over eachindex(self.{attribute})",
                    )
                relative = [as_index(0)] * len(connection.shape)
            else:
                relative = self._indices(node, indices, len(connection.shape))
            return self._through(connection, name, node, relative)
        spec = self.specs.get(attribute)
        if spec is None:
            self._no_field(node, attribute)
        element = spec.shape[len(spec.dims) :] if spec.dims else spec.shape
        if spec.shape == (1,) and not spec.dims and indices is None:
            own = [as_index(0)]
        else:
            own = self._indices(node, indices or [], len(element))
            self.check_constant_subscripts(_written(node, indices), own, list(element))
        leading = [self.ranges[self.ensemble.batch_dim if dim == "n" else dim] for dim in spec.dims]
        return reference(attribute, [index.tree for index in (*leading, *own)])

    def _indices(self, node: ast.expr, indices: list[ast.expr], rank: int) -> list[Index]:
        if len(indices) != rank:
            self.fail(
                node, f"{ast.unparse(node)} has {rank} dimensions here and is given {len(indices)} subscripts"
            )
        return [self.index(index) for index in indices]

    def _through(self, connection: Connection, name: str, node: ast.expr, relative: list[Index]) -> ast.expr:
        """An element of the source: through the windows, then padding, clamping, and the view of its
        shape."""
        windows = connection.windows or ()
        self.check_constant_subscripts(node, relative, [window.extent for window in windows])
        conditions: list[ast.expr] = []
        positions = []
        for window, index, extent, pads in zip(
            windows, relative, connection.shape, connection.padding, strict=True
        ):
            position = window.start + index * window.step
            if connection.clamp:
                position = maximum(0, minimum(extent - 1, position))
            elif any(pads):
                conditions += _inside(position, extent)
            positions.append(as_index(position))
        if connection.reshape:
            positions = _reshaped(positions, connection.reshape, connection.source.shape)
        batch = self.ranges[self.ensemble.batch_dim]
        result = reference(name, [index.tree for index in (batch, *positions)])
        if conditions:
            setattr(result, GUARD, tuple(conditions))
        return result


def _written(node: ast.expr, indices: list[ast.expr] | None) -> ast.expr:
    """The reference as the user wrote it, for messages."""
    if not indices:
        return node
    index = indices[0] if len(indices) == 1 else ast.Tuple(indices, ast.Load())
    return ast.copy_location(ast.Subscript(node, index, ast.Load()), node)


def _inside(position: Index, extent: int) -> list[ast.expr]:
    """The comparisons that keep ``position`` in 0 … extent - 1; only those that can fail."""
    conditions = []
    free = Index(position.terms)  # the constant stands on the other side
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


class ArrayTranslator(Translator):
    """Bodies of ensembles: explicit loops over whole arrays, which are the method's arguments or
    ``self.<field>``."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        for name in self.body.parameters:
            if name not in self.buffers and name not in repeated_sources(self.ensemble):
                self.fail(
                    self.body.tree,
                    f"the argument {name!r} of {self.body.function.__qualname__} is no field of "
                    f"{self.ensemble!r}",
                    f"its fields are {', '.join(self.buffers)}",
                )

    def forbidden_names(self) -> dict[str, str]:
        return {**dict.fromkeys(self.body.parameters, "a field"), "self": "the ensemble"}

    def shapes(self) -> dict[str, Any]:
        known: dict[str, Any] = {}
        for name, buffer in self.buffers.items():
            for spelling in (name, f"self.{name}"):
                known[f"{spelling}.shape"] = buffer.shape
                known[f"{spelling}.ndim"] = len(buffer.shape)
        return known

    def _array(self, node: ast.expr) -> str:
        name = _self_attribute(node)
        if name is None and isinstance(node, ast.Name) and node.id in self.body.parameters:
            name = node.id
        if name is None and isinstance(node, ast.Name) and node.id in self.buffers:
            self.fail(
                node,
                f"{node.id} is no argument of {self.body.function.__qualname__}",
                f"add it: def {self.body.tree.name}(self, …, {node.id})",
            )
        name = repeated_sources(self.ensemble).get(name or "", name)
        if name is None or name not in self.buffers:
            self.fail(
                node,
                f"{ast.unparse(node)} is no field of {self.ensemble!r}",
                f"its fields are {', '.join(self.buffers)}",
            )
        return name

    def windows_of(self, node: ast.expr) -> list[Window]:
        return extents_of(self.buffers[self._array(node)].shape)

    def reference(self, node: ast.expr, indices: list[ast.expr] | None) -> ast.expr:
        name = self._array(node)
        shape = self.buffers[name].shape
        if indices is None:
            self.fail(
                node,
                f"{ast.unparse(node)} is a whole array; bodies compute single elements",
                f"write {ast.unparse(node)}[…]",
            )
        if len(indices) != len(shape):
            self.fail(
                node, f"{name} has {len(shape)} dimensions {shape} and is given {len(indices)} subscripts"
            )
        trees: list[ast.expr] = []
        for position, index in enumerate(indices):
            indirect = self._indirect(index)
            if indirect is not None:
                trees.append(indirect)
                continue
            affine = self.index(index)
            written = _written(node, indices)
            self.check_constant_subscripts(written, [affine], [shape[position]])
            trees.append(affine.tree)
        return reference(name, trees)

    def _indirect(self, index: ast.expr) -> ast.expr | None:
        """An element of an integer array as a subscript (the one indirection that there is)."""
        if isinstance(index, ast.Subscript):
            found = self.element(index)
            if (
                isinstance(found, ast.Subscript)
                and isinstance(found.value, ast.Name)
                and (self.buffers[found.value.id].dtype == "int32")
            ):
                return found
        return None
