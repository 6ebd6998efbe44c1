"""A declared net as a function of tensors: which kernels a call needs, and where its memory is."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from latte.compiling import Gradients, compile_calls
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import is_loss
from latte.model.frozen import Frozen
from latte.model.source_location import Located, user_location
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
        self._bound: dict[Variant, Bound] = {}
        self._lock = threading.RLock()
        self._labels = self.declared.labels()
        self._integers = any(each.dtype == "int32" for each in self.declared.inputs)
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
        bound: Bound,
    ) -> list[Tensor]:
        """The outputs of a call; if it is not for inference, what it leaves for :meth:`backward`; and, in training, the
        running statistics after it.

        Args:
            inputs, parameters, states: of the call.
            seed: of its random numbers.
            bound: its kernels.
        """
        items = inputs[0].shape[0]
        found = self.new_results(items, states, bound)
        results, after = found[: bound.results], found[bound.results :]
        if after:
            torch._foreach_copy_(after, list(states))
        if items:
            brought = *self._whole(inputs), *parameters, *(after or states), *results
            self._run(bound, PHASES[bound.variant.purpose], brought, items, seed)
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
        bound: Bound,
    ) -> list[Tensor]:
        """The gradients of inputs that are not whole numbers, if they are wanted, and of the parameters that are.

        Args:
            gradients: of the outputs.
            inputs, parameters, states, outputs: of the call; those that backward does not need may be anything.
            saved: what the call has left.
            seed, items, bound: of the call.
        """
        found = self.new_gradients(items, bound)
        for number in bound.zero if items else range(len(found)):
            found[number].zero_()
        if items:
            given = [
                each.clone(memory_format=torch.contiguous_format) if number in bound.added_to else each
                for number, each in enumerate(gradients)
            ]
            brought = *given, *self._whole(inputs), *parameters, *states, *outputs, *found, saved
            self._run(bound, "backward", brought, items, seed)
        return found

    def new_results(self, items: Any, states: Sequence[Tensor], bound: Bound) -> list[Tensor]:
        """Tensors for what :meth:`forward` returns; their values are not set.

        Args:
            items: of the call.
            states: before the call.
            bound: its kernels.
        """
        variant = bound.variant
        found = [
            torch.empty((items, *shape) if many else (), dtype=variant.dtype, memory_format=form)
            for shape, many, form in bound.outputs
        ]
        if variant.purpose != "inference":
            found.append(torch.empty(bound.calls.saved, dtype=torch.uint8))
        if variant.purpose == "training":
            found += [torch.empty(state.shape, dtype=state.dtype) for state in states]
        return found

    def new_gradients(self, items: Any, bound: Bound) -> list[Tensor]:
        """Tensors for what :meth:`backward` returns."""
        return [
            torch.empty((items, *shape) if many else shape, dtype=bound.variant.dtype, memory_format=form)
            for shape, many, form in bound.gradients
        ]

    def check(self, inputs: Sequence[Tensor], parameters: Sequence[Tensor], states: Sequence[Tensor]) -> None:
        """Refuse what kernels would misread.

        Raises:
            DataError: wrong number, shape, type or device of inputs, or different numbers of items; parameters or
                running statistics that have another shape or type than they were declared with.
        """
        self.declared.check_number(len(inputs))
        for number, (given, known) in enumerate(zip(inputs, self.declared.inputs, strict=True)):
            if given.device.type != "cpu" or given.layout != torch.strided:
                raise DataError(
                    f"input {number} is {given.layout} on {given.device}: Latte computes with dense tensors on the CPU",
                    location=user_location(),
                    way_out='x.to("cpu"), x.to_dense()',
                )
            if given.dim() != len(known.shape) + 1 or tuple(given.shape[1:]) != known.shape:
                raise DataError(
                    f"input {number} has shape {tuple(given.shape)}, and this module was declared for "
                    f"(items, {', '.join(map(str, known.shape))})",
                    location=user_location(),
                    way_out="a module has one shape; make another one for another shape",
                )
            if given.is_complex() or (known.dtype == "int32") == given.is_floating_point():
                needed = "whole numbers" if known.dtype == "int32" else "float32 (or float64)"
                raise DataError(
                    f"input {number} is {given.dtype}, and this module was declared for {needed}",
                    location=user_location(),
                )
            if given.shape[0] != inputs[0].shape[0]:
                raise DataError(
                    f"inputs have {inputs[0].shape[0]} and {given.shape[0]} items", location=user_location()
                )
        double = _is_double(inputs, parameters)
        for specs, tensors in ((self.declared.parameters, parameters), (self.declared.states, states)):
            for (name, spec), tensor in zip(specs.items(), tensors, strict=True):
                wanted = torch.float64 if double and spec.dtype == "float32" else getattr(torch, spec.dtype)
                if tensor.dtype != wanted or tuple(tensor.shape) != spec.shape:
                    raise DataError(
                        f"{name} has shape {tuple(tensor.shape)} and type {tensor.dtype}, not {spec.shape}, {wanted}",
                        location=user_location(),
                        way_out="set its values, not another tensor: parameter.data.copy_(values)",
                    )

    def check_gradients(self, inputs: Sequence[Tensor]) -> None:
        """Refuse inputs whose gradients would not be those that PyTorch expects.

        Raises:
            DataError: a label's gradient is asked for.
        """
        for number, (given, label) in enumerate(zip(inputs, self._labels, strict=False)):
            if label and given.requires_grad and torch.is_grad_enabled():
                raise DataError(
                    f"input {number} is read as a label, of which Latte computes no gradient",
                    location=user_location(),
                    way_out="x.detach()",
                )

    # --- memory ---------------------------------------------------------------------------------------------
    def _whole(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """The inputs, whole numbers as kernels read them.

        Raises:
            DataError: a number is out of its range.
        """
        if not self._integers:
            return inputs
        return [
            self._checked(number, given, each.below) if each.dtype == "int32" and given.numel() else given
            for number, (given, each) in enumerate(zip(inputs, self.declared.inputs, strict=True))
        ]

    def _checked(self, number: int, given: Tensor, below: int | None) -> Tensor:
        low, high = (int(end) for end in torch.aminmax(given))
        least, most = (0, below - 1) if below is not None else (-(2**31), 2**31 - 1)
        if low < least or high > most:
            raise DataError(
                f"input {number} has {low if low < least else high}: it must be from {least} to {most}",
                location=user_location(),
            )
        if given.dtype == torch.int32:
            return given
        self.report.copied[f"input {number}: {given.dtype} to torch.int32"] += 1
        return given.to(torch.int32)

    def _run(self, bound: Bound, phase: str, brought: Sequence[Tensor], items: int, seed: int) -> None:
        """Run a phase of the net with tensors; those that do not lie as kernels expect are copied, and counted."""
        self.report.calls += 1
        addresses, copies = [], []
        for tensor, (what, form) in zip(brought, bound.brought[phase], strict=True):
            address = tensor.data_ptr()
            if address and (address % ALIGNMENT or not tensor.is_contiguous(memory_format=form)):  # else not needed
                copies.append(self._copied(what, tensor, form))
                address = copies[-1].data_ptr()
            addresses.append(address)
        bound.calls.run(phase, addresses, items, seed)

    def _copied(self, what: str, tensor: Tensor, form: torch.memory_format) -> Tensor:
        if tensor.is_contiguous(memory_format=form):
            why = f"not aligned to {ALIGNMENT} bytes"
        else:
            why = f"strides {tuple(tensor.stride())} of {tuple(tensor.shape)}"
        self.report.copied[f"{what}: {why}"] += 1
        return tensor.clone(memory_format=form)

    # --- kernels --------------------------------------------------------------------------------------------
    def variant(
        self,
        purpose: str,
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
        capacity: int,
        wanted: Sequence[bool] = (),
        of_inputs: bool = False,
    ) -> Variant:
        """What a call with these inputs and parameters needs."""
        last = tuple(
            not x.is_contiguous() and x.dim() in CHANNELS_LAST and x.is_contiguous(memory_format=CHANNELS_LAST[x.dim()])
            for x in inputs
        )
        double = _is_double(inputs, parameters)
        wanted = tuple(wanted) if wanted else (False,) * len(self.parameters)
        return Variant(capacity, purpose, last, wanted, of_inputs, double, self.threads)

    @property
    def threads(self) -> int:
        """That run its kernels."""
        return self._threads or torch.get_num_threads()

    def bound(self, variant: Variant, items: int) -> Bound:
        """The kernels of a variant, for so many items: compiled where they are not there."""
        made = self._bound.get(variant)
        if made is None:
            with self._lock:
                made = self._bound.get(variant) or self._compiled(variant)
                self._bound[variant] = made
                if not made.calls.fixed:  # what is for fewer items is not needed again
                    for other in [each for each in self._bound if each.capacity < variant.capacity]:
                        if replace(other, capacity=variant.capacity) == variant:
                            del self._bound[other]
        if made.calls.fixed and items not in (0, variant.capacity):
            return self.bound(replace(variant, capacity=items), items)
        return made

    def _compiled(self, variant: Variant) -> Bound:
        graph, training = self.declared.net.graph, variant.purpose != "inference"
        inferring = self.declared.inferring() if variant.purpose == "evaluation" else frozenset()
        frozen = frozenset(name for name, each in zip(self.parameters, variant.wanted, strict=True) if not each)
        seeded = self.declared.seeded()
        gradients = Gradients(
            seeded if training else frozenset(), Frozen(frozen, inferring), variant.of_inputs, variant.double
        )
        brought = self._brought(variant)
        target = resolve_target("portable" if variant.double else self._target)
        with Located():
            graph.settings.given, graph.settings.compiled = self._given(variant), True
            storage = {phase: [each.storage for each in of] for phase, of in brought.items()}
            calls, report = compile_calls(
                graph, variant.capacity, target, _runner(variant.threads), storage, gradients, training
            )
        known = [self.report.compiled] if self.report.compiled is not None else []
        self.report.compiled = sum_of_reports([*known, report])
        return Bound.of(variant, calls, brought, frozenset(f"{name}.grad" for name in seeded))

    def _given(self, variant: Variant) -> dict[str, Layout]:
        """How what calls bring is laid out."""
        last = any(variant.channels_last)
        found: dict[str, Layout] = {}
        for ensembles, channels in ((self.declared.inputs, variant.channels_last), (self.declared.outputs, None)):
            for number, each in enumerate(ensembles):
                layout = _layout(len(each.shape), last if channels is None else channels[number])
                found |= dict.fromkeys((f"{each.name}.value", f"{each.name}.grad"), layout)
        for spec in self.declared.parameters.values():
            found |= dict.fromkeys((spec.storage, spec.gradient.storage), Layout())
        return found | dict.fromkeys(self.states, Layout())

    def _brought(self, variant: Variant) -> dict[str, list[Brought]]:
        """Phase of the net → what a call brings, in the order of its addresses."""
        declared, last = self.declared, any(variant.channels_last)
        formats = dict(enumerate(variant.channels_last))

        def of(ensemble: Ensemble, field: str, what: str, channels: bool) -> Brought:
            shape = ensemble.shape if ensemble.batched and not is_loss(ensemble) else ()
            return Brought(f"{ensemble.name}.{field}", what, shape, ensemble.batched, _format(len(shape) + 1, channels))

        inputs = [of(e, "value", f"input {n}", formats[n]) for n, e in enumerate(declared.inputs)]
        outputs = [of(e, "value", f"output {n}", last) for n, e in enumerate(declared.outputs)]
        parameters = [Brought(s, s, spec.shape) for s, spec in declared.parameters.items()]
        states = [Brought(s, s, spec.shape) for s, spec in declared.states.items()]
        every = [*inputs, *parameters, *states, *outputs]
        if variant.purpose == "inference":
            return {"inference": every}
        starting = [of(e, "grad", f"the gradient of output {n}", last) for n, e in enumerate(declared.outputs)]
        made = [
            of(e, "grad", f"the gradient of input {n}", formats[n])
            for n, e in enumerate(declared.inputs)
            if variant.of_inputs and e.dtype == "float32"
        ]
        for spec, wanted in zip(declared.parameters.values(), variant.wanted, strict=True):
            if wanted:
                made.append(Brought(spec.gradient.storage, f"the gradient of {spec.storage}", spec.shape))
        return {"forward": every, "backward": [*starting, *every, *made]}


@dataclass(frozen=True)
class Brought:
    """A tensor that a call brings.

    Args:
        storage: its name in the net.
        what: it is, for messages.
        shape: without the items.
        batched: whether it has items, in the first dimension.
        form: how it lies in memory.
    """

    storage: str
    what: str
    shape: tuple[int, ...]
    batched: bool = False
    form: torch.memory_format = torch.contiguous_format


@dataclass(frozen=True)
class Bound:
    """The kernels of a variant, and what calls bring to them.

    Args:
        variant: it is.
        calls: the kernels.
        brought: phase → what a call brings, and its format, in the order of the addresses.
        outputs, gradients: what forward and backward return: shape, whether it has items, format.
        results: the number of what forward returns, without states.
        needed: of inputs, parameters, states and outputs, one after the other: which ones backward needs.
        zero: the numbers of gradients that no kernel sets, as nothing depends on what they are of.
        added_to: the numbers of outputs to whose gradients layers that read them add theirs.
    """

    variant: Variant
    calls: Calls
    brought: Mapping[str, Sequence[tuple[str, torch.memory_format]]]
    outputs: Sequence[tuple[tuple[int, ...], bool, torch.memory_format]]
    gradients: Sequence[tuple[tuple[int, ...], bool, torch.memory_format]] = ()
    results: int = 0
    needed: Sequence[bool] = ()
    zero: Sequence[int] = ()
    added_to: frozenset[int] = frozenset()

    @staticmethod
    def of(variant: Variant, calls: Calls, brought: Mapping[str, Sequence[Brought]], seeded: frozenset[str]) -> Bound:
        """See :class:`Bound`; ``seeded`` is the storage of gradients that others add to."""
        saved = ("what is saved", torch.contiguous_format)
        tables = {
            phase: [*((each.what, each.form) for each in of), *([saved] if phase != "inference" else [])]
            for phase, of in brought.items()
        }
        every = brought[PHASES[variant.purpose]]
        outputs = [each for each in every if each.what.startswith("output ")]
        known = [(each.shape, each.batched, each.form) for each in outputs]
        if variant.purpose == "inference":
            return Bound(variant, calls, tables, known, results=len(outputs))
        backward, count = brought["backward"], len(outputs)
        made, touched = backward[count + len(every) :], calls.touched["backward"]
        return Bound(
            variant,
            calls,
            tables,
            known,
            [(each.shape, each.batched, each.form) for each in made],
            count + 1,
            [each.storage in touched for each in every],
            [number for number, each in enumerate(made) if each.storage not in touched],
            frozenset(number for number, each in enumerate(backward[:count]) if each.storage in seeded),
        )


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


def _is_double(inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> bool:
    """Whether a call is in double precision."""
    return any(x.dtype == torch.float64 for x in (*inputs, *parameters))


@lru_cache
def _runner(threads: int) -> Runner:
    """One for all modules: they are threads of PyTorch's OpenMP."""
    return Runner(threads)


def _format(dims: int, channels_last: bool) -> torch.memory_format:
    return CHANNELS_LAST.get(dims, torch.contiguous_format) if channels_last else torch.contiguous_format


def _layout(dims: int, channels_last: bool) -> Layout:
    """How a tensor of an ensemble with so many dimensions is laid out, the batch before them."""
    if not channels_last or dims + 1 not in CHANNELS_LAST:
        return Layout()
    return Layout(order=(0, *range(2, dims + 1), 1))
