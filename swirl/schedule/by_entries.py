"""Which entry of a tuned recipe a phase gets; see :mod:`swirl.schedule.entries`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swirl.build.cache import cache_key
from swirl.errors import LatteError
from swirl.schedule.command_log import EntryUse
from swirl.schedule.entries import Entry, Function, form_of, key_of, sizes_of
from swirl.schedule.recipe import Recipe, Schedule
from swirl.target.targets import Target


@dataclass(frozen=True)
class ByEntries:
    """The function of a recipe of entries for a phase.

    Args:
        phase: of it.
        entries: for this phase.
        otherwise: the function without an entry; None for the default schedule of a layer, and of a chain for none: it
            declines.
    """

    phase: str
    entries: tuple[Entry, ...]
    otherwise: Function | None

    def __call__(self, s: Schedule, target: Target) -> None:
        """Apply an entry, or what there is otherwise."""
        program = s.programs[s.actual_phase(self.phase)]
        known = [entry for entry in self.entries if entry.target == target.name]
        nests = key_of(program)
        exact = [entry for entry in known if entry.nests == nests]
        sizes = sizes_of(program)
        form = form_of(program) if known and not exact else ""
        for entry in [] if exact else known:
            if entry.form != form and dict(entry.sizes) == sizes and self.phase == s.actual_phase(self.phase):
                reason = "the compiler makes other nests of this layer than when it was found: tune it again"
                s.used_entries.append(EntryUse(entry.name, entry.location, self.phase, "stale", reason))
        if exact:
            if self._applied(exact[0], s, target, "exact", ""):
                return
        else:
            near = [entry for entry in known if entry.form == form]
            if near:
                nearest = min(near, key=lambda entry: entry.distance(program))
                shapes = ", ".join(f"{name} {' × '.join(map(str, shape))}" for name, shape in nearest.sizes.items())
                told = f"found for {shapes}; for these sizes there is none"
                if dict(nearest.sizes) == sizes:
                    told = "found for other numbers in the same nests; for these there is none"
                if self._applied(nearest, s, target, "nearest", told):
                    return
        if self.otherwise is not None:
            self.otherwise(s, target)
        elif len(s.layers) > 1:
            s.decline("there is no entry for these sizes")
        else:
            s.default(self.phase)

    def _applied(self, entry: Entry, s: Schedule, target: Target, how: str, told: str) -> bool:
        """Whether the commands of an entry apply; if not, nothing has changed."""
        trial = s.copy()
        try:
            entry.function(trial, target)
        except LatteError as error:
            how, told = ("stale" if how == "exact" else "refused"), f"is not used: {error.message}"
        else:
            s.accept(trial)
        s.used_entries.append(EntryUse(entry.name, entry.location, self.phase, how, told))
        return how in ("exact", "nearest")


def over(table: Recipe, other: Recipe | None) -> Recipe:
    """A recipe of entries, with another one for what has none.

    Args:
        table: the recipe of entries; a phase for which it has a function needs no other one.
        other: what there would be without it; None for the default schedule.
    """
    before = {**(other.functions if other is not None else {}), **table.functions}
    phases = dict.fromkeys((*before, *(entry.phase for entry in table.entries)))
    functions: dict[str, Function] = {}
    for phase in phases:
        entries = tuple(entry for entry in table.entries if entry.phase == phase)
        functions[phase] = ByEntries(phase, entries, before.get(phase)) if entries else before[phase]
    known = [table.identity, "none" if other is None else other.identity]
    identities = [each for each in known if each is not None]
    return replace(
        table,
        functions=functions,
        identity=cache_key("entries", *identities) if len(identities) == len(known) else None,
        shares=table.shares and (other is None or other.shares),
        choices=table.choices if other is None else other.choices,
        entries=(),
    )
