"""A declared net as a function of tensors: which kernels a call needs, and where its memory is."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from latte.compiling import Gradients, compile_calls
from latte.model.frozen import Frozen
from latte.model.source_location import Located
from latte.runtime.calls import Calls
from latte.runtime.report import CompileReport, sum_of_reports
from latte.torch.declared import Build, Declared, Input
from swirl.errors import DataError, TrainingError
from swirl.ir.buffers import Layout
from swirl.run.runner import Runner
from swirl.target.machine import resolve_target

ALIGNMENT = 64
"""Bytes: where kernels expect arrays to begin."""
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Number of dimensions → the format with channels innermost."""
PHASES = {"inference": "inference", "training": "forward", "evaluation": "forward"}
"""What a call is for → the phase of the net that it runs; ``evaluation`` is inference with gradients."""


@dataclass(frozen=True)
class Variant:
    """Which kernels a call needs.

    Args:
        capacity: the most items.
        purpose: ``inference``, ``training`` or ``evaluation``.
        channels_last: of each input, whether its channels are innermost in memory.
        wanted: of each parameter, whether its gradient is computed.
        of_inputs: whether gradients of inputs are computed.
        double: whether in double precision.
        threads: that run them.
    """

    capacity: int
    purpose: str
    channels_last: tuple[bool, ...]
    wanted: tuple[bool, ...] = ()
    of_inputs: bool = False
    double: bool = False
    threads: int = 1

    @property
    def dtype(self) -> torch.dtype:
        """Of all numbers that are not whole."""
        return torch.float64 if self.double else torch.float32


@dataclass
class Report:
    """What a module has done so far.

    Args:
        calls: forward and backward, each counts.
        copied: what had to be copied, and why → how often.
        compiled: what compiling took; None before the first call.
    """

    calls: int = 0
    copied: Counter[str] = field(default_factory=Counter)
    compiled: CompileReport | None = None


class Function:
    """A net to be called with tensors. It holds no parameters: copies of a module share it.

    Args:
        build: declares the layers.
        inputs: with shapes and types.
        batch_size: that the net is declared for.
        seed: of initial values.
        target, threads, recipes: as of a net; by default as many threads as PyTorch has.

    Attributes:
        declared: the net.
        number: by which operators find it.
        parameters, states: storage, in the order in which calls give them.
        report: see :class:`Report`.
    """

    def __init__(
        self,
        build: Build,
        inputs: Sequence[Input],
        batch_size: int,
        seed: int,
        target: str | None = None,
        threads: int | None = None,
        recipes: Sequence[str] = (),
    ):
        self._arguments = build, tuple(inputs), batch_size, seed, target, threads, tuple(recipes)
        self.declared = Declared(build, inputs, batch_size, seed, recipes)
        self.parameters, self.states = list(self.declared.parameters), list(self.declared.states)
        self.report = Report()
        self._target, self._threads = target, threads
        self._calls: dict[Variant, Calls] = {}
        self._lock = threading.RLock()
        self._shapes = self.declared.output_shapes()
        self._seeded = self.declared.seeded()
        self.number = next(_NUMBERS)
        _FUNCTIONS[self.number] = self

    def __reduce__(self) -> Any:
        return Function, self._arguments

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        return self

    # --- calls ----------------------------------------------------------------------------------------------
    def forward(
        self,
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
        states: Sequence[Tensor],
        seed: int,
        variant: Variant,
    ) -> list[Tensor]:
        """The outputs of a call; if it is not for inference, what it leaves for :meth:`backward`; and, in training, the
        running statistics after it."""
        items = inputs[0].shape[0]
        calls = self.calls(variant, items)
        found = self.new_results(inputs, states, variant, calls)
        after = found[len(self._shapes) + 1 :]
        for new, state in zip(after, states, strict=False):
            new.copy_(state)
        if items:
            results = found[: len(found) - len(after)]
            own = after or self._placed("a state", states)
            brought = [*self._inputs(inputs, variant), *self._placed("a parameter", parameters), *own, *results]
            self._run(calls, PHASES[variant.purpose], brought, items, seed)
        return found

    def backward(
        self,
        gradients: Sequence[Tensor],
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
        states: Sequence[Tensor],
        outputs: Sequence[Tensor],
        saved: Tensor,
        seed: int,
        items: int,
        variant: Variant,
    ) -> list[Tensor]:
        """The gradients of inputs that are not whole numbers, if they are wanted, and of the parameters that are.

        Args:
            gradients: of the outputs.
            inputs, parameters, states, outputs: of the call; those that :meth:`needed` leaves out may be anything.
            saved: what the call has left.
            seed, items, variant: of the call.
        """
        calls = self.calls(variant, items)
        found = self.new_gradients(gradients[0], items, variant)
        touched = calls.touched["backward"]
        for name, gradient in zip(self._gradients(variant), found, strict=True):
            if name not in touched or not items:
                gradient.zero_()
        if items:
            last = any(variant.channels_last)
            given = self._placed("the gradient of an output", gradients, last)
            for number, ensemble in enumerate(self.declared.outputs):
                if ensemble.name in self._seeded and given[number] is gradients[number]:  # readers add theirs
                    given[number] = given[number].clone()
            brought = [*given, *self._inputs(inputs, variant), *self._placed("a parameter", parameters)]
            brought += [*states, *self._placed("an output", outputs, last), *found, saved]
            self._run(calls, "backward", brought, items, seed)
        return found

    def needed(self, variant: Variant, items: int) -> list[list[bool]]:
        """Of inputs, parameters, states and outputs: which ones backward needs."""
        touched = self.calls(variant, items).touched["backward"]
        return [[name in touched for name in names] for names in self._storage()]

    def new_results(
        self, like: Sequence[Tensor], states: Sequence[Tensor], variant: Variant, calls: Calls
    ) -> list[Tensor]:
        """Tensors for what :meth:`forward` returns; their values are not set.

        Args:
            like: the inputs, which may be fake tensors: then these are.
            states: before the call.
            variant, calls: of the call.
        """
        items, last, first = like[0].shape[0], any(variant.channels_last), like[0]
        batched = (each.batched for each in self.declared.outputs)
        shapes = [(items, *shape) if many else () for shape, many in zip(self._shapes, batched, strict=True)]
        found = [_new(first, shape, variant.dtype, last) for shape in shapes]
        if variant.purpose != "inference":
            found.append(first.new_empty(calls.saved, dtype=torch.uint8))
        if variant.purpose == "training":
            found += [torch.empty_like(state) for state in states]
        return found

    def new_gradients(self, like: Tensor, items: int, variant: Variant) -> list[Tensor]:
        """Tensors for what :meth:`backward` returns."""
        found = []
        for each, last in zip(self.declared.inputs, variant.channels_last, strict=True):
            if variant.of_inputs and each.dtype == "float32":
                found.append(_new(like, (items, *each.shape), variant.dtype, last))
        for spec, wanted in zip(self.declared.parameters.values(), variant.wanted, strict=True):
            if wanted:
                found.append(_new(like, spec.shape, variant.dtype, False))
        return found

    def check(self, inputs: Sequence[Tensor]) -> None:
        """Refuse inputs that do not fit.

        Raises:
            DataError: wrong number, shape, type or device, or different numbers of items.
        """
        self.declared.check_number(len(inputs))
        for number, (given, known) in enumerate(zip(inputs, self.declared.inputs, strict=True)):
            if given.device.type != "cpu":
                raise DataError(
                    f"input {number} is on {given.device}, and Latte computes on the CPU", way_out='x.to("cpu")'
                )
            if tuple(given.shape[1:]) != known.shape or given.dim() != len(known.shape) + 1:
                raise DataError(
                    f"input {number} has shape {tuple(given.shape)}, and this module was declared for "
                    f"(items, {', '.join(map(str, known.shape))})",
                    way_out="a module has one shape; make another one for another shape",
                )
            if (known.dtype == "int32") == (given.is_floating_point() or given.is_complex()):
                needed = "whole numbers" if known.dtype == "int32" else "float32 (or float64)"
                raise DataError(f"input {number} is {given.dtype}, and this module was declared for {needed}")
            if given.shape[0] != inputs[0].shape[0]:
                raise DataError(f"inputs have {inputs[0].shape[0]} and {given.shape[0]} items")

    # --- memory ---------------------------------------------------------------------------------------------
    def _inputs(self, inputs: Sequence[Tensor], variant: Variant) -> list[Tensor]:
        """Inputs as kernels read them."""
        found = []
        for number, (given, known, last) in enumerate(
            zip(inputs, self.declared.inputs, variant.channels_last, strict=True)
        ):
            tensor = given
            if known.dtype == "int32" and given.numel():
                self._check_range(number, given, known.below)
                if given.dtype != torch.int32:
                    self.report.copied[f"input {number}: {given.dtype} to torch.int32"] += 1
                    tensor = given.to(torch.int32)
            found += self._placed(f"input {number}", [tensor], last)
        return found

    def _check_range(self, number: int, given: Tensor, below: int | None) -> None:
        low, high = (int(end) for end in torch.aminmax(given))
        least, most = (0, below - 1) if below is not None else (-(2**31), 2**31 - 1)
        if low < least or high > most:
            raise DataError(f"input {number} has {low if low < least else high}: it must be from {least} to {most}")

    def _placed(self, what: str, tensors: Sequence[Tensor], channels_last: bool = False) -> list[Tensor]:
        """Tensors as kernels expect them in memory; others are copied, and counted."""
        found = []
        for tensor in tensors:
            wanted, placed = _format(tensor.dim(), channels_last), tensor
            if not tensor.is_contiguous(memory_format=wanted):
                self.report.copied[f"{what}: strides {tuple(tensor.stride())} of {tuple(tensor.shape)}"] += 1
                placed = tensor.contiguous(memory_format=wanted)
            elif tensor.data_ptr() % ALIGNMENT:
                self.report.copied[f"{what}: not aligned to {ALIGNMENT} bytes"] += 1
                placed = tensor.clone(memory_format=wanted)
            found.append(placed)
        return found

    def _run(self, calls: Calls, phase: str, brought: Sequence[Tensor], items: int, seed: int) -> None:
        self.report.calls += 1
        calls.run(phase, [tensor.data_ptr() for tensor in brought], items, seed)

    # --- kernels --------------------------------------------------------------------------------------------
    def variant(
        self,
        purpose: str,
        inputs: Sequence[Tensor],
        capacity: int,
        wanted: Sequence[bool] = (),
        of_inputs: bool = False,
    ) -> Variant:
        """What a call with these inputs needs."""
        last = tuple(
            x.dim() in CHANNELS_LAST and not x.is_contiguous() and x.is_contiguous(memory_format=CHANNELS_LAST[x.dim()])
            for x in inputs
        )
        double = any(x.dtype == torch.float64 for x in inputs)
        wanted = tuple(wanted) if wanted else (False,) * len(self.parameters)
        return Variant(capacity, purpose, last, wanted, of_inputs, double, self.threads)

    @property
    def threads(self) -> int:
        """That run its kernels."""
        return self._threads or torch.get_num_threads()

    def calls(self, variant: Variant, items: int) -> Calls:
        """The kernels of a variant, for so many items: compiled where they are not there."""
        with self._lock:
            made = self._calls.get(variant)
            if made is None:
                made = self._calls[variant] = self._compiled(variant)
        if made.fixed and items not in (0, variant.capacity):
            return self.calls(replace(variant, capacity=items), items)
        return made

    def _compiled(self, variant: Variant) -> Calls:
        graph, training = self.declared.net.graph, variant.purpose != "inference"
        last, seeded = any(variant.channels_last), self._seeded if training else frozenset()
        given: dict[str, Layout] = {}
        for each, channels in zip(self.declared.inputs, variant.channels_last, strict=True):
            given |= dict.fromkeys((f"{each.name}.value", f"{each.name}.grad"), _layout(len(each.shape), channels))
        for each in self.declared.outputs:
            given |= dict.fromkeys((f"{each.name}.value", f"{each.name}.grad"), _layout(len(each.shape), last))
        for spec in self.declared.parameters.values():
            given |= dict.fromkeys((spec.storage, spec.gradient.storage), Layout())
        given |= dict.fromkeys(self.states, Layout())
        frozen = frozenset(name for name, each in zip(self.parameters, variant.wanted, strict=True) if not each)
        gradients = Gradients(
            seeded,
            Frozen(frozen, self.declared.inferring() if variant.purpose == "evaluation" else frozenset()),
            variant.of_inputs,
            variant.double,
        )
        target = resolve_target("portable" if variant.double else self._target)
        with Located():
            graph.settings.given, graph.settings.compiled = given, True
            made, report = compile_calls(
                graph, variant.capacity, target, _runner(variant.threads), self._brought(variant), gradients, training
            )
        known = [self.report.compiled] if self.report.compiled is not None else []
        self.report.compiled = sum_of_reports([*known, report])
        return made

    def _storage(self) -> tuple[list[str], list[str], list[str], list[str]]:
        """Of inputs, parameters, states and outputs."""
        inputs, outputs = (
            [f"{each.name}.value" for each in layers] for layers in (self.declared.inputs, self.declared.outputs)
        )
        return inputs, self.parameters, self.states, outputs

    def _gradients(self, variant: Variant) -> list[str]:
        """The storage of what :meth:`backward` returns."""
        floats = [each for each in self.declared.inputs if each.dtype == "float32" and variant.of_inputs]
        specs = zip(self.declared.parameters.values(), variant.wanted, strict=True)
        return [*(f"{each.name}.grad" for each in floats), *(spec.gradient.storage for spec, each in specs if each)]

    def _brought(self, variant: Variant) -> dict[str, list[str]]:
        """Phase of the net → the storage that a call brings, in the order of its addresses."""
        inputs, parameters, states, outputs = self._storage()
        every = [*inputs, *parameters, *states, *outputs]
        if variant.purpose == "inference":
            return {"inference": every}
        starting = [f"{each.name}.grad" for each in self.declared.outputs]
        return {"forward": every, "backward": [*starting, *every, *self._gradients(variant)]}


def function_of(number: int) -> Function:
    """The function of a number.

    Raises:
        TrainingError: its module is gone, or belongs to another process.
    """
    found = _FUNCTIONS.get(number)
    if found is None:
        raise TrainingError(
            "this program calls a Latte module that is not in this process",
            way_out="make the module again, and export or compile it here",
        )
    return found


_NUMBERS = count(1)
_FUNCTIONS: WeakValueDictionary[int, Function] = WeakValueDictionary()
"""Operators take numbers and tensors: by these they find what they compute."""


@lru_cache
def _runner(threads: int) -> Runner:
    """One for all modules: they are threads of PyTorch's OpenMP."""
    return Runner(threads)


def _new(like: Tensor, shape: Sequence[int], dtype: torch.dtype, channels_last: bool) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=_format(len(shape), channels_last))


def _format(dims: int, channels_last: bool) -> torch.memory_format:
    return CHANNELS_LAST.get(dims, torch.contiguous_format) if channels_last else torch.contiguous_format


def _layout(dims: int, channels_last: bool) -> Layout:
    """How a tensor of an ensemble with so many dimensions is laid out, the batch before them."""
    if not channels_last or dims + 1 not in CHANNELS_LAST:
        return Layout()
    return Layout(order=(0, *range(2, dims + 1), 1))
