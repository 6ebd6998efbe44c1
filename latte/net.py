"""Nets: what users declare, compile, train and look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from latte.compiling import new_session
from latte.copied import Copied
from latte.looking import Looking
from latte.model.checks import of_an_instance
from latte.model.ensemble import Connection, Ensemble
from latte.model.ensemble_kinds import ActivationEnsemble
from latte.model.frozen import freeze
from latte.model.graph import Graph
from latte.model.neuron import Neuron
from latte.model.settings import NetSettings, Setting
from latte.model.source_location import user_location
from latte.planning.chains import use_recipe
from latte.runtime.accessors import Accessors
from latte.runtime.callbacks import History
from latte.runtime.checkpoint import Resumable, load, save
from latte.runtime.evaluation import Evaluation, Metric, evaluate, predict
from latte.runtime.executable import Executable
from latte.runtime.group import Group, group_of
from latte.runtime.incompatible import IncompatibleKeys
from latte.runtime.measures import Measure
from latte.runtime.report import CompileReport
from latte.runtime.session import Session
from latte.runtime.state_dict import load_state_dict, state_dict
from latte.runtime.training import fit
from swirl.errors import CommandError, TrainingError


class Net(Copied, Looking):
    """A net for batches of ``batch_size`` items.

    Args:
        batch_size: number of items in a batch.
        seed: of all random numbers (initial values, dropout); drawn once from ``np.random`` by default.
        keep: ``"all"``: every layer's value and gradient can be read, and none is fused away; see :meth:`keep`.
        compat: the original's rules: activations work in place (who reads their source later, or its value, gets
            theirs), everything is kept, commands that do not apply are skipped. By default what ``LATTE_COMPAT`` says.
        memory: ``"less"``: of forward's values those are kept at which all paths of the net meet, and ``backward``
            computes the others again; the results are the same to the last bit.
        recipes: a folder of recipe files, as ``latte tune`` writes one, or several, the first one first; they come
            before that of ``LATTE_RECIPES``. None by default.

    Raises:
        DeclarationError: if the batch size is not a positive integer, the seed is negative or too large, all is to be
            kept in less memory, or there is no such folder.
    """

    def __init__(
        self,
        batch_size: int,
        *,
        seed: int | None = None,
        keep: str | None = None,
        compat: bool | None = None,
        memory: str | None = None,
        recipes: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    ):
        self.graph = Graph(NetSettings.of(batch_size, seed, keep, compat, memory, recipes))
        self.nowait = False  # of the original; has no effect
        self._session: Session | None = None
        self._asked: tuple[str | None, int | None] = None, None  # target and threads

    def __repr__(self) -> str:
        return f"<Net batch_size={self.batch_size} ensembles={len(self.ensembles)}>"

    # --- what has been declared -----------------------------------------------------------------------------
    batch_size = Setting[int]()
    """Number of items in a batch."""
    seed = Setting[int]()
    """The seed of all random numbers."""
    force_backward = Setting[bool]()
    """Whether gradients of data are computed; to be set before ``compile``."""

    @property
    def ensembles(self) -> list[Ensemble]:
        """In the order of their construction."""
        return self.graph.ensembles

    def __getitem__(self, name: str) -> Ensemble:
        """The layer of that name: ``net["conv1"]``."""
        return self.graph.find(name)

    @property
    def connections(self) -> list[Connection]:
        """In the order in which they were made."""
        return self.graph.connections

    # --- declaring ------------------------------------------------------------------------------------------
    def add_ensemble(self, ensemble: Ensemble) -> Ensemble:
        """Add an ensemble after those that are there, name it, and return it.

        Raises:
            DeclarationError: if it is in a net already, its name is taken, or its fields do not fit.
        """
        added = self.graph.add(ensemble)
        added.accessor = Accessors(added, lambda: self._session)
        return added

    def init_ensemble(self, neurons: np.ndarray) -> Ensemble:
        """Add an ensemble of an object array of neurons."""
        return self.add_ensemble(Ensemble(neurons))

    def init_activation_ensemble(self, neurons: np.ndarray | type[Neuron] | Neuron, source: Ensemble) -> Ensemble:
        """Add an ensemble whose neurons each read the element of ``source`` at their own index."""
        self.graph.check_ensemble(source, user_location())
        shape = neurons.shape if isinstance(neurons, np.ndarray) else source.shape
        ensemble = self.add_ensemble(ActivationEnsemble(neurons, shape))
        self.add_one_to_one_connections(source, ensemble)
        return ensemble

    def keep(self, *ensembles: Ensemble) -> None:
        """Keep the values and gradients of layers readable: they are not fused away into a neighbour's loop.

        Raises:
            CommandError: the net is compiled already.  DeclarationError: an ensemble is not in this net.
        """
        self.graph.keep(ensembles)

    def add_connections(
        self,
        source: Ensemble,
        sink: Ensemble,
        mapping: Callable[..., Any] | None = None,
        reshape: Sequence[int] | None = None,
        clamp: bool = False,
        padding: Sequence[int | tuple[int, int]] | None = None,
        name: str | None = None,
    ) -> Connection:
        """Let every neuron of ``sink`` read the ranges of ``source`` that ``mapping`` gives for its index.

        Args:
            source: the ensemble that is read.
            sink: the ensemble that reads it.
            mapping: takes one index for each dimension of ``sink``, returns one ``range`` for each dimension
                of ``source``, quasi-affine in the arguments. A sink with explicit loops needs none.
            reshape: the source is seen with this shape (row-major, same number of elements).
            clamp: positions outside the source read the nearest edge.
            padding: for each dimension of the source (zeros before, zeros after), or one number for both. The
                mapping's positions are then those of the padded source: 0 is the first zero. Without it, what
                ``source.set_padding`` has asked for since the last connection.
            name: of the source in the bodies of ``sink``; by default ``inputs``, ``inputs1``, ….

        Raises:
            MappingError: if the mapping is not affine, has the wrong number of ranges or leaves its source.
            DeclarationError: for ensembles of another net, a cycle, padding, shapes and names that do not fit.
        """
        return self.graph.connect(source, sink, mapping, reshape, clamp, padding, name)

    def add_one_to_one_connections(self, source: Ensemble, sink: Ensemble, name: str | None = None) -> Connection:
        """Let every neuron of ``sink`` read the element of ``source`` at its own index; ``name`` as above.

        Raises:
            DeclarationError: if the shapes differ, for ensembles of another net, a cycle, a name that does not fit.
        """
        return self.graph.connect_one_to_one(source, sink, name)

    def add_loss_connection(self, source: Ensemble, sink: Ensemble, name: str | None = None) -> Connection:
        """Let a loss read ``source`` whole, by its name; without one the first is ``inputs``, the next ``label``.

        Raises:
            DeclarationError: for a sink with neurons, ensembles of another net, a cycle, a name that does not fit.
        """
        return self.graph.connect_loss(source, sink, name)

    def freeze(self, *layers: Ensemble | str) -> None:
        """Let layers, or single parameters, not train: no gradients are computed for them, nor for what is before them
        where nothing trains there, and solvers leave them alone, with weight decay and moments too.

        A layer that is frozen as a whole and has running statistics (batch norm) uses them in training, as it does in
        inference, and does not change them. A parameter that layers share is frozen with the first of them. Dropout
        stays on. ``layer.trainable = False`` is the same for one layer. In a compiled net it counts from the next
        ``forward``, ``test`` or ``set_batch`` on, which compiles the net again once for each choice.

        Args:
            layers: layers, their names, or patterns: ``net.freeze("conv*")``; with a dot, single parameters:
                ``net.freeze("*.bias")``. ``"*"`` is for all.

        Raises:
            CommandError: there is no such layer or parameter. Nothing is changed then.
        """
        freeze(self.graph, layers, frozen=True)

    def unfreeze(self, *layers: Ensemble | str) -> None:
        """Let layers, with all their parameters, or single parameters train again, with the moments that a solver had
        for them; arguments and errors as of :meth:`freeze`. After ``net.freeze("*")``, ``net.unfreeze("*.bias")`` lets
        biases alone train."""
        freeze(self.graph, layers, frozen=False)

    def use_recipe(
        self,
        layers: Ensemble | str | Sequence[Ensemble | str],
        path: str | PathLike[str] | None,
        choices: Mapping[str, Any] | None = None,
    ) -> None:
        """Use a recipe file for one ensemble, for every ensemble of a kind (``"conv"``), or for a chain of layers.

        Args:
            layers: an ensemble or its name, a kind; for a file that declares a chain, the kinds joined
                (``"conv_relu"``) or the layers (``[conv1, relu1]``, or their names).
            path: of the file; None for none: layers get the default schedule, those of a chain each by itself.
            choices: what the recipe asks for by ``s.choose(name, values, default)``: name → one of the values.

        Raises:
            CommandError: the net is compiled already, has no such ensemble or kind, or the layers are not a chain.
            RecipeError: the choices are not names with values; ``compile`` says which of them no recipe asks for.
        """
        use_recipe(self.graph, layers, path, choices)

    # --- compiling ------------------------------------------------------------------------------------------
    def compile(
        self,
        *,
        target: str | None = None,
        threads: int | None = None,
        progress: bool = False,
        distributed: bool | Group = False,
    ) -> CompileReport:
        """Compile the net for its batch size, once, after all layers exist.

        Args:
            target: ``avx512``, ``avx2`` or ``portable``; by default the best that the machine runs.
            threads: of OpenMP; by default all cores.
            progress: whether to show a progress bar.
            distributed: whether the processes that torchrun has started take turns, or a group of them does: of those
                with the same cache of kernels the first one compiles, then the others find all there.

        Returns:
            what it took, and where the generated code is.

        Raises:
            CommandError: it is compiled already.  DeclarationError: the net is empty, or an ensemble reads nothing.
            LatteError: see :mod:`swirl.errors`. The net is unchanged then: it can be corrected and compiled.
        """
        if self.compiled:
            raise CommandError("the net is compiled already", location=user_location(), way_out="declare a new net")
        group = group_of(distributed)
        with group.together("net.compile"), group.first_alone("waiting for rank 0 to compile"):
            self._session = new_session(self.graph, target, threads, progress and group.rank == 0)
        self._asked = target, threads
        self.graph.settings.compiled = True
        return self._session.report

    @property
    def compiled(self) -> bool:
        """Whether ``compile`` has been called."""
        return self._session is not None

    @property
    def session(self) -> Session:
        """The compiled net that runs; TrainingError before it is compiled."""
        if self._session is None:
            raise TrainingError("the net is not compiled", location=user_location(), way_out="call net.compile() first")
        return self._session

    @property
    def executable(self) -> Executable:
        """The compiled net for the batch size last used; TrainingError before it is compiled."""
        return self.session.executable

    @property
    def report(self) -> CompileReport:
        """What compiling took so far, with every batch size and the solver; TrainingError before it is compiled."""
        return self.session.report

    # --- running --------------------------------------------------------------------------------------------
    loss = Measure("loss")
    """The sum of the losses of the last ``forward`` or ``test``."""
    accuracy = Measure("accuracy")
    """The share of items that the last accuracy layer has found correct."""

    def prepare(self, batch_size: int) -> None:
        """Compile the net for fewer items where it must be (``report.fixed``): the first such batch does not wait then.

        Raises:
            DataError: not 1 … ``batch_size`` of the net.
        """
        self.session.prepare(batch_size)

    def set_batch(self, *arrays: Any, finite: bool = True) -> None:
        """Set the values of the data layers, in the order of their construction: ``net.set_batch(images, labels)``.

        A batch may have fewer items than ``batch_size``: all that follows is of these alone. Labels may have shape
        (batch,) or (batch, 1). NaN and infinities are refused if ``finite``.

        Raises:
            DataError: wrong number of arrays, wrong shapes or types, NaN, labels out of range. Nothing is set then.
        """
        self.session.set_batch(*arrays, finite=finite)

    def forward(self) -> None:
        """The forward phase of all layers, as in training. Sets ``net.loss`` and ``net.accuracy``.

        Raises:
            DataError: data that were set hold NaN or infinity, which would stay in running statistics.
        """
        self.session.forward()

    def test(self) -> None:
        """The inference phase: dropout off, batch norm with running statistics. Sets ``net.loss``, ``net.accuracy``."""
        self.session.test()

    def backward(self) -> None:
        """Gradients of inputs and parameters; those of parameters add up until ``clear_grad``.

        Raises:
            TrainingError: there is no loss and no gradient was set, or it was set for another batch size, or
                ``forward`` has not run.
        """
        self.session.backward()

    def clear_grad(self) -> None:
        """Let the next ``backward`` start the parameters' gradients from zero; until then they read as zero. Gradients
        given by ``set_grad`` stay, ``top.set_grad(np.zeros(…))`` clears one. With ``compat`` all gradients are zero."""
        self.session.clear_grad()

    def clear_values(self) -> None:
        """Zeros in the values of all layers: set the data again before the next ``forward``, which needs no zeros."""
        self.session.clear_values()

    def fuse_pattern_cbr(self) -> None:
        """Accepted from programs for the original: convolution, bias and ReLU are fused wherever they can be."""

    @property
    def buffers(self) -> dict[str, np.ndarray]:
        """Storage by the names of layer and field, ``conv1weights``, in whatever layout; empty before ``compile``.
        Integers that may be subscripts cannot be written there."""
        return {n.replace(".", "", 1): a for n, a in self.executable.shown().items()} if self.compiled else {}

    @property
    def forward_tasks(self) -> list[Callable[[], None]]:
        """What ``forward`` does, as the original's benchmarks time it: nothing for each data layer, then all layers."""
        return [*[lambda: None] * len(self.graph.data()), self.forward] if self.compiled else []

    @property
    def backward_tasks(self) -> list[Callable[[], None]]:
        """What ``backward`` does, in one task; it runs without a loss too, from the gradients that are set."""
        return [self.session.run_backward] if self.compiled else []

    # --- loops ----------------------------------------------------------------------------------------------
    def fit(
        self,
        *data: Any,
        solver: Any,
        epochs: int = 1,
        shuffle: bool = True,
        validation: Any = None,
        metrics: Mapping[str, Metric] | None = None,
        callbacks: Any = (),
        accumulate: int = 1,
        stop_on_nan: bool = True,
        progress: bool = True,
        after_epoch: Callable[[int, History], None] | None = None,
        distributed: bool | Group = False,
    ) -> History:
        """Train: ``net.fit(images, labels, solver=SGD(net), epochs=10)``; see :func:`latte.runtime.training.fit`."""
        options = {"epochs": epochs, "shuffle": shuffle, "validation": validation, "metrics": metrics}
        options |= {"callbacks": callbacks, "accumulate": accumulate, "stop_on_nan": stop_on_nan}
        options["distributed"] = distributed
        return fit(self.session, *data, solver=solver, progress=progress, after_epoch=after_epoch, **options)

    def evaluate(
        self,
        *data: Any,
        metrics: Mapping[str, Metric] | None = None,
        stop_on_nan: bool = True,
        distributed: bool | Group = False,
    ) -> Evaluation:
        """Loss, accuracy and metrics in the inference phase; see :func:`latte.runtime.evaluation.evaluate`."""
        return evaluate(self.session, *data, metrics=metrics, stop_on_nan=stop_on_nan, distributed=distributed)

    def predict(self, *data: Any, layer: Ensemble | str | None = None, stop_on_nan: bool = True) -> np.ndarray:
        """What a layer says to every item, without labels; see :func:`latte.runtime.evaluation.predict`."""
        return predict(self.session, *data, layer=layer, stop_on_nan=stop_on_nan)

    # --- keeping --------------------------------------------------------------------------------------------
    def save(self, path: str | PathLike[str], solver: Resumable | None = None) -> None:
        """Save what the net has learned; see :func:`latte.runtime.checkpoint.save`."""
        save(self.session, path, solver)

    @of_an_instance("declare the net that was saved, net.compile(), then net.load(path); pickle keeps whole nets")
    def load(
        self, path: str | PathLike[str], solver: Resumable | None = None, *, strict: bool = True
    ) -> IncompatibleKeys:
        """Go on from a file that ``save`` has written; ``strict=False`` takes what fits, and returns what does not; see
        :func:`latte.runtime.checkpoint.load`."""
        return load(self.session, path, solver, strict)

    def state_dict(
        self, names: Mapping[str, str] | None = None, like: Mapping[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        """Parameters and running statistics by name; see :func:`latte.runtime.state_dict.state_dict`."""
        return state_dict(self.session, names, like)

    def load_state_dict(
        self, state: Mapping[str, Any], names: Mapping[str, str] | None = None, *, strict: bool = True
    ) -> IncompatibleKeys:
        """Set them, from PyTorch's too; ``strict=False`` takes what fits, and returns what does not; see
        :func:`latte.runtime.state_dict.load_state_dict`."""
        return load_state_dict(self.session, state, names, strict)
