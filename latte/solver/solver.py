"""What all solvers do: settings checked, ``update`` compiled for the parameters of a net, state saved."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from latte.frontend.steps import LIMIT, MEAN, SHRINK, Rule, lower_step
from latte.model.body import MISSING, Body, read_body
from latte.model.checks import is_integer, is_number
from latte.model.helpers import with_helpers
from latte.model.source_location import user_location
from latte.net import Net
from latte.runtime.checkpoint import OPTIONAL, SolverState, check_alike
from latte.runtime.incompatible import IncompatibleKeys, incompatible
from latte.runtime.session import Session
from latte.solver.groups import (
    Layers,
    checked_layers,
    groups_of,
    own_settings,
    restored_layers,
    saved_layers,
)
from latte.solver.schedules import Schedule, restored
from latte.solver.settings import Kept, Setting, settings_of, unknown_setting
from latte.solver.updates import Trained, Updates
from swirl.errors import DataError, DeclarationError, TrainingError


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
        layers: settings for some layers or parameters alone: ``{"fc*": dict(learning_rate=0.1), "*.bias":
            dict(weight_decay=0)}``. Keys are layers, names and patterns as of :meth:`latte.net.Net.freeze`; where
            several set the same, the last one counts.
        settings: those that the class declares, and ``clip_norm`` and ``clip_value``. Any number may be a
            :class:`latte.solver.Schedule`; all may be set later, too, except switches.

    A parameter that is frozen, or whose gradient is not computed, is left alone, with what is kept for it; the steps
    meanwhile do not count in its ``self.step_number``, as in PyTorch. Schedules count the steps of the solver.

    Raises:
        DeclarationError: for settings that are unknown, of a wrong type or out of range.
        CommandError: ``layers`` has names that the net does not have.
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

    def __init__(self, net: Net, *, layers: Any = None, **settings: Any):
        location, own = user_location(), settings_of(type(self))
        for name in settings:
            if name not in own:
                raise unknown_setting(type(self).__name__, name, own)
        for name, value in settings.items():
            setattr(self, name, value)
        if not isinstance(net, Net):
            raise DeclarationError(f"a solver needs the net that it trains, not {net!r}", location=location)
        if not net.compiled:
            raise TrainingError("a solver needs a compiled net", location=location, way_out="call net.compile() first")
        self._steps = 0
        self._skipped: dict[str, int] = {}
        """Storage of a parameter → how many steps have left it alone."""
        self._norm = math.nan
        self._session = net.session
        self._body = self._read_update()
        self._views: dict[Hashable, Solver] = {}
        self._now: tuple[Hashable, Trained] | None = None
        self._take(checked_layers(net.graph, layers, own, type(self).__name__))
        owner = next(base for base in type(self).__mro__ if "update" in vars(base))
        keeps_zeros = vars(owner).get("_keeps_zeros", False)
        self._updates = Updates(self._session, self._rule, self._kept_names(), keeps_zeros)
        self._updates.prepare(self._trained(), self._adjustments(1))

    def _read_update(self) -> Body:
        kind = type(self)
        if kind.update is Solver.update:
            raise DeclarationError(
                f"{kind.__name__} has no update", location=user_location(), way_out="def update(self): …"
            )
        return with_helpers(read_body(kind.update), kind)

    # --- groups of parameters -------------------------------------------------------------------------------
    @property
    def layers(self) -> Mapping[str, Mapping[str, Any]]:
        """The settings for some layers or parameters alone: names and patterns → settings. May be set between steps."""
        return MappingProxyType({key: MappingProxyType(dict(given)) for key, given in self._layers})

    @layers.setter
    def layers(self, layers: Any) -> None:
        own = settings_of(type(self))
        self._take(checked_layers(self.session.graph, layers, own, type(self).__name__))

    def _take(self, layers: Layers) -> None:
        """Go on with these settings for layers."""
        groups = groups_of(self._session.graph, layers)
        held = {name: each.held(self) for name, each in settings_of(type(self)).items()}
        for group in {(), *groups.values()}:
            self._check_together({**held, **own_settings(layers, group)})
        self._layers, self._groups, self._now = layers, groups, None
        if self.built:
            self._updates.forget(self._kept_names())

    def _check_together(self, settings: Mapping[str, Any]) -> None:
        """Raise :class:`DeclarationError` where these settings of one parameter exclude each other."""

    def _rule(self, group: Hashable) -> Rule:
        """What is done to an element of the parameters of a group."""
        kind = type(self)
        kept = [name for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, Kept)]
        numbers = [name for name, each in settings_of(kind).items() if not (each.switch or each.default is None)]
        names = (*numbers, *_properties(kind), "step_number")
        return Rule(self._body, kind.__name__, kept[::-1], names, partial(self._value, group))

    def _kept_names(self) -> list[str]:
        """What is kept for each element that update uses, of whatever parameter."""
        groups = {(group, 0) for group in {(), *self._groups.values()}}
        self._views.clear()
        occurring = {name for group in groups for name in lower_step(self._rule(group), "float32", ("i",), ()).arrays}
        return [name for name in self._rule(((), 0)).kept if name in occurring]

    def _value(self, group: Hashable, name: str) -> Any:
        kept = isinstance(getattr(type(self), name, None), Kept)
        value = MISSING if kept else getattr(self._as_for(group), name, MISSING)
        return value if is_number(value) else MISSING

    def _as_for(self, group: Any) -> Solver:
        """This solver with the settings and the number of steps of a group of parameters."""
        if group == ((), 0):
            return self
        if group not in self._views:
            of, skipped = group
            seen = object.__new__(type(self))
            seen.__dict__.update(self.__dict__, **own_settings(self._layers, of), _own_steps=self._steps - skipped)
            self._views[group] = seen
        return self._views[group]

    def _trained(self) -> Trained:
        """What the next step changes."""
        key = (self._updates.memory, self._session.graph.settings.freezing)
        if self._now is None or self._now[0] != key:
            groups = {name: (self._groups[name], self._skipped.get(name, 0)) for name in self._updates.trained()}
            self._now = key, Trained(groups, (self._updates.memory, tuple(groups.items())))
        return self._now[1]

    def __reduce__(self) -> Any:
        raise TrainingError(
            "a solver cannot be copied or pickled: it belongs to its net",
            location=user_location(),
            way_out="make one for the other net, and other.load_state(solver.state())",
        )

    def __repr__(self) -> str:
        held = {name: each.held(self) for name, each in settings_of(type(self)).items()}
        held |= {"layers": dict(self._layers)} if self.__dict__.get("_layers") else {}
        told = ", ".join(f"{name}={value}" for name, value in held.items() if value is not None)
        return f"<{type(self).__name__} {told}>"

    def __setattr__(self, name: str, value: Any) -> None:
        own = isinstance(getattr(type(self), name, None), Setting) or name == "layers"
        if not own and not name.startswith("_") and self.built:
            raise unknown_setting(type(self).__name__, name, [*settings_of(type(self)), "layers"])
        super().__setattr__(name, value)

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
        """The number of the next step; 1 before the first one. In ``update``, that of the step, of those that have
        changed the parameter."""
        return self.__dict__.get("_own_steps", self.__dict__.get("_steps", 0)) + 1

    @property
    def gradient_norm(self) -> float:
        """The norm of all gradients in the last step, before it was clipped; NaN without ``clip_norm``."""
        return self._norm

    # --- stepping -------------------------------------------------------------------------------------------
    def update(self) -> None:
        """What a step does to one element of a parameter; read and compiled, never run."""
        raise NotImplementedError

    def step(self, batches: int = 1) -> None:
        """Change every parameter that trains by its gradient.

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
        self._views.clear()  # settings may have changed since the last step
        trained, adjustments = self._trained(), self._adjustments(batches)
        if SHRINK in adjustments:
            first = {name: value for name, value in adjustments.items() if name != SHRINK}
            self._norm = self._updates.norm(trained, first)
            # NaN stays NaN; 1e-6 is PyTorch's.
            adjustments[SHRINK] = float(np.minimum(1.0, self.clip_norm / (self._norm + 1e-6)))
        else:
            self._norm = math.nan
        self._updates.run(trained, adjustments)
        self._steps += 1
        for name in self._updates.all if len(trained.parameters) < len(self._updates.all) else ():
            if name not in trained.parameters:
                self._skipped[name] = self._skipped.get(name, 0) + 1

    def _adjustments(self, batches: int) -> dict[str, float]:
        """What is done to gradients first, with its number."""
        wanted = {} if batches == 1 else {MEAN: 1 / batches}
        if self.clip_value is not None:
            wanted[LIMIT] = self.clip_value
        return wanted if self.clip_norm is None else {**wanted, SHRINK: 1.0}

    # --- state ----------------------------------------------------------------------------------------------
    def state(self) -> SolverState:
        """Settings, number of steps and what is kept, as :meth:`latte.net.Net.save` stores them; of parameters that
        have never been trained, nothing is kept."""
        held = {name: each.held(self) for name, each in settings_of(type(self)).items()}
        settings = {name: value.saved() if isinstance(value, Schedule) else value for name, value in held.items()}
        with self.session.lock:
            settings |= {"steps": self._steps, "layers": saved_layers(self._layers), "skipped": dict(self._skipped)}
            trained = self._trained().parameters
            begun = [n for n in self._updates.all if n in trained or self._skipped.get(n, 0) < self._steps]
            return SolverState(type(self).__name__, settings, self._updates.read(begun))

    def load_state(self, state: SolverState, strict: bool = True) -> IncompatibleKeys:
        """Go on from a state of a solver for the same net, with the settings and schedules that it was saved with.

        Args:
            state: of such a solver.
            strict: whether what is kept must be there for the parameters of this net, and no others; otherwise what
                fits is taken, and other parameters begin anew.

        Returns:
            what was left out, by name (``velocity.conv1.weights``).

        Raises:
            DataError: it is not a state, or of another kind of solver or other parameters; a switch is another one, a
                schedule is of your own kind, and this solver has none of it, or a value is out of range. Nothing is
                changed then.
        """
        own = settings_of(type(self))
        if not isinstance(state, SolverState):
            raise DataError(
                f"a solver's state is what solver.state() has returned, not {state!r}", location=user_location()
            )
        if state.kind != type(self).__name__ or set(state.settings) - OPTIONAL != {*own, "steps"}:
            raise DataError(
                f"this is the state of a solver {state.kind}, not of {type(self).__name__}",
                location=user_location(),
                way_out="load it into a solver of that kind",
            )
        steps = state.settings["steps"]
        if not is_integer(steps) or steps < 0:
            raise DataError(f"steps must be a whole number, at least 0, not {steps!r}", location=user_location())
        skipped = _checked_skipped(state.settings.get("skipped", {}), int(steps), self._updates.all)
        shapes = self._updates.shapes()
        begun = [name for name in self._updates.needed() if skipped.get(name, 0) < steps]
        needed = [f"{kept}.{name}" for kept in self._updates.kept for name in begun]
        if strict:
            wanted = {name: shapes[name] for name in (*needed, *state.arrays) if name in shapes}
            check_alike(state.arrays, wanted, "the state", "the solver")
        left = incompatible(state.arrays, shapes, needed=needed)
        out = {*left.unexpected_keys, *(name for name, *_ in left.mismatched_keys)}
        for name in {key.partition(".")[2] for key in needed if key in out or key not in state.arrays}:
            skipped[name] = int(steps)  # it begins anew
            out.update(f"{kept}.{name}" for kept in self._updates.kept)
        arrays = {name: values for name, values in state.arrays.items() if name not in out}
        mine = [held for each in own.values() if isinstance(held := each.held(self), Schedule)]
        mine += [each for _, given in self._layers for each in given.values() if isinstance(each, Schedule)]
        settings = {name: value for name, value in state.settings.items() if name not in {"steps", *OPTIONAL}}
        try:
            for name, value in settings.items():
                settings[name] = restored(value, mine) if isinstance(value, dict) else value
                own[name].check(settings[name])
        except DeclarationError as error:
            raise DataError(f"the solver was saved with {error.message}", location=error.location) from error
        graph, saved = self._session.graph, state.settings.get("layers", [])
        layers = restored_layers(graph, saved, own, type(self).__name__, mine, strict=strict)
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
            self._steps, self._skipped = int(steps), skipped
            self._take(layers)
            self._updates.write(arrays)
        return left


def _checked_skipped(skipped: Any, steps: int, parameters: Collection[str]) -> dict[str, int]:
    """How many steps have left parameters alone, of those that the net has.

    Raises:
        DataError: it is something else.
    """
    counts: Collection[Any] = skipped.values() if isinstance(skipped, Mapping) else [None]
    if not all(is_integer(count) and 0 <= count <= steps for count in counts):
        raise DataError(
            f"skipped must have a number of steps, from 0 to {steps}, by parameter, not {skipped!r}",
            location=user_location(),
        )
    return {name: int(count) for name, count in skipped.items() if name in parameters}


def _properties(kind: type) -> list[str]:
    """Properties that a solver's own class adds."""
    bases = kind.__mro__[: kind.__mro__.index(Solver)]
    return [name for base in bases for name, value in vars(base).items() if isinstance(value, property)]
