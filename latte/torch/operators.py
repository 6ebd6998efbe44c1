"""The operators ``latte::forward``, ``latte::inference`` and ``latte::backward`` of PyTorch.

They are functions of tensors, and of the number of a :class:`latte.torch.function.Function`: they change nothing, so
``torch.compile``, ``torch.export``, checkpointed segments and hooks on saved tensors see nothing special. ``forward``
returns, after the outputs, one tensor with what ``backward`` needs besides, which is all the state of a call; and in
training, the running statistics after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from latte.torch.function import Bound, Function, Variant, function_of
from swirl.errors import TrainingError

_LIBRARY = torch.library.Library("latte", "DEF")
_LIBRARY.define(
    "inference(Tensor[] inputs, Tensor[] parameters, Tensor[] states, int function, int capacity) -> Tensor[]"
)
_LIBRARY.define(
    "forward(Tensor[] inputs, Tensor[] parameters, Tensor[] states, Tensor? seed, int function, int capacity, "
    "str purpose, bool[] wanted, bool of_inputs) -> Tensor[]"
)
_LIBRARY.define(
    "backward(Tensor[] gradients, Tensor[] inputs, Tensor[] parameters, Tensor[] states, Tensor[] outputs, "
    "Tensor saved, Tensor? seed, SymInt items, int function, int capacity, str purpose, bool[] channels_last, "
    "bool[] wanted, bool of_inputs) -> Tensor[]"
)


# --- what they compute ----------------------------------------------------------------------------------------
def inference(
    inputs: list[Tensor], parameters: list[Tensor], states: list[Tensor], function: int, capacity: int
) -> list[Tensor]:
    found, bound = _checked(inputs, parameters, states, function, capacity, "inference")
    return found.forward(inputs, parameters, states, 0, bound)


def _forward(
    inputs: list[Tensor],
    parameters: list[Tensor],
    states: list[Tensor],
    seed: Tensor | None,
    function: int,
    capacity: int,
    purpose: str,
    wanted: list[bool],
    of_inputs: bool,
) -> list[Tensor]:
    found, bound = _checked(inputs, parameters, states, function, capacity, purpose, wanted, of_inputs)
    return found.forward(inputs, parameters, states, _number(seed), bound)


def _checked(
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    states: Sequence[Tensor],
    function: int,
    capacity: int,
    purpose: str,
    wanted: Sequence[bool] = (),
    of_inputs: bool = False,
) -> tuple[Function, Bound]:
    """What a call runs, once its tensors were checked.

    Raises:
        DataError: as :meth:`latte.torch.function.Function.check`.
    """
    found = function_of(function)
    found.check(inputs, parameters, states)
    variant = found.variant(purpose, inputs, parameters, capacity, wanted, of_inputs)
    return found, found.bound(variant, inputs[0].shape[0])


def _backward(
    gradients: list[Tensor],
    inputs: list[Tensor],
    parameters: list[Tensor],
    states: list[Tensor],
    outputs: list[Tensor],
    saved: Tensor,
    seed: Tensor | None,
    items: int,
    function: int,
    capacity: int,
    purpose: str,
    channels_last: list[bool],
    wanted: list[bool],
    of_inputs: bool,
) -> list[Tensor]:
    found = function_of(function)
    variant = _variant(gradients, capacity, purpose, channels_last, wanted, of_inputs, found)
    bound = found.bound(variant, items)
    return found.backward(gradients, inputs, parameters, states, outputs, saved, _number(seed), items, bound)


def _variant(
    gradients: Sequence[Tensor],
    capacity: int,
    purpose: str,
    channels_last: Sequence[bool],
    wanted: Sequence[bool],
    of_inputs: bool,
    function: Function,
) -> Variant:
    double = gradients[0].dtype == torch.float64
    return Variant(capacity, purpose, tuple(channels_last), tuple(wanted), of_inputs, double, function.threads)


def _number(seed: Tensor | None) -> int:
    return 0 if seed is None else int(seed)


for _name, _kernel in {"inference": inference, "forward": _forward, "backward": _backward}.items():
    _LIBRARY.impl(_name, _kernel, "CPU")


# --- shapes ---------------------------------------------------------------------------------------------------
@torch.library.register_fake("latte::inference", lib=_LIBRARY)
def _inference_shapes(inputs: Any, parameters: Any, states: Any, function: int, capacity: int) -> list[Tensor]:
    found, bound = _checked(inputs, parameters, states, function, capacity, "inference")
    return found.new_results(inputs[0].shape[0], states, bound)


@torch.library.register_fake("latte::forward", lib=_LIBRARY)
def _forward_shapes(
    inputs: Any,
    parameters: Any,
    states: Any,
    seed: Any,
    function: int,
    capacity: int,
    purpose: str,
    wanted: list[bool],
    of_inputs: bool,
) -> list[Tensor]:
    found, bound = _checked(inputs, parameters, states, function, capacity, purpose, wanted, of_inputs)
    return found.new_results(inputs[0].shape[0], states, bound)


@torch.library.register_fake("latte::backward", lib=_LIBRARY)
def _backward_shapes(
    gradients: Any,
    inputs: Any,
    parameters: Any,
    states: Any,
    outputs: Any,
    saved: Any,
    seed: Any,
    items: Any,
    function: int,
    capacity: int,
    purpose: str,
    channels_last: list[bool],
    wanted: list[bool],
    of_inputs: bool,
) -> list[Tensor]:
    found = function_of(function)
    variant = _variant(gradients, capacity, purpose, channels_last, wanted, of_inputs, found)
    return found.new_gradients(items, found.bound(variant, items))


# --- gradients ------------------------------------------------------------------------------------------------
class _Call(torch.autograd.Function):
    """``latte::forward`` with its gradient. Tensors are arguments one by one: autograd does not look into lists."""

    @staticmethod
    def forward(ctx: Any, settings: tuple[Any, ...], lengths: tuple[int, int], seed: Any, *tensors: Tensor) -> Any:
        function, capacity, purpose, wanted, of_inputs = settings
        first, second = lengths
        inputs, parameters, states = list(tensors[:first]), list(tensors[first:second]), list(tensors[second:])
        arguments = inputs, parameters, states, seed, function, capacity, purpose, wanted, of_inputs
        if are_plain(tensors):
            known, bound = _checked(inputs, parameters, states, function, capacity, purpose, wanted, of_inputs)
            found = known.forward(inputs, parameters, states, _number(seed), bound)
        else:
            with torch._C._AutoDispatchBelowAutograd():
                found = torch.ops.latte.forward(*arguments)
            known, bound = _checked(inputs, parameters, states, function, capacity, purpose, wanted, of_inputs)
        items = inputs[0].shape[0]
        count = len(known.declared.outputs)
        outputs, saved, changed = found[:count], found[count], found[count + 1 :]
        every = *inputs, *parameters, *(changed or states), *outputs
        empty = saved.new_empty(0)
        kept = [each if use else empty for each, use in zip(every, bound.needed, strict=True)]
        ctx.save_for_backward(saved, seed, *kept)
        ctx.function = known  # lives as long as its backward may be asked for, though nothing else holds the module
        ctx.call = settings, bound, items, (first, second, len(tensors)), count
        ctx.mark_non_differentiable(saved, *changed)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        settings, bound, items, (first, second, third), count = ctx.call
        function, capacity, purpose, wanted, of_inputs = settings
        saved, seed, *kept = ctx.saved_tensors
        groups = [list(gradients[:count]), kept[:first], kept[first:second], kept[second:third], kept[third:]]
        if are_plain(gradients[:count]) and not torch.is_grad_enabled():
            if bound.variant.threads != ctx.function.threads:  # torch.set_num_threads was called since
                bound = ctx.function.bound(replace(bound.variant, threads=ctx.function.threads), items)
            left = iter(ctx.function.backward(*groups, saved, _number(seed), items, bound))
        else:
            last = list(bound.variant.channels_last)
            arguments = *groups, saved, seed, items, function, capacity, purpose, last, wanted, of_inputs
            left = iter(torch.ops.latte.backward(*arguments))
        floats = [each.dtype == "float32" for each in ctx.function.declared.inputs]
        of_given = [next(left) if of_inputs and each else None for each in floats]
        of_parameters = [next(left) if each else None for each in wanted]
        return None, None, None, *of_given, *of_parameters, *[None] * (third - second)


def are_plain(tensors: Iterable[Tensor]) -> bool:
    """Whether nobody looks at operators: then what they compute can be called without them, which takes a third of the
    time. Not where something traces, or for tensors of subclasses."""
    return not torch.compiler.is_compiling() and (
        torch._C._len_torch_dispatch_stack() == 0
        and all(type(each) in (Tensor, torch.nn.Parameter) for each in tensors)
    )


def forward_with_gradient(
    inputs: list[Tensor],
    parameters: list[Tensor],
    states: list[Tensor],
    seed: Tensor | None,
    function: int,
    capacity: int,
    purpose: str,
    wanted: list[bool],
    of_inputs: bool,
) -> list[Tensor]:
    function_of(function).check_gradients(inputs)
    settings = function, capacity, purpose, wanted, of_inputs
    lengths = len(inputs), len(inputs) + len(parameters)
    return list(_Call.apply(settings, lengths, seed, *inputs, *parameters, *states))


class _Once(torch.autograd.Function):
    """``latte::backward``, whose own gradient is refused."""

    @staticmethod
    def forward(ctx: Any, settings: tuple[Any, ...], lengths: list[int], seed: Any, *tensors: Tensor) -> Any:
        ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
        groups = [list(tensors[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
        with torch._C._AutoDispatchBelowAutograd():
            return tuple(torch.ops.latte.backward(*groups, tensors[-1], seed, *settings))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise TrainingError(
            "gradients of gradients do not go through a Latte module: its backward is compiled, and has none",
            way_out="without create_graph=True, gradients of first order are computed",
        )


def _backward_once(*arguments: Any) -> list[Tensor]:
    if not torch.is_grad_enabled():
        with torch._C._AutoDispatchBelowAutograd():
            return list(torch.ops.latte.backward(*arguments))
    groups, saved, seed, settings = arguments[:5], arguments[5], arguments[6], arguments[7:]
    tensors = [each for group in groups for each in group]
    return list(_Once.apply(settings, [len(group) for group in groups], seed, *tensors, saved))


_LIBRARY.impl("forward", forward_with_gradient, "Autograd")
_LIBRARY.impl("backward", _backward_once, "Autograd")
