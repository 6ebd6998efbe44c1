"""A net that runs: its executables, one for each batch size, and what is kept from one run to the next."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from latte.model.buffers import FIRST_ITEM
from latte.model.checks import check_flags, is_integer
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import AccuracyEnsemble, DataEnsemble
from latte.model.frozen import Frozen
from latte.model.graph import Graph
from latte.model.source_location import user_location, user_stacklevel
from latte.runtime.data import check_data, check_finite
from latte.runtime.executable import Executable, write_loss_weights
from latte.runtime.gradients import Given, SeedGradients
from latte.runtime.locking import one_at_a_time
from latte.runtime.not_finite import LossIsNaN, where_not_finite
from latte.runtime.python_losses import run_forward
from latte.runtime.report import CompileReport, sum_of_reports, warn_doubtful, warn_not_tuned, warn_unused
from latte.runtime.variants import Compile, Variants
from swirl.errors import DataError, TrainingError, about
from swirl.ir.buffers import Buffer
from swirl.run.runner import Runner

AddUp = Callable[[Executable, str], None]
"""Adds up what is in a storage over processes, in its place."""


class Session:
    """A compiled net that runs.

    Args:
        graph: of the net.
        compile: makes its executables.
        runner: whose threads run them.

    Attributes:
        loss, accuracy: of the last run.
        has_run: the phases that have run since the net was compiled.
        seeds: the gradients that the user gives.
        gradient_views: whether a user holds the storage of parameters' gradients.
        given: the data layers that the user has set.
        unchecked: those of them that may hold NaN: set one by one, and not looked at since.
        shuffling: the random orders of ``fit``; None before the first.
        lock: held by the thread whose call runs.
    """

    def __init__(self, graph: Graph, compile: Compile, runner: Runner):
        self.graph, self.runner = graph, runner
        self.lock = threading.RLock()
        self.loss = self.accuracy = 0.0
        self.has_run: set[str] = set()
        self.seeds = SeedGradients(graph)
        self.gradient_views = False
        self.given: set[str] = set()
        self.unchecked: set[str] = set()
        # A compiled net has no further layers; these are asked for in each step.
        self._losses, self._in_python = graph.losses(), graph.in_python()
        self._accuracies = [e for e in graph.ensembles if isinstance(e, AccuracyEnsemble)]
        self._compile = compile
        self._reports: list[CompileReport] = []
        self._accumulate = False
        self._nan_said = self._untuned_said = self._doubts_said = self._unused_said = False
        self.shuffling: np.random.Generator | None = None
        self._variants = Variants(graph, self._made)
        self.executable = self.whole
        """For the batch size last used."""

    @property
    def batch_size(self) -> int:
        """Items in a whole batch."""
        return self.graph.settings.batch_size

    # --- executables ----------------------------------------------------------------------------------------
    @property
    def whole(self) -> Executable:
        """The executable for whole batches: it knows all of a state that has elements for each item."""
        return self._for(self.batch_size)

    def _for(self, batch_size: int, trains: bool = True) -> Executable:
        """The executable for a batch size, compiled where needed; parameters are shared.

        Args:
            batch_size: items in a batch.
            trains: whether all phases are needed; otherwise inference alone.
        """
        executables, frozen = self._variants.current, self._variants.frozen
        found = executables.get(batch_size)
        if found is None or (trains and not found.trains):
            shared = next(each for each in executables.values() if each.trains)
            with about(f"compiling for {batch_size} of {self.batch_size} items"):
                executables[batch_size] = found = self._made(batch_size, shared, trains, frozen=frozen)
        return found

    @one_at_a_time
    def settle(self) -> None:
        """Go over to the net with what is frozen now."""
        self._go_on_with(self._variants.settle(self.executable, self.whole))

    def _go_on_with(self, new: Executable) -> None:
        old, self.executable = self.executable, new
        if new is old:
            return
        if new.trains:
            self.seeds.start(new)
        if self._accumulate:  # gradients that the other has not computed have nothing to be added to
            self._zero(lambda buffer: _is_parameter_gradient(buffer) and buffer.name not in old.buffers, new)

    @property
    def report(self) -> CompileReport:
        """What compiling took so far, all in all."""
        return sum_of_reports(self._reports)

    def add_report(self, report: CompileReport) -> None:
        """Count what was compiled for this net elsewhere, by a solver."""
        self._reports.append(report)

    def _made(
        self, batch_size: int, shared: Executable | None, trains: bool = True, *, frozen: Frozen, **more: Any
    ) -> Executable:
        seeded = self.seeds.inner
        executable, report = self._compile(
            batch_size, seeded=seeded, shared=shared, trains=trains, frozen=frozen, **more
        )
        self._reports.append(report)
        if report.untuned and not self._untuned_said:
            self._untuned_said = True
            warn_not_tuned(report)
        if report.cautions and not self._doubts_said:
            self._doubts_said = True
            warn_doubtful(report)
        if report.unused and not self._unused_said:
            self._unused_said = True
            warn_unused(report)
        return executable

    def use(self, batch_size: int, trains: bool = True) -> Executable:
        """Make an executable for so many items current: that for whole batches if it takes them, otherwise one of their
        own, compiled where needed: all of it, or inference alone."""
        self.settle()
        whole = self.whole
        chosen = whole if whole.takes(batch_size, trains) else self._for(batch_size, trains)
        if chosen is not self.executable or chosen.items != batch_size:
            self.executable = chosen
            chosen.set_items(batch_size)
            if chosen.trains:
                self.seeds.start(chosen)
        return self.executable

    @one_at_a_time
    def prepare(self, batch_size: int, trains: bool = True) -> None:
        """See :meth:`latte.net.Net.prepare`; without ``trains``, for inference alone."""
        self._check_size(batch_size)
        self.settle()
        if not self.whole.takes(batch_size, trains):
            self._for(batch_size, trains)

    @one_at_a_time
    def seed(self, ensemble: Ensemble, gradient: np.ndarray) -> None:
        """What ``ensemble.set_grad(gradient)`` does.

        Raises:
            DataError: the shape is wrong, or the net computes no gradient there.
        """
        if self.seeds.give(ensemble, gradient, self.executable):
            try:
                self._compile_again()
            except Exception:
                self.seeds.take_back(ensemble)
                raise

    def seed_like(self, given: Given) -> None:
        """Let ``backward`` start from what the user has given to another net of the same declaration."""
        self.seeds.follow(given)
        if self.seeds.inner:
            self._compile_again()
        self.seeds.start(self.executable)

    def _compile_again(self) -> None:
        """The net again, with readers that add to the gradients that the user gives."""
        old, has_run = self.executable, set(self.executable.has_run)
        self._go_on_with(self._variants.again(old, self.whole))
        self.executable.has_run = has_run  # backward computes what it needs of forward again

    # --- data -----------------------------------------------------------------------------------------------
    @one_at_a_time
    def set_batch(
        self,
        *arrays: Any,
        finite: bool = True,
        numbers: Sequence[int] | np.ndarray | None = None,
        layers: Sequence[DataEnsemble] | None = None,
        trains: bool = True,
    ) -> None:
        """See :meth:`latte.net.Net.set_batch`.

        Args:
            arrays: for the data layers.
            finite: whether NaN and infinities are refused.
            numbers: of the items in their data set, for messages.
            layers: the data layers; all by default.
            trains: whether more than inference may follow.
        """
        check_flags(DataError, finite=finite)
        checked = check_data(self.graph, arrays, layers, numbers)
        if finite:
            check_finite(checked, numbers)
        count = len(next(iter(checked.values())))
        self._check_size(count)
        if not self.whole.takes(count, trains) and self.whole.takes(count, False):
            trains = False  # what else may follow is compiled when it does
        executable = self.use(count, trains)
        for name, array in checked.items():
            executable.write(f"{name}.value", array)
        self.given.update(checked)
        self.unchecked -= checked.keys()
        executable.has_run.discard("forward")  # its values belong to other data

    def _training(self) -> Executable:
        """The executable for the items of the current batch that has all phases, with the data of the batch."""
        current = self.executable
        if current.trains and current.takes(current.items, True):
            return current
        chosen = self.use(current.items)
        for name in sorted(self.given):
            chosen.write(f"{name}.value", current.read(f"{name}.value"))
        return chosen

    def _check_size(self, items: int) -> None:
        if not is_integer(items) or not 1 <= items <= self.batch_size:
            more = is_integer(items) and items > 0
            raise DataError(
                f"a batch has 1 to {self.batch_size} items, not {items}",
                location=user_location(),
                way_out="net.fit and net.evaluate cut larger data into batches" if more else None,
            )

    # --- phases ---------------------------------------------------------------------------------------------
    @one_at_a_time
    def forward(self, add_up: AddUp | None = None) -> None:
        """See :meth:`latte.net.Net.forward`.

        Args:
            add_up: adds up sums over the items of a batch that several processes share, by their storage; without it,
                the batch is this process's alone.
        """
        self.settle()
        executable = self._training()
        if self.unchecked and any(buffer.role == "state" for buffer in executable.buffers.values()):
            check_finite({name: executable.read(f"{name}.value") for name in sorted(self.unchecked)})
            self.unchecked.clear()
        self._count_step()
        if add_up is None:
            executable.run("forward")
        else:
            sums = executable.batch_sums("forward")
            for end in executable.run_in_parts("forward", [place for place, _ in sums]):
                for storage in (name for place, name in sums if place == end):
                    add_up(executable, storage)
        run_forward(self._in_python, executable)
        self.has_run.add("forward")
        self._measure()

    @one_at_a_time
    def skip(self) -> None:
        """What ``forward`` and ``backward`` do of a batch without items, of which other processes compute some: the
        step counts for random numbers, and nothing is added to the gradients of parameters."""
        self.settle()
        self._count_step()
        self.settle_gradients()
        self.has_run.update(("forward", "backward"))

    def _count_step(self) -> None:
        if "net.step" in self.executable.arrays:
            self.executable.arrays["net.step"][0] += 1

    def place(self, first: int) -> None:
        """Let the current batch be a part of one that other processes share, for its random numbers.

        Args:
            first: the place of its first item there; 0 if it is a batch by itself.
        """
        arrays = self.whole.arrays  # all executables have these numbers in common
        if FIRST_ITEM.name in arrays:
            arrays[FIRST_ITEM.name][0] = first

    def infer(self) -> None:
        """The inference phase, without losses and accuracies."""
        self.settle()
        self.executable.run("inference")
        self.executable.has_run.discard("forward")  # backward needs the values of the training phase

    @one_at_a_time
    def test(self) -> None:
        """See :meth:`latte.net.Net.test`."""
        self.infer()
        run_forward(self._in_python, self.executable)
        self._measure()

    @one_at_a_time
    def backward(self) -> None:
        """See :meth:`latte.net.Net.backward`."""
        if not (self.has_loss or self.seeds):
            raise TrainingError(
                "backward has nothing to start from: the net has no loss",
                location=user_location(),
                way_out="SoftmaxLossLayer(net, scores, labels), or top.set_grad(gradient)",
            )
        if "forward" not in self.executable.has_run:
            raise TrainingError(
                "backward needs the values of a forward phase of this batch",
                location=user_location(),
                way_out="call net.forward() first",
            )
        self.run_backward()

    @one_at_a_time
    def run_backward(self) -> None:
        """The backward phase, from the gradients that are set."""
        self._before_backward({})
        self.executable.run("backward")
        self._after_backward()

    def backward_in_parts(self, shares: Mapping[str, float], ends: Collection[int]) -> Iterator[int]:
        """The same for a share of a batch whose other items are computed elsewhere; see
        :meth:`latte.runtime.executable.Executable.run_in_parts`. Nothing else runs meanwhile.

        Args:
            shares: by a loss's name, that of its mean over the whole batch which these items have.
            ends: positions in the phase.
        """
        self._before_backward(shares)
        yield from self.executable.run_in_parts("backward", ends)
        self._after_backward()

    def _before_backward(self, shares: Mapping[str, float]) -> None:
        executable = self.executable
        self._weigh_losses(shares)
        self.seeds.before_backward(executable)
        if "net.accumulate" in executable.arrays:
            executable.arrays["net.accumulate"][0] = self._accumulate

    def _after_backward(self) -> None:
        self._accumulate = True
        self.has_run.add("backward")

    def _weigh_losses(self, shares: Mapping[str, float]) -> None:
        """Let backward start from the weights that losses have now, times their share, where they have been set since
        the last time; not where the user gives the gradient."""
        executable = self.executable
        weights = {loss.name: loss.loss_weight * shares.get(loss.name, 1.0) for loss in self._losses}
        for name, weight in weights.items():
            if weight != executable.loss_weights[name] and not self.seeds.gives(name):
                executable.write(f"{name}.grad", np.full(1, weight))
        executable.loss_weights = weights

    @property
    def has_loss(self) -> bool:
        """Whether backward has a loss to start from."""
        return bool(self._losses)

    @property
    def has_accuracy(self) -> bool:
        """Whether an accuracy layer measures."""
        return bool(self._accuracies)

    def _measure(self) -> None:
        arrays = self.executable.arrays
        self.loss = float(sum(loss.loss_weight * arrays[f"{loss.name}.value"][0] for loss in self._losses))
        self.accuracy = float(arrays[f"{self._accuracies[-1].name}.value"][0]) if self._accuracies else 0.0
        if math.isnan(self.loss) and not self._nan_said:
            self._nan_said = True
            origin = where_not_finite(self.graph, self.executable)
            warnings.warn(
                f"the loss is not a number{origin and f': {origin}'}; a smaller learning rate, or checking the data "
                "for NaN, may help",
                LossIsNaN,
                stacklevel=user_stacklevel(),
            )

    @contextmanager
    def no_warning(self, of_nan: bool) -> Iterator[None]:
        """Give no warning of NaN in the loss meanwhile (if ``of_nan``): the caller raises an error for it."""
        said, self._nan_said = self._nan_said, self._nan_said or of_nan
        try:
            yield
        finally:
            self._nan_said = said if of_nan else self._nan_said

    def permutation(self, items: int) -> np.ndarray:
        """The next random order of ``items`` items: a sequence that the net's seed fixes."""
        return self._shuffling().permutation(items)

    def draw_seed(self) -> int:
        """The next seed for a loader's order and random numbers, from the same sequence."""
        return int(self._shuffling().integers(2**62))

    def _shuffling(self) -> np.random.Generator:
        if self.shuffling is None:
            self.shuffling = np.random.default_rng(self.graph.settings.seed)
        return self.shuffling

    def forget_runs(self) -> None:
        """Nothing has run with the parameters as they are now: gradients are cleared, and values are out of date."""
        self._clear_parameter_gradients()
        self.has_run.clear()
        for executable in self._variants.current.values():
            executable.has_run.clear()

    # --- clearing -------------------------------------------------------------------------------------------
    @one_at_a_time
    def clear_grad(self) -> None:
        """See :meth:`latte.net.Net.clear_grad`."""
        self._clear_parameter_gradients()
        if self.graph.settings.compat:
            self.seeds.clear()
            for executable in self._variants.current.values():
                self._zero(lambda buffer: buffer.role == "grad", executable)
                write_loss_weights(executable)

    def _clear_parameter_gradients(self) -> None:
        self._accumulate = False
        if self.gradient_views:  # a user looks at the storage itself
            self._zero(_is_parameter_gradient, self.executable)

    @one_at_a_time
    def clear_values(self) -> None:
        """See :meth:`latte.net.Net.clear_values`."""
        self._zero(lambda buffer: buffer.name.endswith(".value"), self.executable)
        self.executable.has_run.discard("forward")

    def is_cleared(self, storage: str) -> bool:
        """Whether a parameter's gradient counts as zero, whatever its storage holds."""
        return not self._accumulate and _is_parameter_gradient(self.executable.buffers[storage])

    def gradients(self) -> dict[str, np.ndarray]:
        """The gradients of parameters by storage; none where they count as cleared."""
        found = self.executable.buffers.items() if self._accumulate else ()
        return {name: self.executable.read(name) for name, buffer in found if _is_parameter_gradient(buffer)}

    def take_gradients(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Go on with such gradients, as after ``backward``; not with those of what has been frozen since."""
        for name, values in gradients.items():
            if name in self.executable.buffers:
                self.executable.write(name, values)
        self._accumulate = True
        self.has_run.add("backward")

    def settle_gradients(self) -> None:
        """Let cleared gradients of parameters be zeros in memory, for users of the storage itself."""
        if not self._accumulate:
            self._zero(_is_parameter_gradient, self.executable)
        self._accumulate = True

    def _zero(self, which: Callable[[Buffer], bool], executable: Executable) -> None:
        with executable.views.in_storage():
            for name, buffer in executable.buffers.items():
                if which(buffer) and name not in executable.missing:
                    executable.clear(name)


def _is_parameter_gradient(buffer: Buffer) -> bool:
    return buffer.role == "param_grad"
