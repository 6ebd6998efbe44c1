"""Schedules: settings of a solver that change from step to step, a learning rate above all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from latte.model.checks import is_finite, is_number, is_size, size_limit
from latte.model.source_location import user_location
from swirl.errors import DataError, DeclarationError


class Schedule:
    """A number for each step. One's own is a dataclass, frozen or not, with a method ``at``::

        @dataclass
        class InverseRoot(Schedule):
            rate: float
            def at(self, step):
                return self.rate / (1 + step) ** 0.5

    Its fields are saved with the solver: numbers, NumPy's too, and other schedules.
    """

    # Not a dataclass: of a frozen one all must be frozen, of another one none may be.

    def at(self, step: int) -> float:
        """The number in a step, counted from 0."""
        raise NotImplementedError

    def __new__(cls, *_: Any, **__: Any) -> Schedule:
        if cls.at is Schedule.at:
            raise DeclarationError(
                f"{cls.__name__} has no method at", location=user_location(), way_out="def at(self, step): …"
            )
        return super().__new__(cls)

    def __repr__(self) -> str:  # a dataclass has its own
        return f"{type(self).__name__}()"

    def check(self) -> None:
        """Let its fields be Python's numbers and schedules, which can be saved.

        Raises:
            DeclarationError: one of them is something else, or is not declared.
        """
        declared = {each.name for each in _fields(self)}
        for name in vars(self):
            if name not in declared:
                raise DeclarationError(
                    f"{type(self).__name__}: {name} is not declared, and would not be saved with a solver",
                    location=user_location(),
                    way_out=f"a dataclass with a field {name}: @dataclass before the class, {name}: float in it",
                )
        for each in _fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Schedule):
                value.check()
            elif isinstance(value, np.generic) and value.dtype.kind in "fiub":
                object.__setattr__(self, each.name, value.item())
            elif value is not None and not isinstance(value, (bool, int, float, str)):
                raise DeclarationError(
                    f"{type(self).__name__}: {each.name} cannot be saved with a solver: it must be a number or a "
                    f"schedule, not {value!r}",
                    location=user_location(),
                )

    def saved(self) -> dict[str, Any]:
        """Its kind and fields, as JSON has them.

        Raises:
            DeclarationError: a field has been changed to what cannot be saved.
        """
        self.check()
        values = {each.name: getattr(self, each.name) for each in _fields(self)}
        return {"schedule": type(self).__name__} | {
            name: value.saved() if isinstance(value, Schedule) else value for name, value in values.items()
        }


def _fields(schedule: Schedule | type[Schedule]) -> Sequence[Field[Any]]:
    """Those that a schedule, or its kind, declares."""
    return fields(schedule) if is_dataclass(schedule) else ()


def _nested(schedule: Schedule) -> Iterator[Schedule]:
    """A schedule and those in its fields."""
    yield schedule
    for each in _fields(schedule):
        value = getattr(schedule, each.name)
        if isinstance(value, Schedule):
            yield from _nested(value)


def restored(saved: Mapping[str, Any], own: Iterable[Schedule] = ()) -> Schedule:
    """The schedule that :meth:`Schedule.saved` describes.

    Args:
        saved: its kind and fields.
        own: schedules whose kinds, and those of the schedules in them, are known besides those of this module.

    Raises:
        DataError: its kind is not known.
    """
    known = [type(part) for schedule in own for part in _nested(schedule)]
    kinds = {kind.__name__: kind for kind in (StepDecay, CosineDecay, OneCycle, WarmUp, *known)}
    values = {name: value for name, value in saved.items() if name != "schedule"}
    name = saved.get("schedule")
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None or {each.name for each in _fields(kind)} != values.keys():
        raise DataError(
            f"the solver was saved with a schedule {name}({', '.join(values)}), which is not known here",
            location=user_location(),
            way_out="give the solver a schedule of that kind before it is loaded",
        )
    return kind(**{name: restored(v, own) if isinstance(v, dict) else v for name, v in values.items()})


def _check(schedule: Schedule, **most: float) -> None:
    """Refuse fields that are not numbers from 0 to ``most`` (of a whole number: at least 1)."""
    for each in _fields(schedule):
        value, whole = getattr(schedule, each.name), each.name in ("steps", "every")
        if each.name == "then":
            good, wanted = _is_rate(value) or isinstance(value, Schedule), "a number, at least 0, or a schedule"
        elif whole:
            good, wanted = is_size(value), f"a whole number, at least 1{size_limit(value)}"
        else:
            limit = most.get(each.name, math.inf)
            good = _is_rate(value) and value <= limit
            wanted = "a number, at least 0" if limit == math.inf else f"a number from 0 to {limit:g}"
        if not good:
            raise DeclarationError(
                f"{type(schedule).__name__}: {each.name} must be {wanted}, not {value!r}", location=user_location()
            )
        if is_number(value):
            object.__setattr__(schedule, each.name, int(value) if whole else float(value))


def _is_rate(value: object) -> bool:
    return is_finite(value) and not isinstance(value, bool) and value >= 0  # type: ignore[operator]


@dataclass(frozen=True)
class StepDecay(Schedule):
    """``rate``, multiplied by ``factor`` after each ``every`` steps (PyTorch's ``StepLR``, in steps).

    Args:
        rate: in the first step.
        every: number of steps.
        factor: at least 0.

    Raises:
        DeclarationError: for a wrong type or value.
    """

    rate: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check(self)

    def at(self, step: int) -> float:
        return self.rate * self.factor ** (step // self.every)


@dataclass(frozen=True)
class CosineDecay(Schedule):
    """From ``rate`` to ``last`` along half a cosine, and ``last`` from then on (Loshchilov and Hutter, 2017, eq. 5).

    Args:
        rate: in the first step.
        steps: until ``last`` is reached.
        last: at least 0.

    Raises:
        DeclarationError: for a wrong type or value.
    """

    rate: float
    steps: int
    last: float = 0.0

    def __post_init__(self) -> None:
        _check(self)

    def at(self, step: int) -> float:
        return _cosine(self.rate, self.last, step / self.steps)


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Up from ``most / divisor`` to ``most``, then down to the first rate divided by ``last_divisor``, along cosines
    (Smith and Topin, Super-Convergence, 2018; PyTorch's ``OneCycleLR``).

    Args:
        most: the highest rate.
        steps: of the whole cycle; the last rate stays afterwards.
        rising: share of the steps that go up, 0 … 1.
        divisor: of ``most``, for the first rate.
        last_divisor: of the first rate, for the last one.

    Raises:
        DeclarationError: for a wrong type or value.
    """

    most: float
    steps: int
    rising: float = 0.3
    divisor: float = 25.0
    last_divisor: float = 1e4

    def __post_init__(self) -> None:
        _check(self, rising=1)
        for name in ("divisor", "last_divisor"):
            if getattr(self, name) == 0:
                raise DeclarationError(f"OneCycle: {name} must be greater than 0", location=user_location())

    def at(self, step: int) -> float:
        first, top, end = self.most / self.divisor, self.rising * self.steps - 1, self.steps - 1
        if step <= top:
            return _cosine(first, self.most, step / top if top > 0 else 1.0)
        return _cosine(self.most, first / self.last_divisor, (step - top) / (end - top) if end > top else 1.0)


@dataclass(frozen=True)
class WarmUp(Schedule):
    """A straight rise to the first rate of ``then``, which follows: ``WarmUp(500, CosineDecay(0.1, 10000))``.

    Args:
        steps: of the rise.
        then: a rate, or a schedule whose step 0 is the first one after the rise.
        start: share of the first rate that the rise begins with, 0 … 1.

    Raises:
        DeclarationError: for a wrong type or value.
    """

    steps: int
    then: float | Schedule
    start: float = 0.0

    def __post_init__(self) -> None:
        _check(self, start=1)

    def at(self, step: int) -> float:
        after = max(step - self.steps, 0)
        rate = self.then.at(after) if isinstance(self.then, Schedule) else self.then
        return rate * (self.start + (1 - self.start) * min(step / self.steps, 1.0))


def _cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * min(share, 1.0))) / 2
