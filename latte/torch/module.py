"""Layers of Latte as modules of PyTorch."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from latte.model.ensemble import Ensemble
from latte.model.neuron import Neuron
from latte.model.source_location import user_location, user_stacklevel
from latte.net import Net
from latte.torch.declared import Build, Input
from latte.torch.function import Function, Report
from latte.torch.operators import are_plain, forward_with_gradient, inference
from swirl.errors import DataError, DeclarationError, LatteError, TrainingError


class Module(nn.Module):
    """Layers that a function declares, compiled for PyTorch's tensors. Made by :func:`module` and :func:`layer`.

    Args:
        build: takes a net and a layer for each input; returns the layer that is the output, or several of them.
        inputs: of each input the shape without the batch, or an :class:`Input`; by default those of the first call.
        batch_size: the most items of a call; by default those of the first call, and more where more come.
        target: ``avx512``, ``avx2`` or ``portable``; by default the best that the machine runs.
        threads: by default as many as PyTorch has.
        recipes: folders of recipe files.
    """

    def __init__(
        self,
        build: Build,
        inputs: Sequence[Any] | None = None,
        *,
        batch_size: int | None = None,
        target: str | None = None,
        threads: int | None = None,
        recipes: Sequence[str] = (),
    ):
        super().__init__()
        self._location = user_location()
        self._build, self._options = build, (target, threads, tuple(recipes))
        self._given = None if inputs is None else [Input.of(each) for each in inputs]
        self._declared_size, self._capacity = batch_size, batch_size or 1
        self._function: Function | None = None
        self._single, self._outputs, self._random, self._number = True, 1, False, 0
        self._parameter_names: list[tuple[str, str]] = []
        self._state_names: list[tuple[str, str]] = []
        if self._given is not None and all(each.known for each in self._given):
            self._declare(self._given)

    @property
    def report(self) -> Report:
        """What it has done: calls, what had to be copied and why, what compiling took."""
        return Report() if self._function is None else self._function.report

    def forward(self, *inputs: Tensor) -> Any:
        """The outputs for a batch: tensors of shape ``(items, …)``, or of shape ``()`` where a loss is returned.

        Args:
            inputs: of shape ``(items, …)``.

        Raises:
            DataError: they do not fit.
        """
        _check_tensors(inputs)
        if self._function is None:
            with _DECLARING:
                if self._function is None:
                    self._declare_for(inputs)
        if torch.is_autocast_enabled("cpu"):
            inputs = tuple(x.float() if x.is_floating_point() else x for x in inputs)
        parameters = [getattr(getattr(self, group), name) for group, name in self._parameter_names]
        states = [getattr(getattr(self, group), name) for group, name in self._state_names]
        self._check_types(inputs, parameters)
        if inputs[0].shape[0] > self._capacity:
            self._grow(inputs[0].shape[0])
        learning = torch.is_grad_enabled()
        wanted = [learning and each.requires_grad for each in parameters]
        of_inputs = learning and any(x.requires_grad for x in inputs)
        if not self.training and not of_inputs and not any(wanted):
            run = inference if are_plain(inputs) else torch.ops.latte.inference
            outputs = run(list(inputs), parameters, states, self._number, self._capacity)
            return outputs[0] if self._single else tuple(outputs)
        seed = torch.randint(_SEEDS, ()) if self._random and self.training else None
        purpose = "training" if self.training else "evaluation"
        call = forward_with_gradient if are_plain(inputs) else torch.ops.latte.forward
        outputs = call(list(inputs), parameters, states, seed, self._number, self._capacity, purpose, wanted, of_inputs)
        count = self._outputs
        if self.training and states:
            torch._foreach_copy_(states, outputs[count + 1 :])
        return outputs[0] if self._single else tuple(outputs[:count])

    def extra_repr(self) -> str:
        """The inputs, and the layers."""
        if self._function is None:
            return "shapes of the first call"
        declared = self._function.declared
        shapes = ", ".join(str(each.shape) for each in declared.inputs)
        return f"{shapes} → {', '.join(str(shape) for shape in declared.output_shapes())}, up to {self._capacity} items"

    # --- declaring ------------------------------------------------------------------------------------------
    def _declare(self, inputs: Sequence[Input]) -> None:
        """Let the layers, their parameters and their running statistics exist."""
        seed = int(torch.randint(_SEEDS, ()))
        try:
            function = Function(self._build, inputs, self._capacity, seed, *self._options)
        except LatteError as error:
            error.location = error.location or self._location
            raise
        declared = function.declared
        groups: dict[str, nn.Module] = {}
        for storage in (*function.parameters, *function.states):
            owner, name = _owner_and_name(storage)
            if owner not in groups and hasattr(self, owner):
                raise DeclarationError(
                    f"a layer is called {owner}, as an attribute of PyTorch's modules is",
                    location=self._location,
                    way_out=f"name='my_{owner}'",
                )
            groups.setdefault(owner, nn.Module())
            initial = torch.from_numpy(declared.initial(storage))
            values = torch.empty_like(initial).copy_(initial)  # aligned as kernels need it, which NumPy's need not be
            if storage in declared.parameters:
                groups[owner].register_parameter(name, nn.Parameter(values))
            else:
                groups[owner].register_buffer(name, values)
        for owner, group in groups.items():
            self.add_module(owner, group)
        self._parameter_names = [_owner_and_name(storage) for storage in function.parameters]
        self._state_names = [_owner_and_name(storage) for storage in function.states]
        self._single, self._outputs = declared.single, len(declared.outputs)
        self._random, self._number = declared.random, function.number
        self._function = function

    def _declare_for(self, inputs: Sequence[Tensor]) -> None:
        """Declare the layers for the inputs of the first call."""
        given = [Input()] * len(inputs) if self._given is None else self._given
        if not inputs or len(given) != len(inputs):
            raise DataError(
                f"this module takes {len(given) or 'some'} inputs, not {len(inputs)}", location=user_location()
            )
        self._capacity = max(self._capacity, inputs[0].shape[0])
        kinds = ("float32" if x.is_floating_point() else "int32" for x in inputs)
        known = [
            Input(each.shape or tuple(x.shape[1:]) or (1,), each.dtype or kind, each.below)
            for each, x, kind in zip(given, inputs, kinds, strict=True)
        ]
        self._declare(known)
        if self._parameter_names:
            warnings.warn(
                "the parameters of a Latte module exist from its first call on: make the optimizer after it, or give "
                "the shapes: inputs=[…]",
                LateParameters,
                stacklevel=user_stacklevel(),
            )

    def _grow(self, items: int) -> None:
        """Take more items from now on.

        Raises:
            DataError: a number has been declared.
        """
        if self._declared_size is not None:
            raise DataError(
                f"{items} items are given, and the module was declared for {self._declared_size} at most",
                location=user_location(),
                way_out="batch_size=… takes more; without it, a module takes as many as come",
            )
        self._capacity = int(items)

    def _check_types(self, inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        """Refuse types that do not fit.

        Raises:
            DataError: other than float32 (or float64, all of them).
        """
        if None in parameters:
            group, name = self._parameter_names[parameters.index(None)]
            raise DataError(f"{group}.{name} is None, and the layer needs it", location=user_location())
        kinds = {x.dtype for x in (*inputs, *parameters) if x.is_floating_point()}
        if len(kinds) > 1 or not kinds <= _TYPES:
            raise DataError(
                f"a Latte module computes in float32, or all in float64, not in {', '.join(sorted(map(str, kinds)))}",
                location=user_location(),
                way_out="x.float(); under torch.autocast this is done",
            )

    # --- what PyTorch does with modules ------------------------------------------------------------------------
    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Module:
        """What ``to``, ``half``, ``cuda`` and others do, refused where nothing could run then.

        Raises:
            TrainingError: for a type or a device that Latte does not compute with.
        """
        changed = fn(torch.empty(0))
        if changed.dtype not in _TYPES or changed.device.type not in ("cpu", "meta"):
            raise TrainingError(
                f"a Latte module computes in float32 or float64 on the CPU, not in {changed.dtype} on {changed.device}",
                location=user_location(),
                way_out="under torch.autocast it computes in float32",
            )
        made: Module = super()._apply(fn, recurse)
        return made

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if self._function is None and any(name.startswith(prefix) for name in state):
            raise DataError(
                "the parameters of this module do not exist yet",
                location=user_location(),
                way_out="give the shapes, inputs=[…], or call it once before load_state_dict",
            )
        super()._load_from_state_dict(state, prefix, metadata, *rest)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._function is not None:
            self._number = self._function.number


class LateParameters(UserWarning):
    """A module got its parameters at its first call: an optimizer that was made before does not train them."""


def module(
    build: Build,
    inputs: Sequence[Any] | None = None,
    *,
    batch_size: int | None = None,
    target: str | None = None,
    threads: int | None = None,
    recipes: str | PathLike[str] | Sequence[str | PathLike[str]] = (),
) -> Module:
    """Layers of Latte as a module of PyTorch::

        block = latte.torch.module(lambda net, x: ReLULayer(net, ConvLayer(net, x, num_filters=64)), [(3, 32, 32)])

    Args:
        build: takes a net and a layer for each input; returns the layer that is the output, or several of them.
        inputs: of each input the shape without the batch, or a :class:`latte.torch.Input`; by default the module takes
            those of its first call, and has its parameters from then on.
        batch_size: the most items of a call; by default as many as come: more than before compile again.
        target: ``avx512``, ``avx2`` or ``portable``; by default the best that the machine runs.
        threads: by default as many as PyTorch has.
        recipes: a folder of recipe files, or several, as of :class:`latte.Net`.

    Raises:
        DeclarationError: an input is not a shape, or the layers are declared wrongly.
    """
    folders = recipes if isinstance(recipes, (list, tuple)) else (recipes,)
    return Module(build, inputs, batch_size=batch_size, target=target, threads=threads, recipes=tuple(folders))


def layer(
    kind: type[Neuron] | Callable[..., Ensemble], *, inputs: Sequence[Any] | None = None, **options: Any
) -> Module:
    """One layer as a module of PyTorch: a neuron of one's own, or a layer of the library::

        swish = latte.torch.layer(Swish)
        norm = latte.torch.layer(GroupNormLayer, groups=8, inputs=[(64, 28, 28)])

    Args:
        kind: a class of neurons, each of which reads the one element at its own index; or a function that takes a net,
            sources and ``options``, and returns a layer.
        inputs: as of :func:`module`.
        options: ``batch_size``, ``target``, ``threads`` and ``recipes`` as of :func:`module`; others are the layer's.

    Raises:
        DeclarationError: as :func:`module`; or ``kind`` is neither.
    """
    own = {name: options.pop(name) for name in ("batch_size", "target", "threads", "recipes") if name in options}
    if isinstance(kind, type):
        if not issubclass(kind, Neuron):
            raise DeclarationError(f"{kind.__name__} is not a class of neurons", location=user_location())
        if options:
            raise DeclarationError(f"a layer of {kind.__name__} has no {next(iter(options))}", location=user_location())
        return module(OfNeurons(kind), inputs, **own)
    if not callable(kind):
        raise DeclarationError(
            f"a layer is a class of neurons, or a function of the layer library, not {kind!r}", location=user_location()
        )
    return module(OfLayer(kind, options), inputs, **own)


@dataclass(frozen=True)
class OfNeurons:
    """Declares a layer of neurons that each read one element; can be pickled."""

    neuron: type[Neuron]

    def __call__(self, net: Net, source: Ensemble) -> Ensemble:
        return net.init_activation_ensemble(self.neuron, source)


@dataclass(frozen=True)
class OfLayer:
    """Declares a layer of the library; can be pickled."""

    kind: Callable[..., Ensemble]
    options: dict[str, Any]

    def __call__(self, net: Net, *sources: Ensemble) -> Ensemble:
        return self.kind(net, *sources, **self.options)


def _check_tensors(inputs: Sequence[Any]) -> None:
    """Refuse what is not a batch, and what looks at a module in a way that its kernels do not answer.

    Raises:
        DataError, TrainingError: with the line of the call.
    """
    if not inputs or not all(isinstance(x, Tensor) and x.dim() > 0 for x in inputs):
        raise DataError("a Latte module takes tensors, the items in their first dimension", location=user_location())
    if torch.compiler.is_compiling():
        return
    if torch._C._are_functorch_transforms_active():
        raise TrainingError(
            "transforms of torch.func do not go through a Latte module",
            location=user_location(),
            way_out="loss.backward() and torch.autograd.grad do",
        )
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(x).tangent is not None for x in inputs):
        raise TrainingError(
            "forward-mode derivatives do not go through a Latte module",
            location=user_location(),
            way_out="loss.backward() and torch.autograd.grad do",
        )


def _owner_and_name(storage: str) -> tuple[str, str]:
    owner, _, name = storage.partition(".")
    return owner, name


_DECLARING = threading.Lock()
"""Held while a module is declared by its first call: several threads may call it."""
_TYPES = {torch.float32, torch.float64}
_SEEDS = 2**31 - 1
