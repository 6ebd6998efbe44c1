"""What all solvers do: settings checked, ``update`` compiled for the parameters of a net, state saved."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from latte.frontend.steps import LIMIT, MEAN, SHRINK, Rule
from latte.model.body import MISSING, read_body
from latte.model.checks import is_integer, is_number
from latte.model.helpers import with_helpers
from latte.model.source_location import user_location
from latte.net import Net
from latte.runtime.checkpoint import SolverState, check_alike
from latte.runtime.session import Session
from latte.solver.schedules import Schedule, restored
from latte.solver.settings import Kept, Setting
from latte.solver.updates import Updates
from swirl.errors import DataError, DeclarationError, TrainingError, UnknownName, nearest


class Solver:
    """Changes the parameters of a net by their gradients. One's own says in ``update`` what happens to one element::

        class Lion(Solver):
            learning_rate = Setting(1e-4)
            beta1, beta2 = Setting(0.9, most=1), Setting(0.99, most=1)
            mean = Kept()

            def update(self):
                direction = self.beta1 * self.mean + (1 - self.beta1) * self.gradient
                if direction > 0:
                    self.parameter -= self.learning_rate
                if direction < 0:
                    self.parameter += self.learning_rate
                self.mean = self.beta2 * self.mean + (1 - self.beta2) * self.gradient

    ``update`` is read and compiled, as bodies of layers are, and may call helper functions. It reads and writes
    ``self.parameter`` and what is :class:`Kept`; it reads ``self.gradient``, settings, properties of the class, and
    ``self.step_number``, which is 1 in the first step. Expressions of these numbers alone are computed once for each
    step, in double precision.

    Args:
        net: a compiled net.
        settings: those that the class declares, and ``clip_norm`` and ``clip_value``. Any number may be a
            :class:`latte.solver.Schedule`; all may be set later, too, except switches.

    Raises:
        DeclarationError: for settings that are unknown, of a wrong type or out of range.
        TrainingError: the net is not compiled, or has nothing to train.
        BodyError: ``update`` uses something the language does not have.
    """

    clip_norm = Setting(None, above=0)
    """The greatest norm of all gradients together: they are shrunk to it, as by PyTorch's ``clip_grad_norm_``."""
    clip_value = Setting(None, above=0)
    """Elements of gradients are cut off at ± this, before ``clip_norm``."""

    _keeps_zeros: ClassVar[bool] = False
    """Whether this very class has an ``update`` that leaves zeros where all is zero: what pads a blocked parameter need
    not be cleared after it."""

    if TYPE_CHECKING:  # in update
        parameter: Any
        gradient: Any

    def __init_subclass__(cls) -> None:
        for name, value in vars(cls).items():
            taken = hasattr(Solver, name) and not isinstance(getattr(Solver, name), Setting)
            if isinstance(value, (Setting, Kept)) and (taken or name in ("parameter", "gradient")):
                raise DeclarationError(
                    f"{cls.__name__}: {name!r} has another meaning in a solver",
                    location=user_location(),
                    way_out="choose another name",
                )

    def __init__(self, net: Net, **settings: Any):
        location, own = user_location(), _settings(type(self))
        for name in settings:
            if name not in own:
                raise self._unknown(name)
        for name, value in settings.items():
            setattr(self, name, value)
        if not isinstance(net, Net):
            raise DeclarationError(f"a solver needs the net that it trains, not {net!r}", location=location)
        if not net.compiled:
            raise TrainingError("a solver needs a compiled net", location=location, way_out="call net.compile() first")
        self._steps = 0
        self._norm = math.nan
        self._session = net.session
        owner = next(base for base in type(self).__mro__ if "update" in vars(base))
        self._updates = Updates(self._session, self._rule(), vars(owner).get("_keeps_zeros", False))
        self._updates.prepare(self._adjustments(1))

    def _rule(self) -> Rule:
        kind = type(self)
        if kind.update is Solver.update:
            raise DeclarationError(
                f"{kind.__name__} has no update", location=user_location(), way_out="def update(self): …"
            )
        kept = [name for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, Kept)]
        numbers = [name for name, each in _settings(kind).items() if not (each.switch or each.default is None)]
        return Rule(
            with_helpers(read_body(kind.update), kind),
            kind.__name__,
            kept[::-1],
            (*numbers, *_properties(kind), "step_number"),
            self._value,
        )

    def _value(self, name: str) -> Any:
        value = MISSING if isinstance(getattr(type(self), name, None), Kept) else getattr(self, name, MISSING)
        return value if is_number(value) else MISSING

    def __reduce__(self) -> Any:
        raise TrainingError(
            "a solver cannot be copied or pickled: it belongs to its net",
            location=user_location(),
            way_out="make one for the other net, and other.load_state(solver.state())",
        )

    def __repr__(self) -> str:
        held = {name: each.held(self) for name, each in _settings(type(self)).items()}
        told = ", ".join(f"{name}={value}" for name, value in held.items() if value is not None)
        return f"<{type(self).__name__} {told}>"

    def __setattr__(self, name: str, value: Any) -> None:
        own = isinstance(getattr(type(self), name, None), Setting)
        if not own and not name.startswith("_") and self.built:
            raise self._unknown(name)
        super().__setattr__(name, value)

    def _unknown(self, name: str) -> UnknownName:
        known = _settings(type(self))
        return UnknownName(
            f"{type(self).__name__} has no setting {name!r}",
            location=user_location(),
            way_out=f"{nearest(name, known)}its settings are {', '.join(known)}",
        )

    @property
    def built(self) -> bool:
        """Whether it is ready to train."""
        return "_updates" in self.__dict__

    @property
    def session(self) -> Session:
        """Of the net that it trains."""
        if not self.built:
            raise TrainingError(
                f"{type(self).__name__}.__init__ has not called that of Solver",
                location=user_location(),
                way_out="super().__init__(net)",
            )
        return self._session

    @property
    def step_number(self) -> int:
        """The number of the next step; 1 before the first one. In ``update``, that of the step."""
        return self.__dict__.get("_steps", 0) + 1

    @property
    def gradient_norm(self) -> float:
        """The norm of all gradients in the last step, before it was clipped; NaN without ``clip_norm``."""
        return self._norm

    # --- stepping -------------------------------------------------------------------------------------------
    def update(self) -> None:
        """What a step does to one element of a parameter; read and compiled, never run."""
        raise NotImplementedError

    def step(self, batches: int = 1) -> None:
        """Change every parameter by its gradient.

        Args:
            batches: how many have added to the gradients since ``net.clear_grad()``: their mean is taken.

        Raises:
            TrainingError: no gradients since the net was compiled.  DataError: ``batches`` is not at least 1.
        """
        if not is_integer(batches) or batches < 1:
            raise DataError(
                f"the number of batches must be a whole number, at least 1, not {batches!r}", location=user_location()
            )
        with self.session.lock:
            self._step(batches)

    def _step(self, batches: int) -> None:
        if "backward" not in self._session.has_run:
            raise TrainingError(
                "there are no gradients yet",
                location=user_location(),
                way_out="call net.forward() and net.backward() first",
            )
        self._session.settle_gradients()
        adjustments = self._adjustments(batches)
        if SHRINK in adjustments:
            first = {name: value for name, value in adjustments.items() if name != SHRINK}
            self._norm = self._updates.norm(first)
            # NaN stays NaN; 1e-6 is PyTorch's.
            adjustments[SHRINK] = float(np.minimum(1.0, self.clip_norm / (self._norm + 1e-6)))
        else:
            self._norm = math.nan
        self._updates.run(adjustments)
        self._steps += 1

    def _adjustments(self, batches: int) -> dict[str, float]:
        """What is done to gradients first, with its number."""
        wanted = {} if batches == 1 else {MEAN: 1 / batches}
        if self.clip_value is not None:
            wanted[LIMIT] = self.clip_value
        return wanted if self.clip_norm is None else {**wanted, SHRINK: 1.0}

    # --- state ----------------------------------------------------------------------------------------------
    def state(self) -> SolverState:
        """Settings, number of steps and what is kept, as :meth:`latte.net.Net.save` stores them."""
        held = {name: each.held(self) for name, each in _settings(type(self)).items()}
        settings = {name: value.saved() if isinstance(value, Schedule) else value for name, value in held.items()}
        with self.session.lock:
            return SolverState(type(self).__name__, {**settings, "steps": self._steps}, self._updates.read())

    def load_state(self, state: SolverState) -> None:
        """Go on from a state of a solver for the same net, with the settings and schedules that it was saved with.

        Raises:
            DataError: it is not a state, or of another kind of solver or other parameters; a switch is another one, a
                schedule is of a kind of one's own that this solver has none of, or a value is out of range. Nothing is
                changed then.
        """
        own = _settings(type(self))
        if not isinstance(state, SolverState):
            raise DataError(
                f"a solver's state is what solver.state() has returned, not {state!r}", location=user_location()
            )
        if state.kind != type(self).__name__ or set(state.settings) != {*own, "steps"}:
            raise DataError(
                f"this is the state of a solver {state.kind}, not of {type(self).__name__}",
                location=user_location(),
                way_out="load it into a solver of that kind",
            )
        steps = state.settings["steps"]
        if not is_integer(steps) or steps < 0:
            raise DataError(f"steps must be a whole number, at least 0, not {steps!r}", location=user_location())
        check_alike(state.arrays, self._updates.read(), "the state", "the solver")
        mine = [held for each in own.values() if isinstance(held := each.held(self), Schedule)]
        settings = {name: value for name, value in state.settings.items() if name != "steps"}
        try:
            for name, value in settings.items():
                settings[name] = restored(value, mine) if isinstance(value, dict) else value
                own[name].check(settings[name])
        except DeclarationError as error:
            raise DataError(f"the solver was saved with {error.message}", location=error.location) from error
        for name, value in settings.items():
            if own[name].switch and value != own[name].held(self):
                raise DataError(
                    f"the solver was saved with {name}={value}",
                    location=user_location(),
                    way_out=f"{type(self).__name__}(net, …, {name}={value})",
                )
        with self.session.lock:
            for name, value in settings.items():
                if not own[name].switch:
                    setattr(self, name, value)
            self._steps = int(steps)
            self._updates.write(state.arrays)


def _settings(kind: type) -> dict[str, Setting]:
    """Those that a class and its bases declare; its own first."""
    found: dict[str, Setting] = {}
    for base in kind.__mro__:
        found |= {name: each for name, each in vars(base).items() if isinstance(each, Setting) and name not in found}
    return found


def _properties(kind: type) -> list[str]:
    """Properties that a solver's own class adds."""
    bases = kind.__mro__[: kind.__mro__.index(Solver)]
    return [name for base in bases for name, value in vars(base).items() if isinstance(value, property)]
