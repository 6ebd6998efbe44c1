"""Schedules that are kept: what a recipe has made of a region, so that an equal region is not scheduled again.

A recipe is a function of ``s`` and ``target``: its outcome depends on the region's programs, the layouts of the storage
that it sees, the target, and the recipe's own sources (:mod:`swirl.schedule.identity`). All of that is the key; the
names of layers are no part of it, unless the recipe may look at them. What a recipe's identity does not tell is not
kept.
Within a compilation equal regions share one outcome; on disk it is an entry of the cache folder. A damaged entry counts
as one that does not exist.

An entry holds texts of JSON, in which tokens stand for names. What planning goes on with is read at once, the rest
(nests, commands) when somebody looks. Stages, which are only shown, are not kept: the recipe makes them again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import NoneType
from typing import Any

from swirl.build.cache import cache_folder, cache_key, draft_folder, entry_lock, publish, read_entry
from swirl.codegen.emit import KernelSource
from swirl.errors import Declined, LatteError
from swirl.ir.anonymous import renamed_storage
from swirl.ir.buffers import Buffer
from swirl.schedule.command_log import Outcome, shown
from swirl.schedule.declared import Declared
from swirl.schedule.later import Later, LaterMapping
from swirl.schedule.memo import Memo, Memos
from swirl.schedule.pipeline import Scheduled, Stage, has_replaced_parts, schedule_declared
from swirl.schedule.plan_state import Given, PhaseNests, PlanState, Region, seen_by
from swirl.schedule.recipe import Recipe
from swirl.schedule.values import NotAValue, from_value, to_value
from swirl.target.targets import Target

FILE = "schedule.json"
_TOKEN = re.compile(r"zR(\d+)z")
_PARTS = {"plan": str, "touched": str, "outcomes": str, "nests": dict}
"""What an entry of a region that was scheduled holds, beside ``built_on`` and ``kernels``."""
_DAMAGED = (AttributeError, IndexError, KeyError, SyntaxError, TypeError, ValueError)

RecipeOf = Callable[[str], "Recipe | None"]
"""Finds the recipe of a kind of layer."""


@dataclass(frozen=True)
class BoundKernel:
    """The C++ of one phase of a region.

    Args:
        source: the text.
        bound: name of a buffer in it → storage.
        added: storage that passes after the recipe have added → the buffer.
        fixed: why it is right for whole batches alone, or "".
    """

    source: KernelSource
    bound: Mapping[str, str]
    added: Mapping[str, Buffer] = field(default_factory=dict)
    fixed: str = ""


@dataclass(frozen=True)
class Kept:
    """A region after its recipe, and where its kernels are kept.

    Args:
        made: the region; or the phase that the recipe declines.
        entry: None where nothing is kept.
        names: of layers, in the place of the entry's tokens.
        memo: where results of passes are kept.
    """

    made: Scheduled | Declined
    entry: _Entry | None
    names: tuple[str, ...]
    memo: Callable[[], Memo]

    def kernel(self, phase: str, state: PlanState, make: Callable[[], BoundKernel]) -> BoundKernel:
        """The C++ of a phase.

        Args:
            phase: one that the region has.
            state: of the whole plan: other regions may have laid out storage that this one touches.
            make: generates it, if it is not known.
        """
        if self.entry is None:
            return make()
        return self.entry.kernel(phase, self.names, state, make)


class KeptSchedules:
    """The schedules that a compilation asks for. New ones are written to disk when it ends.

    Args:
        memos: where results of passes and commands are kept.
        target: what code is made for.
    """

    def __init__(self, memos: Memos, target: Target):
        self._memos, self.target = memos, target
        self._known: dict[str, _Entry] = {}
        self.computed = 0
        """How many regions have been scheduled by their recipes, and were not known."""

    def scheduled(self, declared: Declared, state: PlanState, recipe: Recipe | None, recipes: RecipeOf) -> Kept:
        """A region after its recipe.

        Args:
            declared: the region's programs.
            state: of the plan before it.
            recipe: see :func:`swirl.schedule.pipeline.schedule`.
            recipes: finds the recipe of a kind of layer, for a chain's recipe.

        Raises:
            LatteError: see :func:`swirl.schedule.pipeline.schedule`.
        """
        seen = seen_by(state, declared)
        version = None if has_replaced_parts() else self._memos.version
        memo = partial(self._memos.of, list(declared.programs()))

        def computed(declared: Declared, seen: PlanState) -> Scheduled | Declined:
            self.computed += 1
            return schedule_declared(declared, seen, recipe, self.target, memo(), recipes)

        identity, shares = ("none", True) if recipe is None else (recipe.identity, recipe.shares)
        shares = shares and not declared.has(_TOKEN)
        if version is None or identity is None:
            return Kept(computed(declared, seen), None, (), memo)
        names = tuple(_owners(declared, seen)) if shares else ()
        tokens = _tokens(names)
        parts = repr(self.target), declared.identity(tokens), repr(_renamed(seen, tokens, located=False))
        entry = self._entry(cache_key("region", version, identity, *parts))

        def again() -> Scheduled:
            found = schedule_declared(declared, seen, recipe, self.target, memo(), recipes)
            assert isinstance(found, Scheduled), "the same recipe has not declined the same programs"
            return found

        if entry.holds(recipes):
            try:
                return Kept(entry.named(names, seen, again), entry, names, memo)
            except _DAMAGED:
                entry.forget()
        if shares:
            try:
                made = computed(declared.with_owners(tokens), _renamed(seen, tokens))
            except LatteError:  # to be told with the names of layers
                return Kept(computed(declared, seen), None, (), memo)
        else:
            made = computed(declared, seen)
        if entry.keep(made, recipes, shares):
            return Kept(entry.named(names, seen, again), entry, names, memo)
        return Kept(computed(declared, seen) if shares else made, None, (), memo)

    def _entry(self, key: str) -> _Entry:
        if key not in self._known:
            self._known[key] = _Entry(key, _read(key))
        return self._known[key]

    def __enter__(self) -> KeptSchedules:
        return self

    def __exit__(self, *_: object) -> None:
        for entry in self._known.values():
            entry.write()


class _Entry:
    """The outcome of a schedule.

    Args:
        key: of the cache.
        texts: JSON with tokens for names, by what it is; empty where nothing is known.
    """

    def __init__(self, key: str, texts: dict[str, Any]):
        self.key, self._texts, self._changed = key, texts, False

    def forget(self) -> None:
        """Know nothing: what was read is damaged."""
        self._texts = {}

    def holds(self, recipes: RecipeOf) -> bool:
        """Whether the outcome is known, and the recipes that the recipe has built on are still the same."""
        built_on = self._texts.get("built_on")
        return built_on is not None and all(_identity(recipes(kind)) == known for kind, known in built_on.items())

    def keep(self, made: Scheduled | Declined, recipes: RecipeOf, shares: bool) -> bool:
        """Take an outcome, or say that it cannot be kept.

        Args:
            made: the outcome.
            recipes: finds the recipes that it has built on.
            shares: whether tokens stand for names.
        """
        try:
            if isinstance(made, Declined):
                told = [made.message, made.phase, made.chain, to_value(made.knobs)]
                built_on, texts = made.built_on, {"declined": json.dumps(told)}
            else:
                built_on, texts = made.built_on, _texts_of(made)
        except NotAValue:
            return False
        found = {kind: recipes(kind) for kind in built_on}
        if any(_identity(each) is None or (shares and each is not None and not each.shares) for each in found.values()):
            return False
        self._texts = {**texts, "built_on": {kind: _identity(each) for kind, each in found.items()}, "kernels": {}}
        self._changed = True
        return True

    def named(self, names: Sequence[str], seen: PlanState, again: Callable[[], Scheduled]) -> Scheduled | Declined:
        """The outcome with the names of layers.

        Args:
            names: in the place of the tokens.
            seen: the part of the plan's state that the region sees.
            again: schedules the region once more, for its stages.
        """
        text = partial(_named, names)
        if "declined" in self._texts:
            message, phase, chain, knobs = json.loads(text(self._texts["declined"]))
            declined = Declined(message, phase=phase, chain=chain)
            declined.knobs = from_value(knobs)
            return declined
        plan = from_value(json.loads(text(self._texts["plan"])))

        def nests(phase: str) -> PhaseNests:
            found: PhaseNests = from_value(json.loads(text(self._texts["nests"][phase])))
            return found

        made_again = cache(again)

        def stages(phase: str) -> Sequence[Stage]:
            return Later(lambda: made_again().stages[phase])

        def outcomes() -> list[Outcome]:
            return [_shown(each) for each in from_value(json.loads(text(self._texts["outcomes"])))]

        phases, region = plan["phases"], plan["region"]
        made = Region(phases=LaterMapping(phases, nests), **region)
        state = PlanState(plan["layouts"], plan["shapes"], plan["joined"], {**seen.regions, made.name: made})
        stored, untuned = plan["stored"], plan["untuned"]
        by_phase = LaterMapping(phases, stages)
        return Scheduled(
            state,
            made.name,
            by_phase,
            Later(outcomes),
            plan["files"],
            stored,
            (),
            untuned,
            plan["knobs"],
            plan["entries"],
        )

    def kernel(
        self, phase: str, names: Sequence[str], state: PlanState, make: Callable[[], BoundKernel]
    ) -> BoundKernel:
        """The C++ of a phase; see :meth:`Kept.kernel`."""
        touched = json.loads(_named(names, self._texts["touched"]))[phase]
        key = cache_key(phase, *(repr(state.layout(storage)) for storage in touched))
        try:
            source, bound, added, fixed = json.loads(_named(names, self._texts["kernels"][key]))
            known = KernelSource(**{**source, "buffers": tuple(source["buffers"])})
            return BoundKernel(known, bound, from_value(added), fixed)
        except _DAMAGED:
            pass
        made = make()
        tokens = _tokens(names)
        bound = {local: renamed_storage(storage, tokens) for local, storage in made.bound.items()}
        added = {renamed_storage(s, tokens): replace(b, name=renamed_storage(s, tokens)) for s, b in made.added.items()}
        self._texts["kernels"][key] = json.dumps([asdict(made.source), bound, to_value(added), made.fixed])
        self._changed = True
        return made

    def write(self) -> None:
        """Write what is new; what cannot be written is computed again next time."""
        if not self._changed:
            return
        try:
            with entry_lock(self.key), draft_folder(self.key) as draft:
                (draft / FILE).write_text(json.dumps(self._texts), encoding="utf-8")
                publish(draft, self.key, {"schedule": self._texts.get("built_on", {})}, verified=(FILE,))
        except (OSError, LatteError):
            pass


def _read(key: str) -> dict[str, Any]:
    """The texts of an entry; none where it is missing or damaged."""
    if read_entry(key, files=(FILE,)) is None:
        return {}
    try:
        found = json.loads((cache_folder() / key / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if _is_entry(found) else {}


def _is_entry(found: Any) -> bool:
    """Whether what was read has the form of an entry."""
    if not isinstance(found, dict):
        return False
    parts = {"declined": str} if "declined" in found else _PARTS
    return all(
        isinstance(found.get(name), kind)
        and (kind is str or all(isinstance(each, (str, NoneType)) for each in found[name].values()))
        for name, kind in {**parts, "built_on": dict, "kernels": dict}.items()
    )


def _identity(recipe: Recipe | None) -> str | None:
    return "none" if recipe is None else recipe.identity


def _tokens(names: Sequence[str]) -> dict[str, str]:
    """Name → the token in its place."""
    return {name: f"zR{number}z" for number, name in enumerate(names)}


def _named(names: Sequence[str], text: str) -> str:
    """A text of JSON with names in the place of tokens."""
    return _TOKEN.sub(lambda token: json.dumps(names[int(token[1])])[1:-1], text) if names else text


def _owners(declared: Declared, seen: PlanState) -> Iterator[str]:
    """The names of layers, and of chains, that a region's recipe may meet, in the order of their appearance."""
    places = [f"{owner}." for owner in declared.owners()]
    for chain in seen.regions.values():
        places += [f"{chain.name}.", *(f"{layer}." for layer in chain.layers), *chain.lays_out]
        places += [storage for given in chain.given for storage in given.before]
    return iter(dict.fromkeys(owner for place in places for owner in place.split(".")[:-1]))


def _renamed(seen: PlanState, owners: Mapping[str, str], *, located: bool = True) -> PlanState:
    """What a region sees of the state, with other names for layers.

    Args:
        seen: by the region.
        owners: name → the new one.
        located: whether commands keep their places.
    """

    def storage(place: str) -> str:
        return renamed_storage(place, owners)

    def given(one: Given) -> Given:
        command = one.asked.command if located else replace(one.asked.command, location=None)
        return Given(replace(one.asked, command=command), {storage(s): layout for s, layout in one.before.items()})

    def region(chain: Region) -> Region:
        return replace(
            chain,
            name=owners.get(chain.name, chain.name),
            layers=tuple(owners.get(layer, layer) for layer in chain.layers),
            lays_out=tuple(map(storage, chain.lays_out)),
            parameters={storage(place): chooses for place, chooses in chain.parameters.items()},
            given=tuple(map(given, chain.given)),
        )

    return PlanState(
        {storage(place): layout for place, layout in seen.layouts.items()},
        {storage(place): shape for place, shape in seen.shapes.items()},
        {storage(place): where for place, where in seen.joined.items()},
        {owners.get(name, name): region(chain) for name, chain in seen.regions.items()},
    )


def _texts_of(made: Scheduled) -> dict[str, Any]:
    """The texts of an outcome.

    Raises:
        NotAValue: JSON would not give it back.
    """
    own, state = made.state.regions[made.region], made.state
    fields = ("name", "layers", "lays_out", "parameters", "follows", "given")
    plan = {
        "phases": tuple(own.phases),
        "region": {field: getattr(own, field) for field in fields},
        "layouts": state.layouts,
        "shapes": state.shapes,
        "joined": state.joined,
        "files": made.files,
        "stored": made.stored,
        "untuned": made.untuned,
        "knobs": made.knobs,
        "entries": made.entries,
    }
    return {
        "plan": json.dumps(to_value(plan)),
        "touched": json.dumps({phase: _touched(nests) for phase, nests in own.phases.items()}),
        "nests": {phase: json.dumps(to_value(nests)) for phase, nests in own.phases.items()},
        "outcomes": json.dumps(to_value([_absolute(each) for each in made.outcomes])),
    }


def _touched(nests: PhaseNests) -> list[str]:
    """The storage whose layouts the C++ of a phase depends on."""
    names = [buffer.name for buffer in nests.program.buffers.values()]
    return list(dict.fromkeys((*names, *(copy.source.name for copy in nests.copies))))


def _absolute(outcome: Outcome) -> Outcome:
    """The outcome with a place that is the same from every folder."""
    path, _, line = (outcome.command.location or "").rpartition(":")
    if not path or not Path(path).is_file():
        return outcome
    return replace(outcome, command=replace(outcome.command, location=f"{Path(path).absolute()}:{line}"))


def _shown(outcome: Outcome) -> Outcome:
    path, _, line = (outcome.command.location or "").rpartition(":")
    if not Path(path).is_absolute():
        return outcome
    return replace(outcome, command=replace(outcome.command, location=f"{shown(path)}:{line}"))
