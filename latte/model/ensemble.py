"""Ensembles: arrays of one neuron, or explicit loops over whole arrays; and the connections between them."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from latte.model import checks, instances
from latte.model.attributes import DECLARED, Trainable, check_known, check_settable
from latte.model.body import Body
from latte.model.commands import INFOS, asked, recorded
from latte.model.mapping import Window
from latte.model.neuron import RESERVED, Declaration, Field, FieldSpec, Neuron, class_fields, make_spec, why_no_name
from latte.model.older_spellings import WITHOUT_EFFECT
from latte.model.phases import PhaseMethods
from latte.model.settings import NetSettings
from latte.model.sharing import Shared, check_shared, share, shareable
from latte.model.source_location import user_location
from swirl.errors import CommandError, DeclarationError, UnknownName, nearest
from swirl.schedule.command_log import Recorded
from swirl.transforms import COMMANDS

Accessor = Callable[[str], Any]
"""Finds the getter or setter of a name (``get_value``); None if there is neither."""


@dataclass(frozen=True, eq=False)
class Connection:
    """An edge of the net: ``sink`` reads ``source``.

    Args:
        name: of the source's value in the sink's bodies: ``inputs``, ``inputs1``, …, ``label``, or its own.
        windows: for each dimension of the source (as seen through ``reshape``) the positions that a neuron
            reads; None where the sink's body has explicit loops.
        padding: (before, after) for each dimension: positions outside the source that read as zero.
        clamp: positions outside read the nearest edge.
        reshape: the shape in which the sink sees the source, if not its own.
        one_to_one: every neuron reads the element at its own index.
        location: ``file:line`` that made the connection.
    """

    source: Ensemble
    sink: Ensemble
    name: str
    windows: tuple[Window, ...] | None = None
    padding: tuple[tuple[int, int], ...] = ()
    clamp: bool = False
    reshape: tuple[int, ...] | None = None
    one_to_one: bool = False
    location: str | None = None

    @property
    def is_label(self) -> bool:
        """Labels have no gradient."""
        return self.name == "label"

    @property
    def reads_one(self) -> bool:
        """Whether every neuron reads a single element, ``self.input``."""
        return self.windows is not None and all(window.extent == 1 for window in self.windows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The source's shape as the sink sees it, without the batch."""
        return self.reshape or self.source.shape


class Ensemble:
    """A layer: an array of neurons, or (subclasses with a ``forward`` of their own) loops over whole arrays.

    Args:
        neurons: a :class:`Neuron` class or instance, shared by all elements, with ``shape``; or the thesis'
            object array of instances, whose shape it takes; None for a subclass with explicit loops.
        shape: extents without the batch.
        dims: a name for each dimension, which become the loops' names; the batch is ``n``. Without names the
            loops are called ``_neuron_index_0`` (batch), ``_neuron_index_1``, ….
        kind: what recipes are chosen by; by default from the name of the class (``BatchNormEnsemble`` →
            ``batch_norm``).
        name: unique in the net; by default the kind and a number (``conv1``; ``grouped_conv1`` for a convolution with
            groups, which is of a kind of its own).

    Raises:
        DeclarationError: for shapes, names or fields that do not fit.
    """

    generic: ClassVar[bool] = True
    """Of a class itself, not of its subclasses: whether its layers are named after their neurons."""
    without_neurons: ClassVar[bool] = False
    """Whether no neurons are expected."""
    batched: ClassVar[bool] = True
    """Whether ``value`` has the batch as its first dimension (a loss has one value for the whole batch)."""
    class_labels: ClassVar[bool] = False
    """Whether ``label`` holds class numbers, 0 … ``classes`` - 1, or ``ignored_label``: data are checked for it."""
    classes: int | None = None  # by default the number of elements of ``inputs``
    ignored_label: float | None = None
    kind: str = ""
    training: bool
    """In a body: whether this is the training phase (a constant when compiled)."""
    trainable = Trainable()
    """Whether the layer trains; may be set at any time. See :meth:`latte.net.Net.freeze`."""

    def __init__(
        self,
        neurons: type[Neuron] | Neuron | np.ndarray | None = None,
        shape: int | Sequence[int] | None = None,
        dims: Sequence[str] | None = None,
        *,
        kind: str | None = None,
        name: str | None = None,
    ):
        self.settings: NetSettings | None = None  # of the net that it is in
        self.position = -1  # in the net's order of construction: the stream of its random numbers
        self.accessor: Accessor | None = None
        self.commands: list[Recorded] = []
        self.asked_padding: tuple[tuple[int, int], ...] | None = None  # by ``set_padding``, and not taken yet
        self._padding: tuple[tuple[int, int], ...] | None = None
        self.location = user_location()
        self.neurons = neurons
        if isinstance(neurons, np.ndarray):
            instances.check_neurons(neurons)
            if shape is not None and checks.check_shape(shape) != neurons.shape:
                raise DeclarationError(
                    f"shape {shape} is not the shape {neurons.shape} of the neurons", location=self.location
                )
            shape = neurons.shape
        if shape is None:
            way_out = "Ensemble(MyNeuron, shape=(8, 14, 14)), extents without the batch"
            raise DeclarationError("an ensemble needs a shape", location=self.location, way_out=way_out)
        self.shape: tuple[int, ...] = checks.check_shape(shape, self.location)
        alone = self.without_neurons or PhaseMethods(type(self), Neuron).explicit
        self.neuron_class = instances.neuron_class(neurons, type(self).__name__, alone, self.location)
        self.phase_methods = PhaseMethods(type(self), self.neuron_class)
        if self.has_body:
            self.phase_methods.check(Ensemble, self.location)
        self.kind = checks.check_kind(
            kind or self.kind or instances.kind_of(type(self), self.neuron_class), self.location
        )
        self.name = checks.check_ensemble_name(name, self.location)
        self.dims, self.batch_dim = checks.check_dims(dims, self.shape, RESERVED, self.location)
        self.connections: list[Connection] = []
        self._added_fields: dict[str, Declaration] = {}
        self._declared: dict[str, Declaration] | None = None

    def __getattr__(self, name: str) -> Any:
        """Commands (``conv1.parallelize(…)``), questions about them (``conv1.tiling_info``), accessors
        (``conv1.get_value()``), and parameters for other layers to share (``conv1.weights``)."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name in INFOS:
            return asked(self.commands, name)
        if name in COMMANDS:
            return lambda *arguments, **options: self.record(name, *arguments, **options)
        if name in WITHOUT_EFFECT:
            return lambda *_: self._check_open(name, user_location())
        if re.match("(get|set)_", name):
            if self.accessor is None:
                raise self._in_no_net()
            found = self.accessor(name)
            if found is not None:
                return found
        if name in self.declared_fields():
            return share(repr(self), name, self.declared_fields()[name], self.fields(), self._known, self.position)
        known = [*self.declared_fields(), *(attribute for attribute in dir(self) if not attribute.startswith("_"))]
        raise UnknownName(
            f"{self!r} has no command or attribute {name!r}",
            location=user_location(),
            way_out=f"{nearest(name, known)}the commands are {', '.join(sorted(COMMANDS))}",
        )

    def __getstate__(self) -> dict[str, Any]:
        """Of copies and pickles: the accessor belongs to the net; that of the copy gets its own."""
        return {**self.__dict__, "accessor": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Ensemble:
        memo[id(self)] = made = type(self).__new__(type(self))
        made.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        return made

    def __reduce__(self) -> Any:
        raise DeclarationError(
            f"{self!r} cannot be pickled without its net",
            location=user_location(),
            way_out=f"pickle the net, and take net[{self.name!r}] of the one that is loaded",
        )

    def __dir__(self) -> list[str]:
        """What an editor completes: commands, getters and setters too."""
        fields = self.fields() if self.settings is not None else {}
        read = [name for edge in self.connections for name in (edge.name, f"grad_{edge.name}")]
        accessors = [f"{verb}_{name}" for name in (*fields, *read) for verb in ("get", "set")]
        accessors += [*(f"get_{name}_view" for name in fields), *shareable(self.declared_fields(), self.settings)]
        return sorted({*super().__dir__(), *COMMANDS, *INFOS, *accessors})

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets attributes as usual, but not those with a field's name, nor, of a compiled net, what its code has; of a
        layer of the library, those that it has."""
        if (settings := self.__dict__.get("settings")) is not None:
            fields = () if name in self.__dict__ else self.fields()
            compiled = {each: self.__dict__[each] for each in DECLARED} | self.phase_methods.numbers
            check_settable(self, name, value, fields, compiled if settings.compiled else {})
            check_known(self, (type(self), self.neuron_class), name)
        super().__setattr__(name, value)

    # --- commands -------------------------------------------------------------------------------------------
    def record(self, name: str, *arguments: Any, **options: Any) -> None:
        """Record a command: ``bn.record("parallelize", "forward", "c")`` is ``bn.parallelize("forward", "c")``.

        The first argument is the phase. Commands replace the shipped recipe for the phases that they name; ``tile``,
        which changes the loops of every phase, replaces all of it.

        Raises:
            CommandError: the net is compiled already, or there is no such phase.
        """
        location = user_location()
        self._check_open(name, location)
        if self.settings is not None and self.settings.compat:
            options.setdefault("optional", True)
        self.commands += recorded(name, arguments, options, location)

    def set_padding(self, *pairs: tuple[int, int] | int) -> None:
        """Put zeros around this ensemble for the layer that is connected to it next, and for no other.

        Called just before ``net.add_connections``, it is the older spelling of
        ``net.add_connections(ensemble, sink, mapping, padding=pairs)``: the mapping's position 0 is the first zero.
        Getters do not show the zeros.

        Args:
            pairs: (zeros before, zeros after) for each dimension, no batch.

        Raises:
            DeclarationError: the pairs do not fit the shape.  CommandError: the net is compiled already.
        """
        location = user_location()
        self._check_open("set_padding", location)
        self._padding = self.asked_padding = checks.check_padding(pairs, self.shape, location)

    @property
    def pad(self) -> tuple[tuple[int, int], ...]:
        """The zeros that the last ``set_padding`` asked for."""
        return self._padding or ((0, 0),) * len(self.shape)

    def _check_open(self, command: str, location: str | None) -> None:
        if self.settings is not None and self.settings.compiled:
            raise CommandError(
                f"{command}: the net is compiled already",
                location=location,
                way_out="give commands before net.compile()",
            )

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
        return self.phase_methods.explicit

    @property
    def _known(self) -> NetSettings:
        """The settings of the net that it is in.

        Raises:
            DeclarationError: it is in no net.
        """
        if self.settings is None:
            raise self._in_no_net()
        return self.settings

    def _in_no_net(self) -> DeclarationError:
        return DeclarationError(
            f"{self!r} belongs to no net yet", location=self.location, way_out="net.add_ensemble(ensemble)"
        )

    @property
    def has_body(self) -> bool:
        """Whether the value is computed by a body, and not given, or computed by Python."""
        return True

    # --- bodies ---------------------------------------------------------------------------------------------
    def has_phase(self, phase: str) -> bool:
        """Whether the user wrote this phase (``forward``, ``backward`` or ``update``)."""
        return self.phase_methods.find(phase) is not None

    def phase_is_explicit(self, phase: str) -> bool:
        """Whether this phase has explicit loops over whole arrays (ensemble level)."""
        return self.phase_methods.is_explicit(phase)

    def body(self, phase: str) -> Body:
        """The source of a phase that the user wrote.

        Raises:
            DeclarationError: if the user did not write it.
            BodyError: if there is no source.
        """
        body = self.phase_methods.body(phase, () if self.phase_is_explicit(phase) else (self.batch_dim, *self.dims))
        if body is None:
            raise DeclarationError(f"{self!r} has no {phase} of its own", location=self.location)
        return body

    # --- fields ---------------------------------------------------------------------------------------------
    def add_field(self, name: str, declared: Declaration) -> None:
        """Declare a field (beside those in the class).

        Raises:
            DeclarationError: if the name is taken.
        """
        if name in self.declared_fields():
            raise DeclarationError(f"{self!r} has a field {name!r} already", location=user_location())
        self._check_names(name, *self.declared_fields())
        self._added_fields[name] = declared
        self._declared = None

    def declared_fields(self) -> dict[str, Declaration]:
        """Declarations by name: of the class, of its neurons, and added ones."""
        if self._declared is None:
            found = class_fields(self.neuron_class) | class_fields(type(self))
            found |= instances.fields(self.neurons, self.dims, self.batch_dim, self.phase_methods) | self._added_fields
            bodies = [self.body(phase) for phase in checks.PHASES if self.has_phase(phase)]
            loops = () if self.explicit else self.dims
            found |= instances.constant_arrays(bodies, (self, self.neuron_class), found, loops)
            self._check_names(*found)
            # A field of a neuron without dims and shape: one element for each neuron and item.
            everything = (self.batch_dim, *self.dims)
            for name, declared in found.items():
                if type(declared) is Field and not declared.dims and not declared.shape and not self.explicit:
                    init, dtype, below = declared.init, declared.dtype, declared.below
                    found[name] = Field(*everything, init=init, dtype=dtype, below=below)
            self._declared = found
        return self._declared

    def _check_names(self, *names: str) -> None:
        whys = {name: why_no_name(name, (*self.dims, self.batch_dim), names) for name in names}
        checks.check_field_names(whys, repr(self), self.location)

    def fields(self, batch_size: int | None = None) -> dict[str, FieldSpec]:
        """The ensemble's own storage: ``value``, ``grad``, declared fields, ``grad_<parameter>``.

        Args:
            batch_size: the net's by default; only value-like fields depend on it.

        Raises:
            DeclarationError: if the ensemble is in no net, or a field names an unknown dimension.
        """
        batch = batch_size or self._known.batch_size
        extents = {self.batch_dim: batch, **dict(zip(self.dims, self.shape, strict=True))}
        extents.setdefault("n", batch)
        shape = (batch, *self.shape) if self.batched else self.shape
        dims = (self.batch_dim, *self.dims) if self.batched else self.dims
        check_shared(repr(self), self.declared_fields(), extents, self._known, self.position, self.location)
        specs = [
            FieldSpec("value", f"{self.name}.value", shape, dims=dims, per_item=self.batched),
            FieldSpec("grad", f"{self.name}.grad", shape, role="grad", dims=dims, per_item=self.batched),
        ]
        for name, declared in self.declared_fields().items():
            specs.append(make_spec(name, self.name, declared, extents))
            if specs[-1].role == "param":
                specs.append(specs[-1].gradient)
        given = self._known.given
        return {spec.name: replace(spec, given=True) if spec.storage in given else spec for spec in specs}

    def no_field(self, name: str, known: Collection[str]) -> UnknownName:
        """The error for a field that does not exist, with the names of those that do."""
        return UnknownName(
            f"{self!r} has no field {name!r}",
            location=user_location(),
            way_out=f"{nearest(name, known)}its fields are {', '.join(sorted(known))}",
        )

    def initial(self, name: str, batch_size: int | None = None) -> np.ndarray:
        """Initial values of a field, drawn from the net's seed: the same however often and in whatever order they are
        drawn.

        Args:
            name: of the field.
            batch_size: items, of a field for each of them; by default the net's.

        Raises:
            UnknownName: there is no such field.  DeclarationError: the ensemble is in no net.
        """
        specs, declared = self.fields(batch_size), self.declared_fields().get(name)
        if name not in specs:
            raise self.no_field(name, specs)
        stream = declared.stream if isinstance(declared, Shared) else (self.position, list(specs).index(name))
        return specs[name].initial(np.random.default_rng([self._known.seed, *stream]))
