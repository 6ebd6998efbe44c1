"""Fields from the attributes of neuron instances (the thesis' object array of neurons).

An array is stored once for each *distinct* array object: a dimension along which all neurons hold the same
object shares it (convolution weights: one array for each filter). This looks at every neuron, so it costs
what the object array costs; declarations (``Param`` and its kin) cost nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from inspect import getattr_static
from typing import Any

import numpy as np

from latte.model.body import Body
from latte.model.checks import is_number, masked
from latte.model.neuron import RESERVED, Constant, Declaration, Field, Neuron, Param, State, given, zeros
from latte.model.phases import PhaseMethods
from latte.model.source_location import user_location
from swirl.errors import DeclarationError
from swirl.ir.trees import nodes

# Attributes that stand for the connections, not for storage.
CONNECTION_NAMES = ("value", "grad", "input", "inputs", "grad_input", "grad_inputs")


def check_neurons(neurons: np.ndarray) -> None:
    """Raise :class:`DeclarationError` unless every element is a neuron, all of one class."""
    if neurons.size == 0 or neurons.ndim == 0:
        raise DeclarationError(
            f"an ensemble needs neurons; the array has shape {neurons.shape}", location=user_location()
        )
    kinds = {type(neuron) for neuron in neurons.flat}
    wrong = [kind for kind in kinds if not issubclass(kind, Neuron)]
    if wrong:
        raise DeclarationError(
            f"the array of neurons holds {wrong[0].__name__} objects",
            location=user_location(),
            way_out="fill it: neurons[:] = MyNeuron()",
        )
    if len(kinds) > 1:
        names = sorted(kind.__name__ for kind in kinds)
        raise DeclarationError(
            f"the array of neurons mixes the classes {', '.join(names)}",
            location=user_location(),
            way_out="one ensemble holds one class of neurons",
        )


def class_of(neurons: object) -> type[Neuron] | None:
    """The class of an array of neurons, of a neuron, or itself; None for anything else."""
    found = neurons.flat[0] if isinstance(neurons, np.ndarray) else neurons
    kind = found if isinstance(found, type) else type(found)
    return kind if issubclass(kind, Neuron) else None


def constant_arrays(
    bodies: Sequence[Body], owners: Sequence[object], declared: Collection[str], loops: Collection[str]
) -> dict[str, Declaration]:
    """Declarations for the NumPy arrays that bodies read: by name, or as ``self.name``.

    Args:
        bodies: of the phases.
        owners: the ensemble, and the class of its neurons: what ``self`` is.
        declared: names of the other fields.
        loops: names of the implicit loops.

    Raises:
        BodyError: an array that holds no numbers, or has the name of a field.
    """
    hidden = {*declared, *(f"grad_{name}" for name in declared), *RESERVED}
    found: dict[str, Declaration] = {}
    array: Any
    for body in bodies:
        for node in nodes(body.tree):
            match node:
                case ast.Name(name, ast.Load()) if name in body.arrays and name not in loops:
                    array = body.arrays[name]
                    if name in hidden:
                        body.fail(node, f"the array {name} has the name of a field", "give it another name")
                case ast.Attribute(ast.Name("self"), name, ast.Load()) if name not in hidden:
                    array = next((a for o in owners if (a := getattr_static(o, name, None)) is not None), None)
                case _:
                    continue
            if isinstance(array, np.ndarray) and name not in found:
                found[name] = _constant_array(body, node, name, array)
    return found


def _constant_array(body: Body, node: ast.expr, name: str, array: np.ndarray) -> Declaration:
    if array.dtype.kind not in "biuf" or not array.size or not array.ndim:
        body.fail(node, f"{name} is an array of {array.dtype}, of shape {array.shape}: bodies compute with numbers")
    if (wrong := masked(array)) is not None:
        body.fail(node, f"{name}: {wrong}")
    if array.dtype.kind in "iu" and not -(2**31) <= array.min() <= array.max() < 2**31:
        body.fail(node, f"{name} holds integers of more than 32 bits", f"{name}.astype(np.float32)")
    below = int(array.max()) + 1 if array.dtype.kind in "iu" and array.min() >= 0 else None
    return Constant(shape=array.shape, init=given(array), dtype=_dtype(array), below=below)


def neuron_class(neurons: object, layer: str, alone: bool, location: str | None) -> type[Neuron]:
    """The class of a layer's neurons; :class:`Neuron` itself where it has none.

    Args:
        neurons: as they were given.
        layer: the layer's class, for messages.
        alone: whether it may be without neurons.
        location: of the layer.

    Raises:
        DeclarationError: they are missing, or something else.
    """
    if neurons is None and alone:
        return Neuron
    if neurons is None:
        raise DeclarationError(
            f"{layer} has neither neurons nor a forward of its own",
            location=location,
            way_out="Ensemble(MyNeuron, shape=…), or a subclass of Ensemble that defines "
            "forward(self, inputs, value, …)",
        )
    found = class_of(neurons)
    if found is None:
        raise DeclarationError(
            f"neurons must be a Neuron class, an instance or an array of them, not {neurons!r}", location=location
        )
    return found


def kind_of(ensemble_class: type, neurons: type[Neuron]) -> str:
    """The kind of a layer by the name of its class, or, of a class for any neurons, of theirs: ``BatchNormEnsemble`` →
    ``batch_norm``."""
    owner = neurons if vars(ensemble_class).get("generic", False) else ensemble_class
    name = re.sub(r"(Ensemble|Neuron|Layer)$", "", owner.__name__) or owner.__name__
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def stored_names(tree: ast.AST) -> set[str]:
    """Names (``x``, ``self.x``) that the statements in ``tree`` store to, whole or by element."""
    names = set()
    for node in nodes(tree):
        if isinstance(getattr(node, "ctx", None), ast.Store):
            target: Any = node.value if isinstance(node, ast.Subscript) else node
            if isinstance(target, ast.Attribute):
                names.add(target.attr)
            elif isinstance(target, ast.Name):
                names.add(target.id)
    return names


def fields(
    neurons: type[Neuron] | Neuron | np.ndarray | None, dims: Sequence[str], batch_dim: str, phases: PhaseMethods
) -> dict[str, Declaration]:
    """Declarations for the attributes of neurons; none where there are no instances.

    Args:
        neurons: as given to an ensemble.
        dims: names of its dimensions.
        batch_dim: name of the batch dimension.
        phases: that the user wrote.
    """
    if isinstance(neurons, np.ndarray):
        first = neurons.flat[0]
        neurons = first if all(neuron is first for neuron in neurons.flat) else neurons
    if isinstance(neurons, Neuron):
        # One instance for all: as an array of one neuron whose dimensions share everything.
        alone = np.empty((1,) * len(dims), dtype=object)
        alone[...] = neurons
        neurons = alone
    if not isinstance(neurons, np.ndarray):
        return {}
    bodies = phases.bodies()
    written = set().union(*(stored_names(body.tree) for body in bodies))
    parameters = {name for body in bodies for name in body.parameters} if phases.explicit else set()
    return _declarations(neurons, dims, batch_dim, written, parameters)


def _declarations(
    neurons: np.ndarray,
    dims: Sequence[str],
    batch_dim: str,
    written: Collection[str],
    parameters: Collection[str],
) -> dict[str, Declaration]:
    """Declarations for the attributes of ``neurons``.

    Args:
        neurons: object array, one class.
        dims: names of its dimensions.
        batch_dim: name of the batch dimension.
        written: names that some body stores to.
        parameters: names that an ensemble-level body takes as arguments.
    """
    first: Neuron = neurons.flat[0]
    attributes = [name for name in vars(first) if name not in CONNECTION_NAMES]
    arrays = {name for name in attributes if isinstance(getattr(first, name), np.ndarray)}
    result: dict[str, Declaration] = {}
    for name in attributes:
        value = getattr(first, name)
        batch = (batch_dim,) if name in first.batch_fields else ()
        if name in arrays:
            if name.startswith("grad_") and name.removeprefix("grad_") in arrays:
                continue  # the gradient of a parameter: made with it
            result[name] = _array_field(neurons, name, dims, batch, written, f"grad_{name}" in arrays)
        elif is_number(value):
            values = np.array([getattr(neuron, name) for neuron in neurons.flat]).reshape(neurons.shape)
            if name in written or name in parameters or batch:
                result[name] = Field(*batch, *dims, dtype=_dtype(values))
            elif (values != values.flat[0]).any():
                result[name] = State(*dims, init=given(values), dtype=_dtype(values))
    return result


def _array_field(
    neurons: np.ndarray,
    name: str,
    dims: Sequence[str],
    batch: tuple[str, ...],
    written: Collection[str],
    has_gradient: bool,
) -> Declaration:
    identities = np.array([id(getattr(neuron, name)) for neuron in neurons.flat]).reshape(neurons.shape)
    own = [d for d in range(neurons.ndim) if (identities != identities.take([0], axis=d)).any()]
    some = tuple(slice(None) if d in own else 0 for d in range(neurons.ndim))
    holders = np.array(neurons[some], dtype=object)
    array = getattr(neurons.flat[0], name)
    leading = tuple(dims[d] for d in own)
    if name in written and not has_gradient:
        return Field(*batch, *leading, shape=array.shape, dtype=_dtype(array))
    held = [getattr(neuron, name) for neuron in holders.flat]
    if (wrong := masked(held)) is not None:
        raise DeclarationError(f"{name} of a neuron: {wrong}", location=user_location())
    values = np.stack(held).reshape(*holders.shape, *array.shape)
    kind = Param if has_gradient else State
    return kind(*leading, shape=array.shape, init=given(values) if values.any() else zeros, dtype=_dtype(array))


def _dtype(array: np.ndarray) -> str:
    return {"b": "bool", "i": "int32", "u": "int32"}.get(array.dtype.kind, "float32")
