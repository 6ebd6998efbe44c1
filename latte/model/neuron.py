"""Neurons and their fields.

A neuron is a class whose methods say what one element of a layer computes. Their source is read, never run::

    class ConvNeuron(Neuron):
        weights = Param("k", shape=(C, KY, KX), init=uniform_fan_in)   # one for each output channel k
        bias = Param("k", shape=(1,), init=zeros)

        def forward(self):
            self.value = self.bias[0]
            for c, ky, kx in eachindex(self.inputs):
                self.value += self.weights[c, ky, kx] * self.inputs[c, ky, kx]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from latte.model.checks import check_below, check_shape, is_size, masked, misfit, size_limit, takes
from latte.model.source_location import Located, own_location, user_location
from latte.model.words import eachindex
from swirl.errors import DeclarationError, LatteError
from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.hints import is_name
from swirl.ir.spelling import as_in_sources

Initialiser = Callable[[tuple[int, ...], int, np.random.Generator], np.ndarray]
"""``init(shape, fan_in, generator)`` → array of ``shape``; ``fan_in`` is the number of weights of one
neuron."""

RESERVED = frozenset(
    {"value", "grad", "input", "inputs", "grad_input", "grad_inputs", "label", "training", "batch_size", "shape"}
    | {"ndim", "name", "kind", "net", "dims", "seed", "step", "accumulate"}
)
"""Names that ``self.name`` already uses."""


def why_no_name(name: str, dims: Sequence[str], fields: Collection[str] = ()) -> str | None:
    """Why neither a field nor a source can have this name beside these dimensions and fields; None if one can."""
    if name in dims:
        return "it names a dimension, and with it a loop"
    if name in RESERVED:
        return f"the name has another meaning, as {', '.join(sorted(RESERVED))} have"
    if name.startswith("grad_") and name.removeprefix("grad_") in fields:
        return f"the gradient of {name.removeprefix('grad_')} has it"
    taken = not is_name(name) or re.fullmatch(r"(grad_)?inputs?\d*", name)
    return "the name has another meaning" if taken else None


# --- initialisers -------------------------------------------------------------------------------------------
def zeros(shape: tuple[int, ...], fan_in: int, generator: np.random.Generator) -> np.ndarray:
    """All elements 0."""
    return np.zeros(shape, np.float32)


def ones(shape: tuple[int, ...], fan_in: int, generator: np.random.Generator) -> np.ndarray:
    """All elements 1."""
    return np.ones(shape, np.float32)


def uniform_fan_in(shape: tuple[int, ...], fan_in: int, generator: np.random.Generator) -> np.ndarray:
    """Uniform in ±sqrt(3 / fan_in): variance 1 / fan_in."""
    bound = np.sqrt(3.0 / fan_in)
    return generator.uniform(-bound, bound, shape).astype(np.float32)


def normal_fan_in(shape: tuple[int, ...], fan_in: int, generator: np.random.Generator) -> np.ndarray:
    """Normal with variance 2 / fan_in (for layers after a ReLU)."""
    return (generator.standard_normal(shape) * np.sqrt(2.0 / fan_in)).astype(np.float32)


def uniform(bound: float) -> Initialiser:
    """Uniform in ±``bound``."""
    return lambda shape, fan_in, generator: generator.uniform(-bound, bound, shape)


def normal(deviation: float) -> Initialiser:
    """Normal with mean 0 and this standard deviation."""
    return lambda shape, fan_in, generator: generator.normal(0.0, deviation, shape)


def constant(value: float) -> Initialiser:
    """All elements ``value``."""

    def init(shape: tuple[int, ...], fan_in: int, generator: np.random.Generator) -> np.ndarray:
        return np.full(shape, value)

    return init


def given(values: np.ndarray | Sequence[Any]) -> Initialiser:
    """The elements of an array (or sequence), which must have the field's shape.

    Raises:
        DeclarationError: they are not an array, as rows of different lengths.
    """
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise DeclarationError(f"given: {error}", location=user_location()) from error
    if (wrong := masked(values)) is not None:
        raise DeclarationError(f"given: {wrong}", location=user_location())

    def init(shape: tuple[int, ...], fan_in: int, generator: np.random.Generator) -> np.ndarray:
        if array.shape != shape:
            raise DeclarationError(f"an initial array of shape {array.shape} was given for a field of shape {shape}")
        return np.array(array)

    return init


# --- declarations -------------------------------------------------------------------------------------------
@dataclass(frozen=True, init=False)
class Declaration:
    """A field of an ensemble: one array of ``shape`` for each index of the named dimensions ``dims``.

    Args:
        dims: names of dimensions of the ensemble (``"n"``, the batch, among them); the field's logical shape
            is their extents followed by ``shape``.
        shape: extents of one neuron's array; ``()`` is a number.
        init: initial values, see :data:`Initialiser`.
        dtype: ``float32``, ``int32`` or ``bool``.
        fan_in: what ``init`` is told; by default the number of elements in ``shape``.
        below: of an ``int32`` field: its numbers are 0, 1, … up to the one before, so that they may be subscripts.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    init: Initialiser
    dtype: str
    fan_in: int | None
    below: int | None
    role: ClassVar[str] = "value"

    if TYPE_CHECKING:  # in a body, a field is an array or a number

        def __set__(self, instance: object, value: Any) -> None: ...

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None or isinstance(instance, Neuron):
            return self
        raise AttributeError  # asks the ensemble, which knows the field as it is in its net

    def __init__(
        self,
        *dims: str,
        shape: int | tuple[int, ...] = (),
        init: Initialiser = zeros,
        dtype: str = "float32",
        fan_in: int | None = None,
        below: int | None = None,
    ):
        kind = type(self).__name__
        with Located():
            extents = () if isinstance(shape, tuple) and not shape else check_shape(shape)
            if not all(isinstance(dim, str) for dim in dims):
                raise DeclarationError(
                    f"{kind}({', '.join(map(repr, dims))}): dimensions are given by name",
                    way_out=f"{kind}('k', shape=(3, 3)) is one 3 × 3 array for each k",
                )
            if not isinstance(dtype, str) or dtype not in DTYPES:
                way_out = f"one of {', '.join(DTYPES)}"
                raise DeclarationError(f"{kind}: unknown dtype {dtype!r}", way_out=way_out)
            if not callable(init):
                raise DeclarationError(
                    f"{kind}: init must be a function, not {init!r}",
                    way_out="zeros, ones, uniform_fan_in, constant(0.5), given(array)",
                )
            if not takes(init, 3):
                raise DeclarationError(
                    f"{kind}: init must take (shape, fan_in, generator), and {init!r} does not",
                    way_out="lambda shape, fan_in, generator: generator.normal(0, 0.1, shape)",
                )
            if fan_in is not None and not is_size(fan_in):
                raise DeclarationError(f"{kind}: fan_in must be a positive integer{size_limit(fan_in)}, not {fan_in!r}")
            check_below(below, dtype, kind)
            if self.role == "state" and "n" in dims[1:]:  # batches of all sizes share the first rows of an array
                raise DeclarationError(
                    f"{kind}({', '.join(map(repr, dims))}): the batch is the first dimension of a state",
                    way_out=f"{kind}({', '.join(map(repr, ['n', *(dim for dim in dims if dim != 'n')]))})",
                )
        checked = {"dims": as_in_sources(dims), "shape": tuple(map(int, extents)), "init": init, "dtype": dtype}
        for name, value in {**checked, "fan_in": fan_in, "below": below}.items():
            object.__setattr__(self, name, value)

    def storage(self, layer: str, name: str) -> str:
        """Where the field ``name`` of a layer is kept: a name that is unique in the net."""
        return f"{layer}.{name}"


class Param(Declaration):
    """A field that training adjusts; it gets a gradient, ``grad_<name>``."""

    role = "param"


class State(Declaration):
    """A field that lives from one step to the next without being trained: a running mean."""

    role = "state"


class Constant(Declaration):
    """A field of numbers that the declaration gives (``init=given(array)``), or a NumPy array of the surrounding Python
    that a body reads: neither trained nor saved, and no phase changes it."""

    role = "constant"


class Field(Declaration):
    """A field that a phase computes besides ``value``: a mask, a batch mean. In a neuron without dims and shape: one
    element for each neuron and item of the batch. What accumulates into it starts at zero each time."""

    role = "value"


@dataclass(frozen=True)
class FieldSpec:
    """A field of an ensemble for a given batch size: what the runtime allocates.

    Args:
        name, storage: inside bodies (``weights``), and unique in the net (``conv1.weights``).
        shape: logical, ``dims`` first.
        dtype: ``float32``, ``int32`` or ``bool``.
        role: a :class:`swirl.ir.buffers.Buffer` role.
        dims: the leading dimensions, by name.
        init: initial values.
        fan_in: for ``init``.
        below: where it is not None, the numbers are from 0 to the one before.
        per_item: whether the first dimension is the batch, if it is a value.
        given: whether whoever runs the net brings the memory.
    """

    name: str
    storage: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    role: str = "value"
    dims: tuple[str, ...] = ()
    init: Initialiser = zeros
    fan_in: int = 1
    below: int | None = None
    per_item: bool = True
    given: bool = False

    @property
    def buffer(self) -> Buffer:
        """The field as nests see it."""
        made = Buffer(self.storage, self.shape, self.dtype, self.role, per_item=self.per_item, given=self.given)
        return made.with_batch_first()

    @property
    def owner(self) -> str:
        """The layer whose storage it is: of a shared parameter, another one."""
        return self.storage.split(".")[0]

    @property
    def gradient(self) -> FieldSpec:
        """The field for a parameter's gradient."""
        storage = f"{self.owner}.grad_{self.storage.split('.')[1]}"
        return FieldSpec(f"grad_{self.name}", storage, self.shape, self.dtype, "param_grad", self.dims)

    def initial(self, generator: np.random.Generator) -> np.ndarray:
        """A new array of initial values.

        Raises:
            DeclarationError: if the initialiser fails, or returns something else, or numbers out of range.
        """
        location = own_location(self.init)
        try:
            made = self.init(self.shape, self.fan_in, generator)
        except LatteError:
            raise
        except Exception as error:  # whatever a function of the user's raises
            message = f"{self.storage}: init raised {type(error).__name__}: {error}"
            raise DeclarationError(message, location=location) from error
        try:
            values = np.asarray(made)
            if values.dtype.kind not in "fiub":
                raise TypeError("not real numbers")
            found = f"an array of shape {values.shape}" if values.shape else repr(made)
        except (TypeError, ValueError):  # not an array
            values, found = np.zeros(0), repr(made)
        if values.shape != self.shape:
            raise DeclarationError(
                f"{self.storage}: init returned {found}, not an array of shape {self.shape}", location=location
            )
        if (wrong := masked(made) or misfit(values, self.dtype, self.below)) is not None:
            raise DeclarationError(f"{self.storage}: of what init returned, {wrong}", location=location)
        return np.ascontiguousarray(values, DTYPES[self.dtype])


def class_fields(owner: type) -> dict[str, Declaration]:
    """The fields that a class and its base classes declare."""
    found: dict[str, Declaration] = {}
    for base in reversed(owner.__mro__):
        found |= {name: value for name, value in vars(base).items() if isinstance(value, Declaration)}
    return found


def make_spec(name: str, owner: str, declared: Declaration, extents: dict[str, int]) -> FieldSpec:
    """The field ``name`` of the ensemble ``owner``, whose dimensions have ``extents``.

    Raises:
        DeclarationError: for a dimension that the ensemble does not have.
    """
    unknown = [dim for dim in declared.dims if dim not in extents]
    if unknown:
        raise DeclarationError(
            f"the field {name!r} of {owner} names the dimension {unknown[0]!r}, which it does not have",
            location=user_location(),
            way_out=f"its dimensions are {', '.join(map(repr, extents))}: Ensemble(…, dims=(…)) names them",
        )
    return FieldSpec(
        name,
        declared.storage(owner, name),
        (*(extents[dim] for dim in declared.dims), *declared.shape) or (1,),
        declared.dtype,
        declared.role,
        declared.dims,
        declared.init,
        prod(declared.shape) if declared.fan_in is None else declared.fan_in,
        declared.below,
        per_item=declared.dims[:1] in (("n",), tuple(extents)[:1]),  # the batch, as the ensemble names it
    )


# --- neurons ------------------------------------------------------------------------------------------------
class Neuron:
    """Base class of neurons. Subclasses define ``forward``, and ``backward`` or ``update`` (also spelled
    ``update_internal``) to replace the derived ones.

    Fields are declared in the class (:class:`Param`, :class:`State`, :class:`Field`), or, in the old style,
    are the attributes of instances: an array is one field, stored once for each *distinct* array object; a
    number is one element per neuron where a body writes it, else a constant.
    """

    batch_fields: ClassVar[list[str]] = ["value", "grad", "inputs", "grad_inputs"]
    zero_init_fields: ClassVar[list[str]] = ["value", "grad"]
    value: Any
    grad: Any
    inputs: Any
    grad_inputs: Any
    input: Any
    grad_input: Any
    training: bool

    def __init__(self) -> None:
        self.value = 0.0
        self.grad = 0.0


class DataNeuron(Neuron):
    """A neuron whose value is set from outside."""

    def forward(self) -> None:
        pass


class WeightedNeuron(Neuron):
    """``value = Σ inputs · weights``; the weights have the shape of the inputs that a neuron reads.

    Args:
        weights: array; neurons that hold the same object share it.
        grad_weights: array for its gradient, of the same shape.
    """

    def __init__(self, weights: np.ndarray, grad_weights: np.ndarray):
        super().__init__()
        self.inputs = []
        self.grad_inputs = []
        self.weights: Any = weights
        self.grad_weights: Any = grad_weights

    def forward(self) -> None:
        for i in eachindex(self.inputs):
            self.value += self.inputs[i] * self.weights[i]


class BiasNeuron(Neuron):
    """``value = input + bias[0]``.

    Args:
        bias: array of one element; neurons that hold the same object share it.
        grad_bias: array of one element for its gradient.
    """

    def __init__(self, bias: np.ndarray, grad_bias: np.ndarray):
        super().__init__()
        self.bias: Any = bias
        self.grad_bias: Any = grad_bias

    def forward(self) -> None:
        self.value = self.input + self.bias[0]
