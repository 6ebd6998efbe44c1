"""For tests of one's own: a recipe computes what its layer computes without it, on several sizes and every target."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from latte.layers import MemoryDataLayer
from latte.model.ensemble import Ensemble
from latte.model.source_location import user_location, user_stacklevel
from latte.net import Net
from latte.planning.plan import Plan
from latte.runtime.report import NotTuned
from latte.tools.synthetic_data import synthetic_batch
from swirl.dump.compare import differences, usual_tolerance
from swirl.errors import CommandError, DeclarationError, LatteError, TargetError, about, nearest
from swirl.schedule.files import read_recipe
from swirl.schedule.recipe import DEFAULT_SCHEDULE, Recipe
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS

__all__ = ["CheckedRecipe", "RecipeDiffers", "TargetLeftOut", "check_recipe"]

Size = tuple[Any, ...]
"""Items in a batch, and the shape of each source."""
Results = dict[str, np.ndarray]

ITEMS, ODD_ITEMS = 8, 7
NOISE = 4 * 2.0**-24
"""Relative; four roundings of float32."""
NOISES = 8.0
"""How many times what noise changes a recipe may change: it rounds elsewhere, and more than once."""


class RecipeDiffers(LatteError, AssertionError):
    """A recipe computes something else, or not all of it is used."""


class TargetLeftOut(UserWarning):
    """This machine cannot run a target, for which a recipe has not been checked."""


@dataclass(frozen=True)
class CheckedRecipe:
    """What has been checked.

    Args:
        recipe: the file.
        sizes: items and shapes of the sources.
        targets: that the recipe was checked for, on all of them.
        left_out: targets that this machine cannot run → why.
        arrays: that were compared, in all.
    """

    recipe: Path
    sizes: tuple[Size, ...]
    targets: tuple[str, ...]
    left_out: Mapping[str, str]
    arrays: int

    def __str__(self) -> str:
        sizes = "; ".join(map(_said, self.sizes))
        text = f"{self.recipe.name}: {self.arrays} arrays are equal within rounding, for {', '.join(self.targets)}"
        return "\n".join(
            [f"{text}: {sizes}", *(f"  not checked for {name}: {why}" for name, why in self.left_out.items())]
        )


def check_recipe(
    layer: Callable[..., Ensemble | Sequence[Ensemble]],
    recipe: str | PathLike[str],
    *shapes: tuple[int, ...],
    sizes: Sequence[Size] | None = None,
    targets: Sequence[str] | None = None,
    on: str | None = None,
    choices: Mapping[str, Any] | None = None,
    may_skip: Collection[str] = (),
    may_decline: Collection[str] = (),
) -> CheckedRecipe:
    """Check that a recipe computes what its layer computes without it: values in training and inference, gradients of
    sources and parameters, and states such as running statistics::

        def test_my_recipe() -> None:
            check_recipe(lambda net, x: ConvLayer(net, x, 32, kernel=3, pad=1), "recipes/conv.py", (16, 14, 14))

    An element may differ by the larger of two bounds: what ``latte compare`` allows (1e-5 of the array's largest value,
    or ten roundings times the root of the number of terms of the longest sum); and eight times what noise of four
    roundings in all data and parameters changes in the array without the recipe. The latter counts where results
    cancel, or where rounding decides a maximum. What the layer computes without the recipe is computed for the portable
    target, by the default schedule.

    Args:
        layer: declares the layer, or the layers of a chain, in a net: it is given the net and a source for each shape,
            and returns what it has declared last. It may declare further sources (labels) by itself.
        recipe: the file. One that declares a chain is for the layers of these kinds.
        shapes: of an item of each source.
        sizes: ``(items, shape, …)`` each; by default three of them: 8 items of the shapes given; 7 items with every
            even extent from 4 on reduced by one; and a single item of the shapes given.
        targets: by default all; of those, the ones that this machine cannot run are left out, with a warning.
        on: layer or kind that gets the recipe, if it is not the last layer.
        choices: for the recipe, see :meth:`latte.net.Net.use_recipe`.
        may_skip: names of commands that may be skipped (``optional=True``) on some size or target.
        may_decline: phases that the recipe may leave to others on some size or target.

    Raises:
        RecipeDiffers: results differ, with the first array and element; or a command was skipped, a phase was left to
            others, or the recipe was not used. It is an ``AssertionError``, too.
        Refused, CommandError, RecipeError: the recipe is refused, as ever.
        TargetError: this machine cannot run a target that ``targets`` names.
        DeclarationError: the layer does not take one of the sizes.
    """
    path = Path(recipe)
    declared = read_recipe(path)
    running, left_out = _targets(targets)
    chosen = _sizes(shapes, sizes)
    check = _Check(layer, path, declared, on, choices, tuple(may_skip), tuple(may_decline))
    compared = 0
    for size in chosen:
        expected, bounds = check.expected(size)
        for target in running:
            compared += check.compare(size, target, expected, bounds)
    for name, why in left_out.items():
        told = f"{path.name} is not checked for {name}: {why}"
        warnings.warn(told, TargetLeftOut, stacklevel=user_stacklevel())
    return CheckedRecipe(path, chosen, running, left_out, compared)


def _targets(asked: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """The targets to run, and those that are left out, with the reasons."""
    names = tuple(TARGETS) if asked is None else tuple(asked)
    for name in names:
        if name not in TARGETS:
            way_out = f"{nearest(name, TARGETS)}the targets are {', '.join(TARGETS)}"
            raise TargetError(f"no target {name!r}", location=user_location(), way_out=way_out)
    missing = {name: why for name in names if (why := why_not(TARGETS[name])) is not None}
    if asked is not None and missing:
        name, why = next(iter(missing.items()))
        raise TargetError(
            f"{name} was asked for: {why}", location=user_location(), way_out="targets=None leaves it out"
        )
    running = tuple(name for name in names if name not in missing)
    if not running:
        raise CommandError("there is no target to check a recipe for", location=user_location())
    return running, missing


def _sizes(shapes: Sequence[tuple[int, ...]], asked: Sequence[Size] | None) -> tuple[Size, ...]:
    if asked is not None:
        wrong = [size for size in asked if not isinstance(size, tuple) or not size or not isinstance(size[0], int)]
        if not asked or wrong or shapes:
            raise CommandError(
                "sizes are tuples (items, shape, …), in place of the shapes",
                location=user_location(),
                way_out="sizes=[(8, (16, 14, 14)), (3, (5, 7, 9))]",
            )
        return tuple(asked)
    if not all(isinstance(shape, tuple) for shape in shapes):
        raise CommandError(
            f"a shape is a tuple, not {next(shape for shape in shapes if not isinstance(shape, tuple))!r}",
            location=user_location(),
            way_out="check_recipe(layer, recipe, (16, 14, 14))",
        )
    usual = tuple(shapes)
    odd = tuple(tuple(n - 1 if n % 2 == 0 and n >= 4 else n for n in shape) for shape in shapes)
    return (ITEMS, *usual), (ODD_ITEMS, *odd), (1, *usual)


def _said(size: Size) -> str:
    items, *shapes = size
    of = f" of {', '.join(map(str, shapes))}" if shapes else ""
    return f"{items} item{'s' if items > 1 else ''}{of}"


@dataclass(frozen=True)
class _Check:
    """A recipe and its layer; see :func:`check_recipe`."""

    layer: Callable[..., Ensemble | Sequence[Ensemble]]
    path: Path
    recipe: Recipe
    on: str | None
    choices: Mapping[str, Any] | None
    may_skip: tuple[str, ...]
    may_decline: tuple[str, ...]

    def expected(self, size: Size) -> tuple[Results, dict[str, float]]:
        """What the layer computes without the recipe, and how far each array may be from it."""
        with about(f"{_said(size)}, without the recipe"):
            run = _Run(*self._net(size, None), "portable")
        programs = [item.stages[0].program for item in run.net.executable.compiled]
        tolerance = usual_tolerance(*programs)
        expected, disturbed = run.results(), run.results(NOISE)
        bounds = {}
        for name, array in expected.items():
            changed = np.abs(disturbed[name].astype(np.float64) - array)
            noise = float(changed.max(initial=0.0, where=np.isfinite(changed)))
            largest = float(np.abs(array).max(initial=0.0, where=np.isfinite(array)))
            bounds[name] = max(tolerance * largest, NOISES * noise)
        return expected, bounds

    def compare(self, size: Size, target: str, expected: Results, bounds: Mapping[str, float]) -> int:
        """Compare what the layer computes with the recipe; the number of arrays."""
        where = f"{_said(size)}, for {target}"
        with about(where):
            run = _Run(*self._net(size, self.path), target)
        self._check_used(run.net.executable.plan, where)
        found = run.results()
        if found.keys() != expected.keys():
            others = ", ".join(sorted(found.keys() ^ expected.keys()))
            raise RecipeDiffers(f"{where}: only one of the two nets has {others}", location=str(self.path))
        for name, array in expected.items():
            if array.shape != found[name].shape:
                shapes = f"{found[name].shape}, and without the recipe {array.shape}"
                raise RecipeDiffers(f"{where}: {name} has shape {shapes}", location=str(self.path))
            largest = float(np.abs(array).max(initial=0.0, where=np.isfinite(array)))
            relative = bounds[name] / largest if largest else 0.0
            (difference,) = differences({name: array}, {name: found[name]}, relative)
            if difference.first is not None:
                index, (without, own) = list(difference.first), difference.values
                raise RecipeDiffers(
                    f"{where}: {name}{index} is {own!r}, and without the recipe {without!r}; {difference.count} of "
                    f"{array.size} elements differ, by up to {difference.largest:.3g} (allowed: {bounds[name]:.3g})",
                    location=str(self.path),
                    way_out="latte bisect FILE, with net.use_recipe in it, finds the first stage that is wrong",
                )
        return len(expected)

    def _net(self, size: Size, recipe: Path | None) -> tuple[Net, list[Ensemble], list[Ensemble]]:
        """A net of the layer, with the recipe or none: the net, the sources, and what was declared last."""
        items, *shapes = size
        net = Net(items, seed=1)
        net.force_backward = True
        sources = [MemoryDataLayer(net, shape) for shape in shapes]
        try:
            made = self.layer(net, *sources)
        except DeclarationError as error:
            way_out = f"{error.way_out}; or " if error.way_out else ""
            error.way_out = f"{way_out}give the sizes that it takes: check_recipe(…, sizes=[(8, (16, 14, 14)), …])"
            raise
        given = made if isinstance(made, (list, tuple)) else [made]
        last = [each for each in given if isinstance(each, Ensemble)]
        if not last or len(last) < len(given):
            raise CommandError(f"layer returns the layer that it has declared, not {made!r}", location=user_location())
        key = self.on or ("_".join(self.recipe.chain) if self.recipe.chain else last[-1].name)
        net.use_recipe(key, recipe, None if recipe is None else self.choices)
        return net, sources, last

    def _check_used(self, plan: Plan, where: str) -> None:
        """Refuse a recipe of which a part has not been used."""
        absolute = self.path.absolute()
        own = [unit for unit in plan.units if unit.recipe is not None and unit.recipe.path == absolute]
        members = {member.name for unit in own for member in unit.members}
        reasons = [note for name, notes in plan.notes.items() if not own or name in members for note in notes]
        told = "; ".join(dict.fromkeys(reasons)) or "LATTE_SCHEDULE=0 leaves all layers as they are lowered"
        if not own:
            raise RecipeDiffers(f"{where}: no layer gets the recipe", location=str(self.path), way_out=told)
        computed = {phase for layer in plan.programs if layer.ensemble.name in members for phase in layer.programs}
        scheduled = {phase for unit in own for phase in unit.parts}
        left = {each.phase: each.reason for each in plan.untuned if each.layer in {unit.name for unit in own}}
        left |= {p: told for p in self.recipe.functions if p in computed and p not in scheduled}
        for phase, reason in left.items():
            if phase not in self.may_decline:
                way_out = f"may_decline=[{phase!r}] if it is meant to"
                message = f"{where}: {phase} is not scheduled by the recipe: {reason}"
                raise RecipeDiffers(message, location=str(self.path), way_out=way_out)
        for unit in own:
            for outcome in plan.outcomes[unit.name]:
                command = outcome.command
                if outcome.status != "skipped" or command.location == DEFAULT_SCHEDULE or command.name in self.may_skip:
                    continue
                raise RecipeDiffers(
                    f"{where}: skipped {command.text}: {outcome.reason}",
                    location=command.location,
                    way_out=f"may_skip=[{command.name!r}] if it is meant to",
                )


class _Run:
    """A net that is compiled and run on the same data as another one.

    Args:
        net: of the layer.
        sources: whose gradients are compared.
        last: the layers whose values are compared.
        target: what it is compiled for.
    """

    def __init__(self, net: Net, sources: Sequence[Ensemble], last: Sequence[Ensemble], target: str):
        self.net, self._sources, self._last = net, sources, last
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotTuned)  # which is refused, or meant
            net.compile(target=target)
        self._given = synthetic_batch(net)
        self._kept = {place: getattr(*place)() for place in self._fields("get", "param", "state")}

    def results(self, noise: float = 0.0) -> Results:
        """Values, gradients and states after a training step and inference.

        Args:
            noise: relative, that data, parameters and gradients are disturbed by.
        """
        generator, net = np.random.default_rng(3), self.net
        disturb = np.random.default_rng(4)

        def disturbed(array: np.ndarray) -> np.ndarray:
            signs = disturb.choice([-noise, noise], array.shape)
            if not noise or bool((array == np.floor(array)).all()):  # labels and subscripts are whole numbers
                return array
            return array * (1 + signs).astype(array.dtype)

        for (layer, getter), array in self._kept.items():
            name = getter.removeprefix("get_")
            moved = array
            if layer.fields()[name].role == "param" and array.dtype.kind == "f":  # other values than it starts with
                moved = (array + 0.1 * generator.standard_normal(array.shape)).astype(array.dtype)
            getattr(layer, f"set_{name}")(disturbed(moved))
        net.set_batch(*map(disturbed, self._given))
        if not net.session.has_loss:
            for layer in self._last:
                seed = generator.standard_normal((net.batch_size, *layer.shape)).astype(np.float32)
                layer.set_grad(disturbed(seed))
        net.forward()
        found = {f"{layer.name}.value": layer.get_value() for layer in self._last}
        net.backward()
        gradients = [(layer, "get_grad") for layer in self._sources]
        for layer, getter in (*gradients, *self._fields("get", "param_grad"), *self._fields("get", "state")):
            found[f"{layer.name}.{getter.removeprefix('get_')}"] = getattr(layer, getter)()
        net.test()
        return found | {f"{layer.name}.value in inference": layer.get_value() for layer in self._last}

    def _fields(self, verb: str, *roles: str) -> Iterator[tuple[Ensemble, str]]:
        """Accessors of all fields of these roles."""
        for layer in self.net.ensembles:
            for name, spec in layer.fields().items():
                if spec.role in roles:
                    yield layer, f"{verb}_{name}"
