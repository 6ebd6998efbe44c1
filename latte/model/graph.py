"""The graph of a net: its ensembles in the order of their construction, and the connections between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from latte.model.checks import check_flags, check_padding
from latte.model.connecting import checked_view, source_name
from latte.model.ensemble import Connection, Ensemble
from latte.model.ensemble_kinds import (
    AccuracyEnsemble,
    ActivationEnsemble,
    BatchSumEnsemble,
    DataEnsemble,
    LossEnsemble,
    in_python,
    is_loss,
)
from latte.model.index import variable
from latte.model.mapping import Window, check_reach, mapping_location, trace
from latte.model.settings import NetSettings
from latte.model.source_location import user_location
from swirl.errors import CommandError, DeclarationError, MappingError, nearest
from swirl.ir.spelling import normalised

EVERY_RECIPE = ""
"""In the place of a name: what is chosen for all recipes."""


class Graph:
    """What a user has declared.

    Args:
        settings: those of the whole net.

    Attributes:
        ensembles: in the order of their construction.
        connections: in the order in which they were made.
        recipes: an ensemble, a kind, or several of them joined by ``_`` → the recipe file that the user has chosen.
        choices: the same, or :data:`EVERY_RECIPE` → what is chosen for their recipes, by name.
    """

    def __init__(self, settings: NetSettings):
        self.settings = settings
        self.ensembles: list[Ensemble] = []
        self.connections: list[Connection] = []
        self._readers: dict[int, list[Connection]] = {}
        """Position of an ensemble → the connections that read it."""
        self.recipes: dict[str, Path | None] = {}
        self.choices: dict[str, dict[str, Any]] = {}
        self._counts: Counter[str] = Counter()
        self._kept: set[str] = set()
        self._in_place: dict[str, Ensemble] = {}
        """With ``compat`` an ensemble's name → the activation that works on its value."""

    # --- questions ------------------------------------------------------------------------------------------
    def __contains__(self, ensemble: object) -> bool:
        return isinstance(ensemble, Ensemble) and ensemble.settings is self.settings

    def order(self) -> list[Ensemble]:
        """All ensembles, sources before sinks, otherwise in the order of construction."""
        return [self.ensembles[index] for index in first_possible(self._sources())]

    def readers(self, ensemble: Ensemble) -> list[Connection]:
        """The connections that read ``ensemble``, in the order in which they were made."""
        found = self._readers.get(ensemble.position, ())
        return [connection for connection in found if connection.source is ensemble]

    def find(self, ensemble: Ensemble | str, chains: Sequence[str] = ()) -> Ensemble:
        """The ensemble of that name in the net (or itself).

        Args:
            ensemble: or its name.
            chains: names that would do as well, for the message.

        Raises:
            CommandError: there is none; the message has the nearest name and the list.
        """
        name = normalised(ensemble) if isinstance(ensemble, str) else None
        for candidate in self.ensembles:
            if candidate is ensemble or candidate.name == name:
                return candidate
        names = [candidate.name for candidate in self.ensembles]
        there = f"the ensembles are {', '.join(names)}" + (f"; the chains are {', '.join(chains)}" if chains else "")
        if not isinstance(ensemble, str):
            raise CommandError(f"{ensemble!r} is not in this net", location=user_location(), way_out=there)
        hint = nearest(ensemble, [*names, *chains])
        raise CommandError(f"no ensemble named {ensemble!r}", location=user_location(), way_out=f"{hint}{there}")

    def is_kept(self, ensemble: Ensemble) -> bool:
        """Whether the user wants to read the ensemble's value and gradient."""
        return self.settings.keeps_all or ensemble.name in self._kept

    def shown(self, ensemble: Ensemble, reader: Ensemble | None = None) -> Ensemble:
        """The ensemble whose value stands for that of ``ensemble``: with ``compat`` the last activation on top of it
        (before ``reader``), else itself."""
        while (above := self._in_place.get(ensemble.name)) is not None and above is not reader:
            ensemble = above
        return ensemble

    def has_gradient_reader(self, ensemble: Ensemble) -> bool:
        """Whether the kernels of some layer send a gradient back to ``ensemble``; if none do, ``set_grad`` gives it."""
        sinks = [edge.sink for edge in self.readers(ensemble) if not edge.is_label]
        return any(sink.has_body and not isinstance(sink, AccuracyEnsemble) for sink in sinks)

    def data(self) -> list[DataEnsemble]:
        """The layers whose values are set from outside."""
        return [ensemble for ensemble in self.ensembles if isinstance(ensemble, DataEnsemble)]

    def losses(self) -> list[LossEnsemble]:
        """The layers that are trained on: their gradients are their weights."""
        return [ensemble for ensemble in self.ensembles if is_loss(ensemble)]

    def in_python(self) -> list[LossEnsemble]:
        """The losses and accuracies that Python computes."""
        return [ensemble for ensemble in self.ensembles if in_python(ensemble)]

    # --- declaring ------------------------------------------------------------------------------------------
    def add(self, ensemble: Ensemble) -> Ensemble:
        """Add an ensemble after the existing ones, and name it; see :meth:`latte.net.Net.add_ensemble`."""
        location = user_location()
        if not isinstance(ensemble, Ensemble):
            raise DeclarationError(f"add_ensemble takes an Ensemble, not {ensemble!r}", location=location)
        self._check_not_compiled(location)
        if "phase_methods" not in vars(ensemble):
            raise DeclarationError(
                f"{type(ensemble).__name__}.__init__ has not called that of Ensemble",
                location=location,
                way_out="super().__init__(shape=…, dims=…)",
            )
        if ensemble.settings is not None:
            which = "this net" if ensemble in self else "another net"
            raise DeclarationError(f"{ensemble!r} is in {which} already", location=location)
        name, count = self._free_name(ensemble)
        if name in self._names():
            raise DeclarationError(
                f"an ensemble named {name!r} exists already",
                location=location,
                way_out="leave the name out, and the ensemble is numbered",
            )
        if not name.isidentifier():
            raise DeclarationError(
                f"{name!r} cannot name an ensemble",
                location=location,
                way_out="use letters, digits and underscores",
            )
        if type(ensemble).trainable is not Ensemble.trainable:
            raise DeclarationError(
                f"{type(ensemble).__name__}.trainable is a class attribute: nothing could freeze its layers",
                location=location,
                way_out="self.trainable = False in __init__, or layer.trainable = False",
            )
        trains = ensemble.trainable  # set before it was in a net
        ensemble.settings, ensemble.position, before = self.settings, len(self.ensembles), ensemble.name
        ensemble.name = name
        try:
            ensemble.fields()  # a field that does not fit is reported here, not at compile
        except Exception:
            ensemble.settings, ensemble.position, ensemble.name = None, -1, before
            raise
        self._counts[ensemble.kind] = count
        self.ensembles.append(ensemble)
        ensemble.trainable = trains
        return ensemble

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """What is declared inside is taken back if a part of it is refused: for layers of several ensembles."""
        ensembles, connections = len(self.ensembles), len(self.connections)
        counts, in_place = self._counts.copy(), dict(self._in_place)
        padding, freezing = [ensemble.asked_padding for ensemble in self.ensembles], self.settings.freezing
        try:
            yield
        except BaseException:
            for connection in self.connections[connections:]:
                connection.sink.connections.remove(connection)
                self._readers[connection.source.position].remove(connection)
            for ensemble in self.ensembles[ensembles:]:
                ensemble.settings, ensemble.position = None, -1
            del self.connections[connections:], self.ensembles[ensembles:]
            for ensemble, asked in zip(self.ensembles, padding, strict=True):
                ensemble.asked_padding = asked
            self._counts, self._in_place, self.settings.freezing = counts, in_place, freezing
            raise

    def _free_name(self, ensemble: Ensemble) -> tuple[str, int]:
        """The ensemble's name, or its kind with the next number; and that number."""
        name, count = ensemble.name, self._counts[ensemble.kind]
        if not name:
            names = self._names()
            while not name or name in names:
                count += 1
                name = f"{ensemble.kind}{count}"
        return name, count

    def _names(self) -> set[str]:
        return {other.name for other in self.ensembles} | {"net"}

    def keep(self, ensembles: Sequence[Ensemble]) -> None:
        """See :meth:`latte.net.Net.keep`."""
        location = user_location()
        if self.settings.compiled:
            raise CommandError(
                "keep: the net is compiled already", location=location, way_out="call it before net.compile()"
            )
        for ensemble in ensembles:
            if ensemble not in self:
                raise DeclarationError(f"keep: {ensemble!r} is not in this net", location=location)
        self._kept |= {ensemble.name for ensemble in ensembles}

    def connect(
        self,
        source: Ensemble,
        sink: Ensemble,
        mapping: Callable[..., Any] | None = None,
        reshape: Sequence[int] | None = None,
        clamp: bool = False,
        padding: Sequence[int | tuple[int, int]] | None = None,
        name: str | None = None,
    ) -> Connection:
        """See :meth:`latte.net.Net.add_connections`."""
        location = user_location()
        self._check_edge(source, sink, location)
        check_flags(DeclarationError, clamp=clamp)
        source = self.shown(source, sink)
        if not (callable(mapping) or (mapping is None and sink.explicit)):
            raise MappingError(f"the mapping must be a function, not {mapping!r}", location=location)
        called = source_name(sink, name, location)
        view = checked_view(source, sink, reshape, location)
        shape = view or source.shape
        if padding is None and not clamp and view is None and mapping is not None:
            padding = source.asked_padding
        pads = check_padding(padding, shape, location)
        windows = None
        if sink.explicit:
            if padding is not None or clamp:
                raise DeclarationError(
                    f"{sink!r} has explicit loops, which read positions as they are written",
                    location=location,
                    way_out="leave out padding and clamp, or write a neuron",
                )
        else:
            assert mapping is not None
            windows = trace(mapping, sink.dims, sink.shape, len(shape))
            if clamp:
                if padding is not None:
                    raise DeclarationError(
                        "clamp and padding exclude each other: zeros or the nearest edge?",
                        location=mapping_location(mapping),
                    )
            else:
                windows = tuple(w.shifted(-before) for w, (before, _) in zip(windows, pads, strict=True))
                check_reach(windows, shape, pads, mapping)
        if mapping is not None and not clamp:  # whose mapping counts from the source's own first element
            source.asked_padding = None
        return self._connect(Connection(source, sink, called, windows, pads, clamp, view, location=location))

    def connect_one_to_one(self, source: Ensemble, sink: Ensemble, name: str | None = None) -> Connection:
        """See :meth:`latte.net.Net.add_one_to_one_connections`."""
        location = user_location()
        self._check_edge(source, sink, location)
        source = self.shown(source, sink)
        if source.shape != sink.shape:
            raise DeclarationError(
                f"{source!r} and {sink!r} have different shapes, one to one needs equal ones",
                location=location,
                way_out="use add_connections with a mapping",
            )
        called = source_name(sink, name, location)
        windows = None
        if not sink.explicit:
            indices = [variable(dim, 0, extent - 1) for dim, extent in zip(sink.dims, sink.shape, strict=True)]
            windows = tuple(Window(index, index + 1) for index in indices)
        padding = ((0, 0),) * source.ndim
        return self._connect(Connection(source, sink, called, windows, padding, one_to_one=True, location=location))

    def connect_loss(self, source: Ensemble, sink: Ensemble, name: str | None = None) -> Connection:
        """See :meth:`latte.net.Net.add_loss_connection`."""
        location = user_location()
        self._check_edge(source, sink, location)
        source = self.shown(source, sink)
        if not sink.explicit:
            raise DeclarationError(
                f"{sink!r} is an array of neurons; a loss connection needs explicit loops",
                location=location,
                way_out="use add_connections with a mapping",
            )
        names = [connection.name for connection in sink.connections]
        if name is not None:
            return self._connect(Connection(source, sink, source_name(sink, name, location), location=location))
        if "label" in names:
            raise DeclarationError(
                f"{sink!r} has its label already",
                location=location,
                way_out="name further sources: net.add_loss_connection(source, loss, name='weights')",
            )
        if any(connection.source is source for connection in sink.connections):
            raise DeclarationError(f"{source!r} cannot be its own label", location=location)
        return self._connect(Connection(source, sink, "label" if "inputs" in names else "inputs", location=location))

    def _connect(self, connection: Connection) -> Connection:
        self.connections.append(connection)
        self._readers.setdefault(connection.source.position, []).append(connection)
        connection.sink.connections.append(connection)
        first = connection.one_to_one and len(connection.sink.connections) == 1
        if self.settings.compat and isinstance(connection.sink, ActivationEnsemble) and first:
            self._in_place[connection.source.name] = connection.sink
        return connection

    def check_complete(self) -> None:
        """Check that what has been declared can be compiled.

        Raises:
            DeclarationError: there are no layers, or one reads nothing.
        """
        if not self.ensembles:
            raise DeclarationError(
                "the net has no layers", location=user_location(), way_out="add some before net.compile()"
            )
        for ensemble in self.ensembles:
            if not isinstance(ensemble, DataEnsemble) and not ensemble.connections:
                raise DeclarationError(
                    f"{ensemble!r} reads nothing",
                    location=ensemble.location,
                    way_out="net.add_connections(source, ensemble, mapping)",
                )
            if in_python(ensemble) and [edge.name for edge in ensemble.connections] != ["inputs", "label"]:
                read = ", ".join(edge.source.name for edge in ensemble.connections)
                raise DeclarationError(
                    f"{ensemble!r} takes (bottom, label), but reads {read}",
                    location=ensemble.location,
                    way_out="net.add_loss_connection(scores, loss), then net.add_loss_connection(labels, loss)",
                )

    # --- checks ---------------------------------------------------------------------------------------------
    def _sources(self, *more: tuple[Ensemble, Ensemble]) -> dict[int, list[int]]:
        """The position of each ensemble → those of what it reads; ``more`` are further edges."""
        found: dict[int, list[int]] = {ensemble.position: [] for ensemble in self.ensembles}
        for source, sink in (*((edge.source, edge.sink) for edge in self.connections), *more):
            found[sink.position].append(source.position)
        return found

    def _check_not_compiled(self, location: str | None) -> None:
        if self.settings.compiled:
            raise DeclarationError(
                "the net is compiled already",
                location=location,
                way_out="add layers and connections before net.compile()",
            )

    def check_ensemble(self, ensemble: object, location: str | None) -> None:
        """Raise :class:`DeclarationError` unless something is an ensemble of this net."""
        if not isinstance(ensemble, Ensemble):
            raise DeclarationError(f"{ensemble!r} is not an ensemble", location=location)
        if ensemble not in self:
            where = "another net" if ensemble.settings else "no net"
            way_out = None if ensemble.settings else "net.add_ensemble(ensemble) comes first"
            raise DeclarationError(f"{ensemble!r} is in {where}", location=location, way_out=way_out)

    def _check_edge(self, source: Ensemble, sink: Ensemble, location: str | None) -> None:
        self._check_not_compiled(location)
        for ensemble in (source, sink):
            self.check_ensemble(ensemble, location)
        if isinstance(sink, DataEnsemble):
            raise DeclarationError(f"{sink!r} is a data layer: it reads nothing", location=location)
        if not source.batched and not (isinstance(source, BatchSumEnsemble) and sink.explicit):
            raise DeclarationError(
                f"{source!r} has one value for the whole batch, which no layer can read", location=location
            )
        if source is not sink and not self.readers(sink):
            return  # what nothing reads has no way back
        try:
            TopologicalSorter(self._sources((source, sink))).prepare()
        except CycleError as error:
            path = " → ".join(self.ensembles[index].name for index in error.args[1])
            raise DeclarationError(
                f"this connection closes a cycle: {path}",
                location=location,
                way_out="leave out a connection that leads back to a layer that it depends on",
            ) from None


def first_possible(sources: dict[int, list[int]]) -> list[int]:
    """A topological order: among those that may come next, the least number comes first.

    Args:
        sources: number → those that come before it.
    """
    sorter = TopologicalSorter(sources)
    sorter.prepare()
    ready: list[int] = []
    order = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()])
        first = ready.pop(0)
        order.append(first)
        sorter.done(first)
    return order
