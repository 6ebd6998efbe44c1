"""What a net does after its declaration: compile, forward, backward, fit, evaluate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from latte.model.checks import is_integer
from latte.model.ensemble import AccuracyEnsemble, DataEnsemble, Ensemble
from latte.model.place import user_place, user_stacklevel
from latte.planning.chains import possible_names
from latte.planning.phases import is_loss
from latte.runtime.data import check_data
from latte.runtime.executable import CompileReport, Executable, compile_net, sum_of_reports
from latte.runtime.given import GivenGradients
from swirl.config import MAX_THREADS
from swirl.errors import CommandError, DataError, DeclarationError, TrainingError, nearest
from swirl.ir.buffers import Buffer
from swirl.jit import progress_bar
from swirl.runner import Runner
from swirl.target import resolve_target

if TYPE_CHECKING:
    from latte.explain.explanation import Explanation
    from latte.model.connection import Connection
    from latte.net import Net
    from latte.runtime.timings import Timings
    from latte.runtime.training import Evaluation, History


class LossIsNaN(UserWarning):
    """The loss is not a number: said once."""


class Running:
    """The half of :class:`latte.net.Net` that runs."""

    ensembles: list[Ensemble]
    connections: list[Connection]
    batch_size: int
    seed: int

    def __init__(self) -> None:
        self.loss = 0.0
        self.accuracy = 0.0
        self.recipes: dict[str, Path] = {}
        self.has_run: set[str] = set()
        self.runner: Runner
        self._executables: dict[int, Executable] = {}
        self._reports: list[CompileReport] = []
        self._current: Executable | None = None
        self.given = GivenGradients(self._whole)
        self._accumulate = False
        self._nan_said = False
        self._shuffling: np.random.Generator | None = None
        self.gradient_views = False

    # --- compiling ----------------------------------------------------------------------------------------
    @property
    def compiled(self) -> bool:
        """Whether ``compile`` has been called."""
        return self._current is not None

    @property
    def executable(self) -> Executable:
        """The compiled net for the batch size last used.

        Raises:
            TrainingError: the net is not compiled.
        """
        if self._current is None:
            raise TrainingError("the net is not compiled", place=user_place(), way_out="call net.compile() first")
        return self._current

    @property
    def report(self) -> CompileReport:
        """What compiling took so far, all in all: every batch size of the net, and its solver.

        Raises:
            TrainingError: the net is not compiled.
        """
        if not self._reports:
            raise TrainingError("the net is not compiled", place=user_place(), way_out="call net.compile() first")
        return sum_of_reports(self._reports)

    def add_report(self, report: CompileReport) -> None:
        """Count what was compiled for this net elsewhere: by a solver."""
        self._reports.append(report)

    def use_recipe(self, layers: Ensemble | str | Sequence[Ensemble | str], path: str | Path) -> None:
        """Use a recipe file for one ensemble, for every ensemble of a kind (``"conv"``), or for a chain of layers.

        Args:
            layers: an ensemble or its name, a kind; for a file that declares a chain, the kinds joined
                (``"conv_relu"``) or the layers (``[conv1, relu1]``, or their names).
            path: of the file.

        Raises:
            CommandError: the net is compiled already, or has no such ensemble, kind or chain; or these are none.
        """
        if self.compiled:
            raise CommandError("use_recipe: the net is compiled already", place=user_place(),
                               way_out="call it before net.compile()")  # fmt: skip
        given = [layers] if isinstance(layers, (str, Ensemble)) else layers
        if not isinstance(given, (list, tuple)) or not given or not all(isinstance(e, (str, Ensemble)) for e in given):
            raise CommandError(f"use_recipe is for a layer, a kind or a list of layers, not for {layers!r}",
                               place=user_place(), way_out='net.use_recipe(conv1, path), or "conv"')  # fmt: skip
        if not isinstance(path, (str, Path)):
            raise CommandError(f"the path of a recipe is a string or a Path, not {path!r}", place=user_place())
        names = [one if isinstance(one, str) else one.name for one in given]
        name, known = "_".join(names), {name for e in self.ensembles for name in (e.name, e.kind)}
        if name not in known and name not in possible_names(self._whole):
            if len(names) > 1:
                raise CommandError(f"{', '.join(names)} is no chain of neighbours: each layer reads the one before it",
                                   place=user_place(), way_out="name them from the source to the reader")  # fmt: skip
            way_out = f"{nearest(name, known)}there are {', '.join(sorted(known))}, and chains of neighbours"
            raise CommandError(f"no ensemble or kind named {name!r}", place=user_place(), way_out=way_out)
        self.recipes[name] = Path(path)

    def compile(
        self, *, target: str | None = None, threads: int | None = None, progress: bool = False
    ) -> CompileReport:
        """Compile the net for its batch size, once, after all layers exist.

        Args:
            target: ``avx512``, ``avx2`` or ``portable``; by default the best that the machine runs.
            threads: of OpenMP; by default all cores.
            progress: whether to show a progress bar.

        Returns:
            what it took, and where the generated code is.

        Raises:
            CommandError: it is compiled already.  DeclarationError: the net is empty, or an ensemble reads nothing.
            LatteError: see :mod:`swirl.errors`. Nothing is half done then: the net can be mended and compiled.
        """
        place = user_place()
        if self.compiled:
            raise CommandError("the net is compiled already", place=place, way_out="declare a new net")
        if threads is not None and not (is_integer(threads) and 1 <= threads <= MAX_THREADS):
            raise DeclarationError(
                f"the number of threads must be an integer from 1 to {MAX_THREADS}, not {threads!r}", place=place
            )
        self._target = resolve_target(target)
        self.runner = Runner(None if threads is None else int(threads))
        self._show_progress = progress
        executable = self._compile(self.batch_size, None)
        self._executables[self.batch_size] = self._current = executable
        for ensemble in self.ensembles:
            ensemble.compiled = True
        return executable.report

    @property
    def _whole(self) -> Net:
        """The net itself, of which this class is the half that runs."""
        return cast("Net", self)

    def _compile(self, batch_size: int, shared: Executable | None) -> Executable:
        given = (self._whole, batch_size, self._target, self.runner)
        options: dict[str, Any] = {"shared": shared, "seeded": self.given.inner}
        if not self._show_progress:
            made = compile_net(*given, **options)
        else:
            with progress_bar("scheduling layers") as scheduling, progress_bar() as compiling:
                made = compile_net(*given, **options, on_stage=scheduling, progress=compiling)
        self._reports.append(made.report)
        return made

    def _use(self, batch_size: int) -> Executable:
        """Make the executable for a batch size current, compiling it where needed; parameters are shared."""
        if batch_size not in self._executables:
            self._executables[batch_size] = self._compile(batch_size, self.executable)
        if self._executables[batch_size] is not self._current:
            self._current = self._executables[batch_size]
            self.given.start(self._current)
        return self._current

    def use_full_batch(self) -> Executable:
        """Back to the net's own batch size, behind a smaller batch."""
        return self._use(self.batch_size)

    def prepare(self, batch_size: int) -> None:
        """Compile the net for a smaller batch size too, so that the first such batch does not wait.

        Raises:
            DataError: not 1 … ``batch_size`` of the net.
        """
        self._check_size(batch_size)
        current = self.executable
        self._use(batch_size)
        self._current = current

    def _check_size(self, items: int) -> None:
        if not is_integer(items) or not 1 <= items <= self.batch_size:
            raise DataError(
                f"a batch has 1 to {self.batch_size} items, not {items}",
                place=user_place(),
                way_out="net.fit and net.evaluate cut larger data into batches" if items else None,
            )

    # --- running --------------------------------------------------------------------------------------------
    def set_batch(self, *arrays: Any) -> None:
        """Set the values of the data layers, in the order of their construction: ``net.set_batch(images, labels)``.

        A batch smaller than ``batch_size`` is computed as such (its size is compiled the first time). Labels may have
        shape (batch,) or (batch, 1).

        Raises:
            DataError: wrong number of arrays, wrong shapes or types, labels out of range. Nothing is set then.
        """
        checked = self.check_data(*arrays)
        count = len(next(iter(checked.values())))
        self._check_size(count)
        executable = self._use(count)
        for name, array in checked.items():
            executable.write(f"{name}.value", array)
        executable.has_run.discard("forward")  # its values are those of other data

    def check_data(self, *arrays: Any) -> dict[str, np.ndarray]:
        """Arrays for the data layers, any number of items; see :func:`latte.runtime.data.check_data`."""
        return check_data([e for e in self.ensembles if isinstance(e, DataEnsemble)], arrays)

    def forward(self) -> None:
        """The forward phase of all layers, as in training. Sets ``net.loss`` and ``net.accuracy``."""
        executable = self.executable
        if "net.step" in executable.arrays:
            executable.arrays["net.step"][0] += 1
        executable.run("forward")
        self.has_run.add("forward")
        self._measures()

    def test(self) -> None:
        """The inference phase: dropout off, batch norm with running statistics. Sets ``net.loss``, ``net.accuracy``."""
        self.executable.run("inference")
        self.executable.has_run.discard("forward")  # backward needs the values of the training phase
        self._measures()

    def backward(self) -> None:
        """Gradients of inputs and parameters; those of parameters add up until ``clear_grad``.

        Raises:
            TrainingError: there is no loss and no gradient was set, or it was set for another batch size, or
                ``forward`` has not run.
        """
        executable = self.executable
        if not (self.has_loss or self.given):
            raise TrainingError(
                "backward has nothing to start from: the net has no loss",
                place=user_place(),
                way_out="SoftmaxLossLayer(net, scores, labels), or top.set_grad(gradient)",
            )
        if "forward" not in executable.has_run:
            raise TrainingError(
                "backward needs the values of a forward phase of this batch",
                place=user_place(),
                way_out="call net.forward() first",
            )
        self._backward()

    def _backward(self) -> None:
        """The backward phase, from whatever gradients there are."""
        executable = self.executable
        self.given.before_backward(executable)
        if "net.accumulate" in executable.arrays:
            executable.arrays["net.accumulate"][0] = self._accumulate
        executable.run("backward")
        self._accumulate = True
        self.has_run.add("backward")

    def clear_grad(self) -> None:
        """Let the next ``backward`` start the parameters' gradients anew, without a pass over memory.

        Until then they read as zero. Gradients given by ``set_grad`` stay.
        """
        self._accumulate = False
        if self.gradient_views:  # somebody looks at the storage itself
            self._zero(lambda buffer: buffer.role == "param_grad")

    def clear_values(self) -> None:
        """Zeros in the value of every layer, data layers included: set the data again before the next ``forward``.

        Nothing needs it, since ``forward`` computes values afresh; programs for the original call it.
        """
        self._zero(lambda buffer: buffer.name.endswith(".value"))
        self.executable.has_run.discard("forward")

    def _zero(self, which: Callable[[Buffer], bool]) -> None:
        with self.executable.views.in_storage():
            for name, buffer in self.executable.buffers.items():
                if which(buffer):
                    self.executable.arrays[name][...] = 0

    @property
    def forward_tasks(self) -> list[Callable[[], None]]:
        """What ``forward`` does, as the original's benchmarks time it: nothing for each data layer, then all layers.

        Empty before ``compile``, as ``backward_tasks``.
        """
        if not self.compiled:
            return []
        data = sum(isinstance(ensemble, DataEnsemble) for ensemble in self.ensembles)
        return [*[lambda: None] * data, self.forward]

    @property
    def backward_tasks(self) -> list[Callable[[], None]]:
        """What ``backward`` does, in one task; it runs without a loss too, from the gradients that there are."""
        return [self._backward] if self.compiled else []

    @property
    def has_loss(self) -> bool:
        """Whether backward has a loss to start from."""
        return any(is_loss(ensemble) for ensemble in self.ensembles)

    def is_cleared(self, storage: str) -> bool:
        """Whether a parameter's gradient counts as zero, whatever its storage holds."""
        return not self._accumulate and self.executable.buffers[storage].role == "param_grad"

    def settle_gradients(self) -> None:
        """Let cleared gradients of parameters be zeros in memory, for who reads or changes the storage itself."""
        if not self._accumulate:
            self._zero(lambda buffer: buffer.role == "param_grad")
        self._accumulate = True

    def compile_again(self) -> None:
        """The net again, with readers that add to the gradients that the user gives."""
        old = self.executable
        new = self._compile(old.batch_size, old)
        for name, array in old.arrays.items():
            if name in new.arrays and new.arrays[name] is not array and name not in old.missing:
                new.write(name, old.read(name))  # a recipe may have laid it out differently
        new.has_run = set(old.has_run)
        new.missing |= old.missing
        lost = {name for name in old.missing if name.endswith(".value")}
        if any(lost & step.storage for step in new.order["backward"]):
            new.has_run.discard("forward")  # backward reads what has been fused away until now
        self._executables = {old.batch_size: new}
        self._current = new

    @contextmanager
    def no_warning(self, of_nan: bool) -> Iterator[None]:
        """Say nothing of NaN in the loss meanwhile (if ``of_nan``): somebody raises an error for it."""
        said, self._nan_said = self._nan_said, self._nan_said or of_nan
        try:
            yield
        finally:
            self._nan_said = said if of_nan else self._nan_said

    def permutation(self, items: int) -> np.ndarray:
        """The next random order of ``items`` items: a sequence that the net's seed fixes."""
        if self._shuffling is None:
            self._shuffling = np.random.default_rng(self.seed)
        return self._shuffling.permutation(items)

    def _measures(self) -> None:
        self.loss = float(sum(self.executable.arrays[f"{e.name}.value"][0] for e in self.ensembles if is_loss(e)))
        accuracies = [
            self.executable.arrays[f"{e.name}.value"][0] for e in self.ensembles if isinstance(e, AccuracyEnsemble)
        ]
        self.accuracy = float(accuracies[-1]) if accuracies else 0.0
        if np.isnan(self.loss) and not self._nan_said:
            self._nan_said = True
            warnings.warn(
                "the loss is not a number; a smaller learning rate, or checking the data for NaN, may help",
                LossIsNaN,
                stacklevel=user_stacklevel(),
            )

    # --- looking ------------------------------------------------------------------------------------------
    def explain(self, ensemble: Ensemble | str, phase: str | None = None) -> Explanation:
        """What the compiler did with an ensemble; see :func:`latte.explain.explanation.explain`."""
        from latte.explain.explanation import explain

        return explain(self, ensemble, phase)

    def timings(self, phase: str = "forward", repeat: int = 10) -> Timings:
        """How long each layer takes; see :func:`latte.runtime.timings.timings`."""
        from latte.runtime.timings import timings

        return timings(self, phase, repeat)

    # --- loops ----------------------------------------------------------------------------------------------
    def fit(self, images: Any, labels: Any, *, solver: Any, epochs: int = 1, shuffle: bool = True,
            stop_on_nan: bool = True, progress: bool = True,
            after_epoch: Callable[[int, History], None] | None = None) -> History:  # fmt: skip
        """Train on a data set; see :func:`latte.runtime.training.fit`."""
        from latte.runtime.training import fit

        return fit(self, images, labels, solver=solver, epochs=epochs, shuffle=shuffle, stop_on_nan=stop_on_nan,
                   progress=progress, after_epoch=after_epoch)  # fmt: skip

    def evaluate(self, images: Any, labels: Any) -> Evaluation:
        """Loss and accuracy over a data set in the inference phase; see :func:`latte.runtime.training.evaluate`."""
        from latte.runtime.training import evaluate

        return evaluate(self, images, labels)
