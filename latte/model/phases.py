"""Which methods of a layer are its phases, and whether they are those of a neuron or have loops of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import cached_property
from types import FunctionType
from typing import Any

from latte.model.body import Body, Known, read_body
from latte.model.checks import PHASES, check_phase
from latte.model.helpers import with_helpers
from latte.model.neuron import Neuron
from latte.model.source_location import location_of
from swirl.errors import DeclarationError, misspelt


class PhaseMethods:
    """The phases that a user wrote.

    Args:
        ensemble_class: whose methods have explicit loops over whole arrays.
        neuron_class: whose methods compute one element; :class:`Neuron` itself where there is none.
    """

    def __init__(self, ensemble_class: type, neuron_class: type[Neuron]):
        self.ensemble_class, self.neuron_class = ensemble_class, neuron_class
        self.known: Known = {}  # what names in bodies stood for when the net was compiled
        self.numbers: dict[str, Any] = {}  # what attributes of ``self`` were then
        self._bodies: dict[tuple[str, frozenset[str]], Body] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bodies": {}}  # read again where they are needed

    def __deepcopy__(self, memo: dict[int, Any]) -> PhaseMethods:
        made = PhaseMethods(self.ensemble_class, self.neuron_class)
        made.known, made.numbers = dict(self.known), dict(self.numbers)
        return made

    def forget(self) -> None:
        """Ask again what names in bodies stand for: the net is about to be compiled."""
        self.known.clear()
        self.numbers.clear()
        self._bodies.clear()

    @cached_property
    def in_python(self) -> bool:
        """Whether Python runs ``forward(bottom, label)`` on whole arrays, as the original's losses: nothing is read or
        compiled then."""
        method = _method(self.ensemble_class, "forward")
        return method is not None and list(inspect.signature(method).parameters)[1:] == ["bottom", "label"]

    @property
    def explicit(self) -> bool:
        """Whether ``forward`` has explicit loops over whole arrays (ensemble level)."""
        return _method(self.ensemble_class, "forward") is not None

    def is_explicit(self, phase: str) -> bool:
        """Whether a phase has explicit loops over whole arrays."""
        return _method(self.ensemble_class, check_phase(phase)) is not None

    def find(self, phase: str) -> Callable[..., Any] | None:
        """The method of a phase, or None."""
        phase = check_phase(phase)
        if self.in_python:
            return None
        own = _method(self.ensemble_class, phase)
        return own or (None if self.explicit else _method(self.neuron_class, phase))

    def body(self, phase: str, avoid: Collection[str] = ()) -> Body | None:
        """The source of a phase, what its helper functions compute in place of their calls; or None.

        Args:
            phase: forward, backward or update.
            avoid: names that variables of helpers must not have.

        Raises:
            BodyError: there is no source.
        """
        method = self.find(phase)
        if method is None:
            return None
        owner = self.ensemble_class if self.is_explicit(phase) else self.neuron_class
        key = phase, frozenset(avoid)
        if key not in self._bodies:
            self._bodies[key] = with_helpers(read_body(method, self.known), owner, avoid)
        return self._bodies[key]

    def bodies(self) -> list[Body]:
        """The sources of all phases."""
        return [body for phase in PHASES if (body := self.body(phase)) is not None]

    def check(self, reserved: type, location: str | None) -> None:
        """Refuse a layer that computes nothing, a method whose name is nearly that of a phase (nothing else could call
        it: a body is read, not run), and a neuron's phase that takes arguments.

        Args:
            reserved: the base class of ensembles, whose methods are not phases.
            location: of the declaration.
        """
        if self.in_python:
            raise DeclarationError(
                f"{self.ensemble_class.__name__}.forward takes (bottom, label), which only a LossEnsemble may",
                location=location,
                way_out="def forward(self, inputs, value): …",
            )
        has_neurons = self.neuron_class is not Neuron
        owner = self.neuron_class if has_neurons and not self.explicit else self.ensemble_class
        methods = {
            name: method
            for base in reversed(owner.__mro__)
            for name, method in vars(base).items()
            if isinstance(method, FunctionType) and not hasattr(reserved, name) and not hasattr(Neuron, name)
        }
        for phase, spellings in PHASES.items():
            if self.find(phase) is not None:
                continue
            for name, method in methods.items():
                if misspelt(name.lower(), spellings):
                    raise DeclarationError(
                        f"{owner.__name__} has no {phase}, but {name}, which nothing would call",
                        location=location_of(method.__code__),
                        way_out=f"did you mean {spellings[0]!r}?",
                    )
        if self.find("forward") is None:
            raise DeclarationError(
                f"{owner.__name__} has no forward, so that its value would never be computed",
                location=location,
                way_out="def forward(self): self.value = …",
            )
        for phase in PHASES:
            of_neuron = None if self.is_explicit(phase) else self.find(phase)
            if of_neuron is not None and (taken := [*inspect.signature(of_neuron).parameters][1:]):
                raise DeclarationError(
                    f"{of_neuron.__qualname__} takes {', '.join(taken)}, but of a neuron it takes only self",
                    location=location_of(of_neuron.__code__),
                    way_out="what it reads is self.input, or self.inputs[…] where it reads several elements; fields are"
                    " self.<name>",
                )


def _method(owner: type, phase: str) -> Callable[..., Any] | None:
    for name in PHASES[phase]:
        method = getattr(owner, name, None)
        if isinstance(method, FunctionType):
            return method
    return None


def check_backward_in_python(layer: object, location: str | None) -> None:
    """Refuse a loss with a ``forward`` that Python runs, and without a ``backward`` to it.

    Raises:
        DeclarationError: there is none, or it takes other arguments.
    """
    method = _method(type(layer), "backward")
    if method is None or list(inspect.signature(method).parameters)[1:] != ["bot_grad", "label"]:
        raise DeclarationError(
            f"{type(layer).__name__}.forward(bottom, label) is run by Python, and has no backward(bot_grad, label)",
            location=location if method is None else location_of(method.__code__),
            way_out="write it, or a body that is differentiated: forward(self, inputs, label, value)",
        )
