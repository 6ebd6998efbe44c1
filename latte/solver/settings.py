"""What a solver's class declares: settings, and what is kept for each element of a parameter."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from latte.model.checks import is_finite
from latte.model.source_location import user_location
from latte.solver.schedules import Schedule
from swirl.errors import DeclarationError, TrainingError, UnknownName, nearest


class Setting:
    """A number of a solver that may change from step to step, or a switch. As an attribute of the class it says what is
    allowed; of a solver, it is the number (of the next step, where it was given as a schedule).

    Args:
        default: the number; ``True`` or ``False`` make it a switch, which is compiled in; None leaves it off.
        least, most: bounds.
        above, below: bounds that are not reached themselves.

    Raises:
        DeclarationError: set to a wrong type or value. TrainingError: a schedule gives such a value.
    """

    def __init__(
        self,
        default: float | bool | None,
        *,
        least: float = 0.0,
        most: float = math.inf,
        above: float | None = None,
        below: float | None = None,
    ):
        self.default, self.least, self.most, self.above, self.below = default, least, most, above, below
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def switch(self) -> bool:
        """Whether it is on or off, and never changes."""
        return isinstance(self.default, bool)

    if TYPE_CHECKING:

        def __get__(self, solver: object, owner: type) -> Any: ...

    else:

        def __get__(self, solver, owner):
            if solver is None:
                return self
            held = self.held(solver)
            if not isinstance(held, Schedule):
                return held
            step = getattr(solver, "_steps", 0)  # of the solver, also where a parameter was frozen meanwhile
            value = held.at(step)
            if not self._allows(value):
                raise TrainingError(
                    f"{held} gives {value!r} in step {step}, but {self.name} must be {self._wanted}",
                    location=user_location(),
                )
            return float(value)

    def __set__(self, solver: Any, value: Any) -> None:
        self.check(value)
        if self.switch and self.name in solver.__dict__ and solver.built:
            raise DeclarationError(
                f"{self.name} is compiled into the solver and cannot be changed",
                location=user_location(),
                way_out="make another solver",
            )
        solver.__dict__[self.name] = self.as_held(value)

    def as_held(self, value: Any) -> Any:
        """What is kept of a value that has been checked."""
        return value if self.switch or value is None or isinstance(value, Schedule) else float(value)

    def check(self, value: Any) -> None:
        """DeclarationError where it cannot be set to ``value``."""
        if isinstance(value, Schedule) and not self.switch:
            value.check()
        elif not self._allows(value):
            way_out = None if self.switch else "or a schedule: CosineDecay(rate, steps), a class of your own"
            raise DeclarationError(
                f"{self.name} must be {self._wanted}, not {value!r}", location=user_location(), way_out=way_out
            )

    def held(self, solver: Any) -> Any:
        """What was set: a number, a switch, a schedule, or None."""
        return solver.__dict__.get(self.name, self.default)

    def _allows(self, value: object) -> bool:
        if self.switch:
            return isinstance(value, bool)
        if value is None:
            return self.default is None
        if not is_finite(value) or isinstance(value, bool):
            return False
        number = float(value)  # type: ignore[arg-type]
        low = number >= self.least if self.above is None else number > self.above
        high = number <= self.most if self.below is None else number < self.below
        return low and high

    @property
    def _wanted(self) -> str:
        if self.switch:
            return "True or False"
        bounds = [f"at least {self.least:g}" if self.above is None else f"greater than {self.above:g}"]
        if self.below is not None:
            bounds.append(f"less than {self.below:g}")
        elif self.most != math.inf:
            bounds.append(f"at most {self.most:g}")
        if self.above is None and self.below is None and self.most != math.inf:
            bounds = [f"from {self.least:g} to {self.most:g}"]
        return ", ".join(["a number", *bounds]) + (", or None" if self.default is None else "")


class Kept:
    """What a solver keeps for each element of each parameter from step to step; 0 at first. Saved with the solver."""

    if TYPE_CHECKING:  # in update, it is a number

        def __get__(self, solver: object, owner: type) -> Any: ...

        def __set__(self, solver: object, value: Any) -> None: ...


def settings_of(kind: type) -> dict[str, Setting]:
    """Those that a solver's class and its bases declare; its own first."""
    found: dict[str, Setting] = {}
    for base in kind.__mro__:
        found |= {name: each for name, each in vars(base).items() if isinstance(each, Setting) and name not in found}
    return found


def unknown_setting(solver: str, name: object, known: Collection[str]) -> UnknownName:
    """The error for a setting that a solver does not have."""
    return UnknownName(
        f"{solver} has no setting {name!r}",
        location=user_location(),
        way_out=f"{nearest(name, known)}its settings are {', '.join(known)}",
    )
