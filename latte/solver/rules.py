"""The solvers that ship, with PyTorch's formulas and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import fmax, sqrt
from latte.solver.schedules import Schedule
from latte.solver.settings import Kept, Setting
from latte.solver.solver import Solver
from swirl.errors import DeclarationError


class SGD(Solver):
    """Stochastic gradient descent with momentum and weight decay, as PyTorch defines them.

    ``velocity = momentum * velocity + gradient + weight_decay * parameter``;
    ``parameter -= learning_rate * velocity``. With ``nesterov``, the parameter follows ``gradient + weight_decay *
    parameter + momentum * velocity`` (Sutskever et al., 2013, as PyTorch has it).

    Args:
        net: a compiled net.
        learning_rate: may be changed between steps; or a schedule.
        momentum: 0 … 1.
        weight_decay: at least 0.
        nesterov: whether to look ahead along the velocity, which needs a momentum.
        more: ``layers``, ``clip_norm``, ``clip_value``; see :class:`latte.solver.Solver`.

    Raises:
        DeclarationError: for values out of range.  TrainingError: the net is not compiled, or has nothing to train.
    """

    learning_rate = Setting(0.01)
    momentum = Setting(0.0, most=1)
    weight_decay = Setting(0.0)
    nesterov = Setting(False)
    velocity = Kept()
    _keeps_zeros: ClassVar[bool] = True

    def __init__(
        self,
        net: Net,
        learning_rate: float | Schedule = 0.01,
        momentum: float | Schedule = 0.0,
        weight_decay: float | Schedule = 0.0,
        nesterov: bool = False,
        **more: Any,
    ):
        super().__init__(
            net, learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, **more
        )

    def _check_together(self, settings: Mapping[str, Any]) -> None:
        if settings["nesterov"] and settings["momentum"] == 0:
            raise DeclarationError(
                "nesterov needs a velocity to look ahead along: momentum must be greater than 0",
                location=user_location(),
                way_out="momentum=0.9, or nesterov=False",
            )

    def update(self) -> None:
        self.velocity = self.momentum * self.velocity + (self.gradient + self.weight_decay * self.parameter)
        if self.nesterov:
            gradient = self.gradient + self.weight_decay * self.parameter
            self.parameter -= self.learning_rate * (gradient + self.momentum * self.velocity)
        else:
            self.parameter -= self.learning_rate * self.velocity


class Adam(Solver):
    """Adam (Kingma and Ba, 2015, Algorithm 1), as PyTorch has it; weight decay is added to the gradient.

    ``mean`` and ``square`` are running means of the gradient and of its square; ``parameter -= learning_rate * mean /
    (1 - beta1**t) / (sqrt(square / (1 - beta2**t)) + epsilon)`` in step t.

    Args:
        net: a compiled net.
        learning_rate: may be changed between steps; or a schedule.
        beta1: 0 … 1, how much of ``mean`` stays in a step.
        beta2: 0 … 1, how much of ``square`` stays.
        epsilon: greater than 0.
        weight_decay: at least 0.
        more: ``layers``, ``clip_norm``, ``clip_value``; see :class:`latte.solver.Solver`.

    Raises:
        DeclarationError: for values out of range.  TrainingError: the net is not compiled, or has nothing to train.
    """

    learning_rate = Setting(0.001)
    beta1 = Setting(0.9, below=1)
    beta2 = Setting(0.999, below=1)
    epsilon = Setting(1e-8, above=0)
    weight_decay = Setting(0.0)
    mean, square = Kept(), Kept()
    _keeps_zeros: ClassVar[bool] = True

    def __init__(
        self,
        net: Net,
        learning_rate: float | Schedule = 0.001,
        beta1: float | Schedule = 0.9,
        beta2: float | Schedule = 0.999,
        epsilon: float | Schedule = 1e-8,
        weight_decay: float | Schedule = 0.0,
        **more: Any,
    ):
        super().__init__(
            net,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            **more,
        )

    def update(self) -> None:
        gradient = self.gradient + self.weight_decay * self.parameter
        self.mean += (1 - self.beta1) * (gradient - self.mean)
        self.square = self.beta2 * self.square + (1 - self.beta2) * gradient * gradient
        size = sqrt(self.square) / sqrt(1 - self.beta2**self.step_number) + self.epsilon
        self.parameter -= self.learning_rate / (1 - self.beta1**self.step_number) * self.mean / size


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters themselves (Loshchilov and Hutter, Decoupled Weight Decay, 2019):
    they are multiplied by ``1 - learning_rate * weight_decay`` first.

    Args:
        net: a compiled net.
        learning_rate, beta1, beta2, epsilon, more: as of :class:`Adam`.
        weight_decay: at least 0; 0.01 by default, as in PyTorch.

    Raises:
        DeclarationError: for values out of range.  TrainingError: the net is not compiled, or has nothing to train.
    """

    _keeps_zeros: ClassVar[bool] = True

    def __init__(
        self,
        net: Net,
        learning_rate: float | Schedule = 0.001,
        beta1: float | Schedule = 0.9,
        beta2: float | Schedule = 0.999,
        epsilon: float | Schedule = 1e-8,
        weight_decay: float | Schedule = 0.01,
        **more: Any,
    ):
        super().__init__(net, learning_rate, beta1, beta2, epsilon, weight_decay, **more)

    def update(self) -> None:
        self.mean += (1 - self.beta1) * (self.gradient - self.mean)
        self.square = self.beta2 * self.square + (1 - self.beta2) * self.gradient * self.gradient
        size = sqrt(self.square) / sqrt(1 - self.beta2**self.step_number) + self.epsilon
        shrunk = self.parameter * (1 - self.learning_rate * self.weight_decay)
        self.parameter = shrunk - self.learning_rate / (1 - self.beta1**self.step_number) * self.mean / size


class RMSProp(Solver):
    """Gradients divided by the root of a running mean of their squares (Hinton, lecture 6e, 2012), as PyTorch has it.

    ``square = decay * square + (1 - decay) * gradient**2``; ``velocity = momentum * velocity + gradient /
    (sqrt(square) + epsilon)``; ``parameter -= learning_rate * velocity``. With ``centered``, the square of the
    gradient's running mean is subtracted from ``square`` under the root (Graves, 2013).

    Args:
        net: a compiled net.
        learning_rate: may be changed between steps; or a schedule.
        decay: 0 … 1, how much of ``square`` stays in a step (``alpha`` in PyTorch).
        epsilon: greater than 0.
        weight_decay: at least 0; added to the gradient.
        momentum: 0 … 1.
        centered: whether to divide by the standard deviation.
        more: ``layers``, ``clip_norm``, ``clip_value``; see :class:`latte.solver.Solver`.

    Raises:
        DeclarationError: for values out of range.  TrainingError: the net is not compiled, or has nothing to train.
    """

    learning_rate = Setting(0.01)
    decay = Setting(0.99, most=1)
    epsilon = Setting(1e-8, above=0)
    weight_decay = Setting(0.0)
    momentum = Setting(0.0, most=1)
    centered = Setting(False)
    square, mean, velocity = Kept(), Kept(), Kept()
    _keeps_zeros: ClassVar[bool] = True

    def __init__(
        self,
        net: Net,
        learning_rate: float | Schedule = 0.01,
        decay: float | Schedule = 0.99,
        epsilon: float | Schedule = 1e-8,
        weight_decay: float | Schedule = 0.0,
        momentum: float | Schedule = 0.0,
        centered: bool = False,
        **more: Any,
    ):
        super().__init__(
            net,
            learning_rate=learning_rate,
            decay=decay,
            epsilon=epsilon,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
            **more,
        )

    def update(self) -> None:
        gradient = self.gradient + self.weight_decay * self.parameter
        self.square = self.decay * self.square + (1 - self.decay) * gradient * gradient
        size = self.square
        if self.centered:
            self.mean += (1 - self.decay) * (gradient - self.mean)
            size = fmax(self.square - self.mean * self.mean, 0.0)  # rounding may leave less than 0
        self.velocity = self.momentum * self.velocity + gradient / (sqrt(size) + self.epsilon)
        self.parameter -= self.learning_rate * self.velocity
