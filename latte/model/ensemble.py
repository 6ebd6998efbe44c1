"""Ensembles: arrays of one neuron, or explicit loops over whole arrays; and the connections between them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from latte.model import instances
from latte.model.body import MISSING, Body, read_body
from latte.model.checks import PHASES, check_phase, check_shape
from latte.model.commands import CommandRecorder, unknown_attribute
from latte.model.connection import Connection
from latte.model.neuron import Declaration, Field, FieldSpec, Neuron, make_spec
from latte.model.place import place_of, user_place
from latte.runtime.accessors import accessor
from swirl.errors import CommandError, DeclarationError
from swirl.ir.buffers import Buffer
from swirl.ir.hints import is_name
from swirl.recorded import Recorded
from swirl.transforms import COMMANDS

if TYPE_CHECKING:
    from latte.net import Net

# The run-time scalars that random numbers depend on.
SCALARS = {
    "seed": Buffer("net.seed", (1,), "int32", "scalar"),
    "step": Buffer("net.step", (1,), "int32", "scalar"),
}
RESERVED = {
    "value",
    "grad",
    "input",
    "inputs",
    "grad_input",
    "grad_inputs",
    "label",
    "training",
    "batch_size",
    "shape",
    "ndim",
    "name",
    "kind",
    "net",
    "dims",
    "seed",
    "step",
    "accumulate",
}


class Ensemble(CommandRecorder):
    """A layer: an array of neurons, or (subclasses with a ``forward`` of their own) loops over whole arrays.

    Args:
        neurons: a :class:`Neuron` class or instance, shared by all elements, with ``shape``; or the thesis'
            object array of instances, whose shape it takes; None for a subclass with explicit loops.
        shape: extents without the batch.
        dims: a name for each dimension, which become the loops' names; the batch is ``n``. Without names the
            loops are called ``_neuron_index_0`` (batch), ``_neuron_index_1``, ….
        kind: what recipes are chosen by; by default from the name of the class (``BatchNormEnsemble`` →
            ``batch_norm``).
        name: unique in the net; by default the kind and a number (``conv1``).

    Raises:
        DeclarationError: for shapes, names or fields that do not fit.
    """

    batched: ClassVar[bool] = True
    """Whether ``value`` has the batch as its first dimension (a loss has one value for the whole batch)."""
    class_labels: ClassVar[bool] = False
    """Whether ``label`` holds class numbers, 0 … number of elements of ``inputs`` - 1: then data are checked for it."""
    kind: str = ""
    training: bool
    """In a body: whether this is the training phase (a constant when compiled)."""

    def __init__(
        self,
        neurons: type[Neuron] | Neuron | np.ndarray | None = None,
        shape: int | Sequence[int] | None = None,
        dims: Sequence[str] | None = None,
        *,
        kind: str | None = None,
        name: str | None = None,
    ):
        self.net: Net | None = None
        self.commands: list[Recorded] = []
        self.compiled = False
        self.place = user_place()
        self.neurons = neurons
        if isinstance(neurons, np.ndarray):
            instances.check_neurons(neurons)
            if shape is not None and check_shape(shape) != neurons.shape:
                raise DeclarationError(
                    f"shape {shape} is not the shape {neurons.shape} of the neurons", place=self.place
                )
            shape = neurons.shape
        if shape is None:
            way_out = "Ensemble(MyNeuron, shape=(8, 14, 14)), extents without the batch"
            raise DeclarationError("an ensemble needs a shape", place=self.place, way_out=way_out)
        self.shape: tuple[int, ...] = check_shape(shape, self.place)
        self.neuron_class = self._neuron_class()
        self._check_phases()
        self.kind = kind or self.kind or _kind_of(type(self), self.neuron_class)
        self.name = name or ""
        self.dims, self.batch_dim = self._check_dims(dims)
        self.connections: list[Connection] = []
        self._added_fields: dict[str, Declaration] = {}
        self._declared: dict[str, Declaration] | None = None

    def _neuron_class(self) -> type[Neuron]:
        neurons = self.neurons
        if neurons is None:
            if self.explicit or isinstance(self, (DataEnsemble, LossEnsemble)):
                return Neuron
            raise DeclarationError(
                f"{type(self).__name__} has neither neurons nor a forward of its own",
                place=self.place,
                way_out="Ensemble(MyNeuron, shape=…), or a subclass of Ensemble that defines "
                "forward(self, inputs, value, …)",
            )
        if isinstance(neurons, np.ndarray):
            return type(neurons.flat[0])
        if isinstance(neurons, Neuron):
            return type(neurons)
        if isinstance(neurons, type) and issubclass(neurons, Neuron):
            return neurons
        raise DeclarationError(f"neurons must be a Neuron class, an instance or an array of them, not {neurons!r}",
                               place=self.place)  # fmt: skip

    def _check_phases(self) -> None:
        """Refuse a layer that computes nothing, and a method whose name is nearly that of a phase.

        Nothing else could call such a method: a body is read, not run.
        """
        if isinstance(self, DataEnsemble):
            return
        has_neurons = self.neuron_class is not Neuron
        owner = self.neuron_class if has_neurons and not self.explicit else type(self)
        methods = {
            name: method
            for base in reversed(owner.__mro__)
            for name, method in vars(base).items()
            if isinstance(method, FunctionType) and not hasattr(Ensemble, name) and not hasattr(Neuron, name)
        }
        for phase, spellings in PHASES.items():
            if self.has_phase(phase):
                continue
            for name, method in methods.items():
                if get_close_matches(name.lower(), spellings, 1, cutoff=0.8):
                    raise DeclarationError(
                        f"{owner.__name__} has no {phase}, but {name}, which nothing would call",
                        place=place_of(method.__code__),
                        way_out=f"did you mean {spellings[0]!r}?",
                    )
        if not self.has_phase("forward"):
            raise DeclarationError(
                f"{owner.__name__} has no forward, so that its value would never be computed",
                place=self.place,
                way_out="def forward(self): self.value = …",
            )

    def _check_dims(self, dims: Sequence[str] | None) -> tuple[tuple[str, ...], str]:
        if dims is None:
            return tuple(f"_neuron_index_{d + 1}" for d in range(self.ndim)), "_neuron_index_0"
        names = tuple(dims)
        if len(names) != self.ndim or len({*names, "n"}) != len(names) + 1:
            raise DeclarationError(f"dims {names} must be {self.ndim} different names, as many as {self.shape} has",
                                   place=self.place, way_out="the batch, n, is not among them")  # fmt: skip
        for name in names:
            if not is_name(name) or name in RESERVED:
                raise DeclarationError(f"{name!r} cannot name a dimension", place=self.place)
        return names, "n"

    def __getattr__(self, name: str) -> Any:
        """Commands (``conv1.parallelize(…)``) and accessors (``conv1.get_value()``)."""
        if name.startswith("_"):
            raise AttributeError(name)
        found = accessor(self, name)
        if found is not None:
            return found
        if name in COMMANDS:
            return self.command(name)
        raise unknown_attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Attributes as usual, but a field has a setter: an attribute of that name would go unseen."""
        if self.__dict__.get("net") is not None and name not in self.__dict__ and name in self.fields():
            raise CommandError(f"{name} of {self!r} is data that the compiled net holds, not an attribute",
                               place=user_place(), way_out=f"set_{name}(array), once the net is compiled")  # fmt: skip
        super().__setattr__(name, value)

    # --- properties -----------------------------------------------------------------------------------------
    @property
    def ndim(self) -> int:
        """Number of dimensions, without the batch."""
        return len(self.shape)

    def __len__(self) -> int:
        return math.prod(self.shape)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or self.kind} {self.shape}>"

    @property
    def explicit(self) -> bool:
        """Whether the bodies have explicit loops over whole arrays (ensemble level)."""
        return self._method(type(self), "forward") is not None

    @property
    def position(self) -> int:
        """Its place in the net's order of construction: the stream of its random numbers."""
        return self._net.ensembles.index(self)

    @property
    def _net(self) -> Net:
        if self.net is None:
            raise DeclarationError(
                f"{self!r} belongs to no net yet", place=self.place, way_out="net.add_ensemble(ensemble)"
            )
        return self.net

    # --- bodies ---------------------------------------------------------------------------------------------
    @staticmethod
    def _method(owner: type, phase: str) -> Callable[..., Any] | None:
        for name in PHASES[phase]:
            method = getattr(owner, name, None)
            if isinstance(method, FunctionType):
                return method
        return None

    def has_phase(self, phase: str) -> bool:
        """Whether the user wrote this phase (``forward``, ``backward`` or ``update``)."""
        return self._phase_method(phase) is not None

    def phase_is_explicit(self, phase: str) -> bool:
        """Whether this phase has explicit loops over whole arrays (ensemble level)."""
        return self._method(type(self), check_phase(phase)) is not None

    def _phase_method(self, phase: str) -> Callable[..., Any] | None:
        phase = check_phase(phase)
        return self._method(type(self), phase) or (
            None if self.explicit else self._method(self.neuron_class, phase)
        )

    def body(self, phase: str) -> Body:
        """The source of a phase that the user wrote.

        Raises:
            DeclarationError: if nobody wrote it.
            BodyError: if there is no source.
        """
        method = self._phase_method(phase)
        if method is None:
            raise DeclarationError(f"{self!r} has no {phase} of its own", place=self.place)
        return read_body(method)

    def attribute(self, name: str) -> Any:
        """The number, bool or tuple that ``self.name`` stands for in a body, else ``MISSING``."""
        if name in instances.CONNECTION_NAMES or name in self.declared_fields():
            return MISSING
        prototype = self.neurons.flat[0] if isinstance(self.neurons, np.ndarray) else self.neurons
        for owner in (self, prototype):
            value = getattr(owner, name, MISSING) if owner is not None else MISSING
            if instances.is_number(value) or isinstance(value, tuple):
                return value
        return MISSING

    # --- fields ---------------------------------------------------------------------------------------------
    def add_field(self, name: str, declared: Declaration) -> None:
        """Declare a field (beside those in the class).

        Raises:
            DeclarationError: if the name is taken.
        """
        if name in self.declared_fields():
            raise DeclarationError(f"{self!r} has a field {name!r} already", place=user_place())
        self._check_field(name)
        self._added_fields[name] = declared
        self._declared = None

    def declared_fields(self) -> dict[str, Declaration]:
        """Declarations by name: of the class, of its neurons, and added ones."""
        if self._declared is None:
            found: dict[str, Declaration] = {}
            for owner in (self.neuron_class, type(self)):
                for base in reversed(owner.__mro__):
                    found |= {
                        name: value for name, value in vars(base).items() if isinstance(value, Declaration)
                    }
            found |= self._instance_fields() | self._added_fields
            for name in found:
                self._check_field(name)
            # A field of a neuron without dims and shape: one element for each neuron and item.
            everything = (self.batch_dim, *self.dims)
            for name, declared in found.items():
                if type(declared) is Field and not declared.dims and not declared.shape and not self.explicit:
                    found[name] = Field(*everything, init=declared.init, dtype=declared.dtype)
            self._declared = found
        return self._declared

    def _instance_fields(self) -> dict[str, Declaration]:
        neurons = self.neurons
        if isinstance(neurons, np.ndarray):
            first = neurons.flat[0]
            neurons = first if all(neuron is first for neuron in neurons.flat) else neurons
        if isinstance(neurons, Neuron):
            # One instance for all: as an array of one neuron whose dimensions share everything.
            alone = np.empty((1,) * self.ndim, dtype=object)
            alone[...] = neurons
            neurons = alone
        if not isinstance(neurons, np.ndarray):
            return {}
        bodies = [self.body(phase) for phase in PHASES if self.has_phase(phase)]
        written = set().union(*(instances.stored_names(body.tree) for body in bodies))
        parameters = {name for body in bodies for name in body.parameters} if self.explicit else set()
        return instances.declarations(neurons, self.dims, self.batch_dim, written, parameters)

    def _check_field(self, name: str) -> None:
        taken = name in RESERVED or name in (*self.dims, self.batch_dim)
        if taken or not is_name(name) or re.fullmatch(r"(grad_)?inputs?\d*", name):
            raise DeclarationError(
                f"{name!r} cannot name a field of {self!r}: the name has another meaning", place=self.place
            )

    def fields(self, batch_size: int | None = None) -> dict[str, FieldSpec]:
        """The ensemble's own storage: ``value``, ``grad``, declared fields, ``grad_<parameter>``.

        Args:
            batch_size: the net's by default; only value-like fields depend on it.

        Raises:
            DeclarationError: if the ensemble is in no net, or a field names an unknown dimension.
        """
        batch = batch_size or self._net.batch_size
        extents = {self.batch_dim: batch, **dict(zip(self.dims, self.shape, strict=True))}
        extents.setdefault("n", batch)
        shape = (batch, *self.shape) if self.batched else self.shape
        dims = (self.batch_dim, *self.dims) if self.batched else self.dims
        specs = [
            FieldSpec("value", f"{self.name}.value", shape, dims=dims),
            FieldSpec("grad", f"{self.name}.grad", shape, role="grad", dims=dims),
        ]
        for name, declared in self.declared_fields().items():
            spec = make_spec(name, self.name, declared, extents)
            specs.append(spec)
            if spec.role == "param":
                specs.append(
                    FieldSpec(
                        f"grad_{name}",
                        f"{self.name}.grad_{name}",
                        spec.shape,
                        spec.dtype,
                        "param_grad",
                        spec.dims,
                    )
                )
        return {spec.name: spec for spec in specs}

    def buffers(self, batch_size: int | None = None) -> dict[str, Buffer]:
        """Every buffer that a body may name: own fields, ``inputs`` and ``grad_inputs`` of each connection,
        ``label``, and the scalars ``seed`` and ``step``."""
        result = {name: spec.buffer for name, spec in self.fields(batch_size).items()}
        for connection in self.connections:
            if connection.name in self.repeated_sources():
                continue
            source = connection.source.fields(batch_size)
            result[connection.name] = source["value"].buffer
            if not connection.is_label:
                result[f"grad_{connection.name}"] = source["grad"].buffer
        return result | SCALARS

    def repeated_sources(self) -> dict[str, str]:
        """``inputs1`` → ``inputs`` where both read one source: nests know it (and its gradient) by the first
        name only, because two names in a program never mean one buffer."""
        first: dict[int, str] = {}
        repeated: dict[str, str] = {}
        for connection in self.connections:
            name = first.setdefault(id(connection.source), connection.name)
            if name != connection.name:
                repeated |= {connection.name: name, f"grad_{connection.name}": f"grad_{name}"}
        return repeated

    def initial(self, name: str) -> np.ndarray:
        """Initial values of a field, drawn from the net's seed: the same however often and in whatever
        order."""
        specs = self.fields()
        return specs[name].initial(
            np.random.default_rng([self._net.seed, self.position, list(specs).index(name)])
        )


class DataEnsemble(Ensemble):
    """An ensemble whose value is set from outside."""

    kind = "data"

    def __init__(self, shape: int | Sequence[int], *, name: str | None = None):
        super().__init__(None, shape, name=name)


class ActivationEnsemble(Ensemble):
    """An ensemble whose neurons read the one element at their own index, ``self.input``."""


class LossEnsemble(Ensemble):
    """An ensemble with one value for the whole batch, shape ``(1,)``."""

    batched = False

    def __init__(self, *, kind: str | None = None, name: str | None = None):
        super().__init__(None, (1,), kind=kind, name=name)


class AccuracyEnsemble(LossEnsemble):
    """A measure for the whole batch that nothing is trained by."""


def _kind_of(ensemble_class: type, neuron_class: type[Neuron]) -> str:
    generic = ensemble_class in (Ensemble, ActivationEnsemble, DataEnsemble, LossEnsemble, AccuracyEnsemble)
    owner = neuron_class if generic else ensemble_class
    name = re.sub(r"(Ensemble|Neuron|Layer)$", "", owner.__name__) or owner.__name__
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
