"""The gradients that the user gives: ``ensemble.set_grad(values)``, and views of a gradient's storage."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import is_loss
from latte.model.graph import Graph
from latte.model.source_location import user_location
from latte.runtime.executable import Executable
from latte.runtime.python_losses import gradients, sources_in_python
from swirl.errors import DataError, TrainingError


@dataclass(frozen=True)
class Given:
    """Gradients that the user has given, by the layers' names.

    Args:
        inner: at layers whose readers add theirs.
        tops: at layers that no layer sends a gradient to.
        compiled_for: the inner layers that the net is compiled for; some may have been cleared since.
        cleared: whether some were given, and cleared: ``backward`` starts from zero then.
    """

    inner: dict[str, np.ndarray] = field(default_factory=dict)
    tops: dict[str, np.ndarray] = field(default_factory=dict)
    compiled_for: frozenset[str] = frozenset()
    cleared: bool = False


class SeedGradients:
    """What ``backward`` starts from besides the losses. It stays until it is given again, or cleared.

    At a layer that no layer sends a gradient to (a top, or a loss), the values are in the gradient itself, and
    ``backward`` only reads them. At an inner layer they are written before each ``backward``, and its readers add
    theirs: the net is compiled for that (:attr:`inner`). So are the gradients of losses in Python.
    """

    def __init__(self, graph: Graph):
        self._graph = graph
        self._inner: dict[str, np.ndarray] = {}
        self._tops: dict[str, np.ndarray] = {}
        self._viewed: set[str] = set()
        self._compiled_for: set[str] = set()  # inner layers whose readers add to what is given
        self._cleared = False
        self._in_python = graph.in_python()
        sources = sources_in_python(self._in_python)
        self._from_python = frozenset(e.name for e in sources if graph.has_gradient_reader(e))

    def __bool__(self) -> bool:
        return bool(self._inner or self._tops or self._viewed or self._cleared)

    @property
    def inner(self) -> frozenset[str]:
        """The inner layers whose gradient the user has given at some time, or a loss in Python gives, by name."""
        return frozenset(self._compiled_for) | self._from_python

    def give(self, ensemble: Ensemble, values: np.ndarray, executable: Executable) -> bool:
        """Take a gradient.

        Returns:
            whether the net must be compiled again, because readers must add to it.

        Raises:
            DataError: the shape is wrong, or the net computes no gradient there.
        """
        name, gradient = ensemble.name, np.array(values, np.float32)
        if executable.is_fused_away(f"{name}.grad"):  # given, it is stored: the net is compiled for that
            needed = ensemble.fields(executable.items)["grad"].shape
        else:
            needed = executable.shape(f"{name}.grad")
        if gradient.shape != needed:
            raise DataError(
                f"{name}.set_grad: the shape is {gradient.shape}, but {needed} is needed", location=user_location()
            )
        if not self._graph.has_gradient_reader(ensemble):
            self._tops[name] = gradient
            self.start(executable)
            return False
        known = name in self._compiled_for
        self._inner[name] = gradient
        self._compiled_for.add(name)
        return not known

    def given(self, executable: Executable) -> Given:
        """What was given until now, views of ``executable`` included."""
        viewed = {n: executable.read(f"{n}.grad") for n in self._viewed if _needed(executable, n) is not None}
        return Given(dict(self._inner), {**self._tops, **viewed}, frozenset(self._compiled_for), self._cleared)

    def follow(self, given: Given) -> None:
        """Take what was given to another net of the same declaration."""
        self._inner, self._tops = dict(given.inner), dict(given.tops)
        self._compiled_for, self._cleared = set(given.compiled_for), given.cleared

    def take_back(self, ensemble: Ensemble) -> None:
        """Forget the gradient of an inner layer."""
        del self._inner[ensemble.name]
        self._compiled_for.remove(ensemble.name)

    def clear(self) -> None:
        """What has been given counts as zero, for batches of any size."""
        self._cleared = bool(self)
        self._inner.clear()
        self._tops.clear()

    def view(self, ensemble: Ensemble) -> None:
        """A user holds the storage of a gradient: if backward starts from it, it counts as given."""
        if not self._graph.has_gradient_reader(ensemble) and not is_loss(ensemble):
            self._viewed.add(ensemble.name)

    def gives(self, name: str) -> bool:
        """Whether the user has given the gradient of an ensemble that no other reads."""
        return name in self._tops

    def start(self, executable: Executable) -> None:
        """Write the gradients of tops that have this batch size, and a gradient: of what is frozen, none may be."""
        for name, values in self._tops.items():
            if _needed(executable, name) == values.shape:
                executable.write(f"{name}.grad", values)

    def before_backward(self, executable: Executable) -> None:
        """Write what losses in Python send, and gradients of inner layers, which the last ``backward`` has added to.

        Raises:
            TrainingError: a gradient was given for another batch size; nothing is written then.
        """
        for name, values in {**self._inner, **self._tops}.items():
            if (needed := _needed(executable, name)) not in (None, values.shape):
                raise TrainingError(
                    f"the gradient set at {name} has shape {values.shape}, this batch needs {needed}",
                    location=user_location(),
                    way_out=f"call {name}.set_grad(gradient) again after net.set_batch(…)",
                )
        given = gradients(self._in_python, executable)
        for name in self._compiled_for:
            seed, needed = self._inner.get(name), _needed(executable, name)
            if needed is None:
                continue
            if seed is None:
                seed = np.zeros(needed, np.float32)
            executable.write(f"{name}.grad", seed + given.pop(name, 0))
        for name, values in given.items():
            executable.write(f"{name}.grad", values + self._tops.get(name, 0))


def _needed(executable: Executable, name: str) -> tuple[int, ...] | None:
    """The shape of a layer's gradient; None where it has none."""
    storage = f"{name}.grad"
    return executable.shape(storage) if storage in executable.buffers else None
