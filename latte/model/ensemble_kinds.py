"""Ensembles that are not arrays of neurons: data, losses, accuracies; and activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from latte.model import checks
from latte.model.ensemble import Ensemble
from latte.model.neuron import FieldSpec
from latte.model.phases import check_backward_in_python
from latte.model.source_location import user_location
from swirl.errors import DeclarationError


class DataEnsemble(Ensemble):
    """An ensemble whose value is set from outside.

    Args:
        shape: without the batch.
        dtype: ``float32`` or ``int32``.
        below: of integers: they are 0, 1, … up to the number before, and may be subscripts in bodies.
        name: unique in the net.
    """

    generic, without_neurons = True, True
    kind = "data"

    def __init__(
        self, shape: int | Sequence[int], dtype: str = "float32", below: int | None = None, *, name: str | None = None
    ):
        super().__init__(None, shape, name=name)
        if dtype not in ("float32", "int32"):
            message = f"the dtype of data must be 'float32' or 'int32', not {dtype!r}"
            raise DeclarationError(message, location=self.location)
        checks.check_below(below, dtype, "data", self.location)
        self.dtype, self.below = dtype, below

    @property
    def has_body(self) -> bool:
        return False

    def fields(self, batch_size: int | None = None) -> dict[str, FieldSpec]:
        found = super().fields(batch_size)
        return found | {"value": replace(found["value"], dtype=self.dtype, below=self.below)}


class ActivationEnsemble(Ensemble):
    """An ensemble whose neurons read the one element at their own index, ``self.input``."""

    generic = True


class BatchSumEnsemble(Ensemble):
    """Sums over the items of a batch, of a shape without the batch; layers with loops of their own may read them.

    A subclass has a body, ``forward(self, inputs, value)``, which adds up something of each item. Processes that share
    a batch add up their values before others read them, and their gradients before backward goes on. So ``value`` must
    be a sum over items and nothing else, of terms that are computed of an item, and of other such sums.

    Args:
        shape: of the sums.
        dims: names of its dimensions.
        kind, name: as of an :class:`Ensemble`.
    """

    without_neurons = True
    batched = False

    def __init__(
        self,
        shape: int | Sequence[int],
        dims: Sequence[str] | None = None,
        *,
        kind: str | None = None,
        name: str | None = None,
    ):
        super().__init__(None, shape, dims, kind=kind, name=name)


class LossEnsemble(Ensemble):
    """One value for a whole batch, shape ``(1,)``: a mean over its items, or over what its field ``counted`` says.

    A subclass has a body, ``forward(self, inputs, label, value)``, which is compiled and differentiated. Or, as in the
    original Latte, Python runs ``forward(self, bottom, label)``, which returns the loss, and ``backward(self, bot_grad,
    label)``, which fills the gradient of ``bottom``: on NumPy arrays whose first dimension is the batch.

    Args:
        kind, name: as of an :class:`Ensemble`.
        loss_weight: of the loss in ``net.loss``, the sum of all, which is trained on; the layer's value is without it.
    """

    generic, without_neurons = True, True
    batched = False

    def __init__(self, *, kind: str | None = None, name: str | None = None, loss_weight: float = 1.0):
        super().__init__(None, (1,), kind=kind, name=name)
        self.loss_weight = loss_weight
        if self.in_python and not isinstance(self, AccuracyEnsemble):
            check_backward_in_python(self, self.location)

    @property
    def loss_weight(self) -> float:
        """Of the loss in ``net.loss``; it may be set between steps, as where a term is warmed up. A gradient that the
        user gives the layer (``set_grad``) stays."""
        return self._loss_weight

    @loss_weight.setter
    def loss_weight(self, weight: float) -> None:
        number = checks.check_number("loss_weight", weight)
        if weight != 1 and isinstance(self, AccuracyEnsemble):
            raise DeclarationError(
                f"{type(self).__name__} is a measure, not a loss: it has no weight", location=user_location()
            )
        self._loss_weight = number

    @property
    def in_python(self) -> bool:
        """Whether Python computes the value, after all other layers."""
        return self.phase_methods.in_python

    @property
    def has_body(self) -> bool:
        return not self.in_python


class AccuracyEnsemble(LossEnsemble):
    """A measure for the whole batch that is not trained on."""

    generic = True


def in_python(ensemble: Ensemble) -> TypeGuard[LossEnsemble]:
    """Whether Python computes the ensemble's value: see :class:`LossEnsemble`."""
    return isinstance(ensemble, LossEnsemble) and ensemble.in_python


def is_loss(ensemble: Ensemble) -> TypeGuard[LossEnsemble]:
    """Whether the ensemble's value is a loss: its gradient is its weight."""
    return isinstance(ensemble, LossEnsemble) and not isinstance(ensemble, AccuracyEnsemble)
