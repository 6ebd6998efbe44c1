"""Nets: ensembles in the order of their construction, and the connections between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from latte.model.checks import check_padding, check_shape, is_integer
from latte.model.connection import Connection
from latte.model.ensemble import ActivationEnsemble, DataEnsemble, Ensemble
from latte.model.index import variable
from latte.model.mapping import Window, check_reach, mapping_place, trace
from latte.model.neuron import Neuron
from latte.model.place import user_place
from latte.running import Running
from swirl.errors import CommandError, DeclarationError, MappingError


class Net(Running):
    """A net for batches of ``batch_size`` items.

    Args:
        batch_size: number of items in a batch.
        seed: of all random numbers (initial values, dropout); drawn once from ``np.random`` by default.
        keep: ``"all"``: every layer's value and gradient can be read, and none is fused away; see :meth:`keep`.

    Raises:
        DeclarationError: if the batch size is no positive integer, or the seed is negative or too large.
    """

    def __init__(self, batch_size: int, *, seed: int | None = None, keep: str | None = None):
        if not is_integer(batch_size) or not 1 <= batch_size < 2**31:
            bound = "" if not is_integer(batch_size) or batch_size < 1 else " below 2**31"
            raise DeclarationError(
                f"the batch size must be a positive integer{bound}, not {batch_size!r}", place=user_place()
            )
        if seed is not None and not (is_integer(seed) and 0 <= seed < 2**31):
            raise DeclarationError(
                f"the seed must be an integer from 0 to 2**31 - 1, not {seed!r}", place=user_place()
            )
        if keep not in (None, "all"):
            raise DeclarationError(
                f"keep must be 'all', not {keep!r}", place=user_place(), way_out="net.keep(conv1) keeps one layer"
            )
        super().__init__()
        self._keeps_all = keep == "all"
        self.batch_size = int(batch_size)
        self.seed = int(np.random.randint(2**31)) if seed is None else int(seed)
        self.force_backward = False
        self.nowait = False  # of the original; has no effect
        self.ensembles: list[Ensemble] = []
        self.connections: list[Connection] = []
        self._counts: Counter[str] = Counter()
        self._kept: set[str] = set()

    def __repr__(self) -> str:
        return f"<Net batch_size={self.batch_size} ensembles={len(self.ensembles)}>"

    # --- ensembles ------------------------------------------------------------------------------------------
    def add_ensemble(self, ensemble: Ensemble) -> Ensemble:
        """Add an ensemble behind those that are there, and name it.

        Returns:
            The same ensemble.

        Raises:
            DeclarationError: if it is in a net already, its name is taken, or its fields do not fit.
        """
        place = user_place()
        if not isinstance(ensemble, Ensemble):
            raise DeclarationError(f"add_ensemble takes an Ensemble, not {ensemble!r}", place=place)
        self._check_not_compiled(place)
        if ensemble.net is not None:
            which = "this net" if ensemble.net is self else "another net"
            raise DeclarationError(f"{ensemble!r} is in {which} already", place=place)
        names = {other.name for other in self.ensembles} | {"net"}
        name, count = ensemble.name, self._counts[ensemble.kind]
        if not name:
            while not name or name in names:
                count += 1
                name = f"{ensemble.kind}{count}"
        if name in names:
            raise DeclarationError(
                f"an ensemble named {name!r} exists already",
                place=place,
                way_out="leave the name out, and the ensemble is numbered",
            )
        if not (name.isascii() and name.isidentifier()):
            raise DeclarationError(
                f"{name!r} cannot name an ensemble",
                place=place,
                way_out="use letters, digits and underscores",
            )
        ensemble.net, before = self, ensemble.name
        ensemble.name = name
        try:
            ensemble.fields()  # a field that does not fit is reported here, not at compile
        except Exception:
            ensemble.net, ensemble.name = None, before
            raise
        self._counts[ensemble.kind] = count
        self.ensembles.append(ensemble)
        return ensemble

    def init_ensemble(self, neurons: np.ndarray) -> Ensemble:
        """Add an ensemble of an object array of neurons."""
        return self.add_ensemble(Ensemble(neurons))

    def init_activation_ensemble(
        self, neurons: np.ndarray | type[Neuron] | Neuron, source: Ensemble
    ) -> Ensemble:
        """Add an ensemble whose neurons each read the element of ``source`` at their own index."""
        shape = neurons.shape if isinstance(neurons, np.ndarray) else source.shape
        ensemble = self.add_ensemble(ActivationEnsemble(neurons, shape))
        self.add_one_to_one_connections(source, ensemble)
        return ensemble

    def keep(self, *ensembles: Ensemble) -> None:
        """Let the values and gradients of layers be there to be read: they are not fused away into a neighbour's loop.

        Raises:
            CommandError: the net is compiled already.  DeclarationError: an ensemble is not in this net.
        """
        place = user_place()
        if self.compiled:
            raise CommandError("keep: the net is compiled already", place=place,
                               way_out="call it before net.compile()")  # fmt: skip
        for ensemble in ensembles:
            if not isinstance(ensemble, Ensemble) or ensemble.net is not self:
                raise DeclarationError(f"keep: {ensemble!r} is not in this net", place=place)
        self._kept |= {ensemble.name for ensemble in ensembles}

    def is_kept(self, ensemble: Ensemble) -> bool:
        """Whether the user wants to read the ensemble's value and gradient."""
        return self._keeps_all or ensemble.name in self._kept

    # --- connections ----------------------------------------------------------------------------------------
    def add_connections(
        self,
        source: Ensemble,
        sink: Ensemble,
        mapping: Callable[..., Any],
        reshape: Sequence[int] | None = None,
        clamp: bool = False,
        padding: Sequence[int | tuple[int, int]] | None = None,
    ) -> Connection:
        """Let every neuron of ``sink`` read the ranges of ``source`` that ``mapping`` gives for its index.

        Args:
            source: the ensemble that is read.
            sink: the ensemble that reads it.
            mapping: takes one index for each dimension of ``sink``, returns one ``range`` for each dimension
                of ``source``, quasi-affine in the arguments. For a sink with explicit loops it only declares
                the edge.
            reshape: the source is seen with this shape (row-major, same number of elements).
            clamp: positions outside the source read the nearest edge.
            padding: for each dimension of the source (zeros before, zeros after), or one number for both. The
                mapping's positions are then those of the padded source: 0 is the first zero. Without it, what
                ``source.set_padding`` has asked for since the last connection.

        Raises:
            MappingError: if the mapping is not affine, has the wrong number of ranges or leaves its source.
            DeclarationError: for ensembles of another net, a cycle, or padding and shapes that do not fit.
        """
        place = user_place()
        self._check_edge(source, sink, place)
        if not callable(mapping):
            raise MappingError(f"the mapping must be a function, not {mapping!r}", place=place)
        view = self._check_reshape(source, sink, reshape, place)
        shape = view or source.shape
        if padding is None and not clamp and view is None:
            padding = source.asked_padding
        pads = check_padding(padding, shape, place)
        windows = None
        if sink.explicit:
            if padding is not None or clamp:
                raise DeclarationError(
                    f"{sink!r} has explicit loops, which read positions as they are written",
                    place=place,
                    way_out="leave out padding and clamp, or write a neuron",
                )
        else:
            windows = trace(mapping, sink.dims, sink.shape, len(shape))
            if clamp:
                if padding is not None:
                    raise DeclarationError(
                        "clamp and padding exclude each other: zeros or the nearest edge?",
                        place=mapping_place(mapping),
                    )
            else:
                windows = tuple(w.shifted(-before) for w, (before, _) in zip(windows, pads, strict=True))
                check_reach(windows, shape, pads, mapping)
        if not clamp:  # whose mapping counts from the source's own first element
            source.asked_padding = None
        return self._connect(
            Connection(source, sink, self._input_name(sink), windows, pads, clamp, view, place=place)
        )

    def add_one_to_one_connections(self, source: Ensemble, sink: Ensemble) -> Connection:
        """Let every neuron of ``sink`` read the element of ``source`` at its own index.

        Raises:
            DeclarationError: if the shapes differ, for ensembles of another net, or a cycle.
        """
        place = user_place()
        self._check_edge(source, sink, place)
        if source.shape != sink.shape:
            raise DeclarationError(
                f"{source!r} and {sink!r} have different shapes, one to one needs equal ones",
                place=place,
                way_out="use add_connections with a mapping",
            )
        windows = None
        if not sink.explicit:
            indices = [
                variable(dim, 0, extent - 1) for dim, extent in zip(sink.dims, sink.shape, strict=True)
            ]
            windows = tuple(Window(index, index + 1) for index in indices)
        padding = ((0, 0),) * source.ndim
        return self._connect(
            Connection(source, sink, self._input_name(sink), windows, padding, one_to_one=True, place=place)
        )

    def add_loss_connection(self, source: Ensemble, sink: Ensemble) -> Connection:
        """Let a loss read ``source`` whole: the first call gives ``inputs``, the next one ``label``.

        Raises:
            DeclarationError: for a sink with neurons, ensembles of another net, or a cycle.
        """
        place = user_place()
        self._check_edge(source, sink, place)
        if not sink.explicit:
            raise DeclarationError(
                f"{sink!r} is an array of neurons; a loss connection needs explicit loops",
                place=place,
                way_out="use add_connections with a mapping",
            )
        names = [connection.name for connection in sink.connections]
        if "label" in names:
            raise DeclarationError(f"{sink!r} has its label already", place=place)
        if any(connection.source is source for connection in sink.connections):
            raise DeclarationError(f"{source!r} cannot be its own label", place=place)
        return self._connect(Connection(source, sink, "label" if names else "inputs", place=place))

    def order(self) -> list[Ensemble]:
        """All ensembles, sources before sinks, otherwise in the order of construction."""
        sorter = TopologicalSorter(self._graph())
        sorter.prepare()
        ready: list[int] = []
        order = []
        while sorter.is_active():
            ready = sorted([*ready, *sorter.get_ready()])
            first = ready.pop(0)
            order.append(self.ensembles[first])
            sorter.done(first)
        return order

    def readers(self, ensemble: Ensemble) -> list[Connection]:
        """The connections that read ``ensemble``, in the order in which they were made."""
        return [connection for connection in self.connections if connection.source is ensemble]

    # --- checks ---------------------------------------------------------------------------------------------
    def _graph(self, *more: tuple[Ensemble, Ensemble]) -> dict[int, list[int]]:
        position = {id(ensemble): index for index, ensemble in enumerate(self.ensembles)}
        graph: dict[int, list[int]] = {index: [] for index in range(len(self.ensembles))}
        for source, sink in (*((edge.source, edge.sink) for edge in self.connections), *more):
            graph[position[id(sink)]].append(position[id(source)])
        return graph

    def _check_not_compiled(self, place: str | None) -> None:
        if self.compiled:
            raise DeclarationError("the net is compiled already", place=place,
                                   way_out="add layers and connections before net.compile()")  # fmt: skip

    def _check_edge(self, source: Ensemble, sink: Ensemble, place: str | None) -> None:
        self._check_not_compiled(place)
        for ensemble in (source, sink):
            if not isinstance(ensemble, Ensemble):
                raise DeclarationError(f"{ensemble!r} is no ensemble", place=place)
            if ensemble.net is not self:
                where = "another net" if ensemble.net else "no net"
                way_out = None if ensemble.net else "net.add_ensemble(ensemble) comes first"
                raise DeclarationError(f"{ensemble!r} is in {where}", place=place, way_out=way_out)
        if isinstance(sink, DataEnsemble):
            raise DeclarationError(f"{sink!r} is a data layer: it reads nothing", place=place)
        if not source.batched:
            raise DeclarationError(
                f"{source!r} has one value for the whole batch, which no layer can read", place=place
            )
        try:
            TopologicalSorter(self._graph((source, sink))).prepare()
        except CycleError as error:
            path = " → ".join(self.ensembles[index].name for index in error.args[1])
            raise DeclarationError(
                f"this connection closes a cycle: {path}",
                place=place,
                way_out="a net has no way back to a layer that feeds it",
            ) from None

    def _check_reshape(
        self, source: Ensemble, sink: Ensemble, reshape: Sequence[int] | None, place: str | None
    ) -> tuple[int, ...] | None:
        if reshape is None:
            return None
        view = check_shape(reshape, place)
        if sink.explicit:
            raise DeclarationError("reshape is for sinks with neurons, not for explicit loops", place=place)
        if int(np.prod(view)) != len(source):
            raise DeclarationError(
                f"{source!r} has {len(source)} elements and cannot be seen as {view}", place=place
            )
        return view if view != source.shape else None

    @staticmethod
    def _input_name(sink: Ensemble) -> str:
        count = sum(not connection.is_label for connection in sink.connections)
        return f"inputs{count or ''}"

    def _connect(self, connection: Connection) -> Connection:
        self.connections.append(connection)
        connection.sink.connections.append(connection)
        return connection
