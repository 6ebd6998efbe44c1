"""The layouts of a layer's parameters, which ``latte tune`` chooses for all phases before it searches each of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from latte.net import Net
from latte.tools.tune.files import tried_entry, write_entries
from latte.tools.tune.session import Machine
from latte.tools.tune.subjects import Together, Tunable, tunables
from swirl.build.cache import cache_key
from swirl.errors import CommandError
from swirl.schedule.recipe import DEFAULT_SCHEDULE
from swirl.tune.candidates import Candidate
from swirl.tune.layouts import ORIGIN, LayoutSpace
from swirl.tune.log import KEY_DIGITS
from swirl.tune.searches import RANKED


def layout_choices(found: Sequence[Tunable], declared: Callable[[], Net], machine: Machine) -> Iterator[Tunable]:
    """For each layer whose phases the default schedule has written, the choice of its parameters' layouts: its first
    phase, together with the others. A recipe builds on the layouts that it has chosen itself. Of layers that are equal
    some phases stand for several, and others do not, as the gradient of the data is not needed: these are left out.

    Args:
        found: all phases of a net that are used, in order.
        declared: declares the net again.
        machine: that it is for.
    """
    done: set[str] = set()
    for first in found:
        begun = first.subject.begun
        parameters = begun.state.regions[begun.region].parameters
        own = {storage for storage, chooses in parameters.items() if chooses} - done
        phases = [each for each in found if own & _storage(each)] if own else []
        if not phases or phases[0] is not first or not all(map(_is_by_default, phases)):
            continue
        done |= own
        space = LayoutSpace(first.subject)
        if space.size():
            phases[0] = replace(first, lays_out=True)
            key = cache_key(ORIGIN, *(each.key for each in phases))[:KEY_DIGITS]
            together = Together(tuple(phases), _after(phases, declared, machine))
            yield replace(phases[0], space=space, default=None, key=key, together=together, searched_by=RANKED)


def _is_by_default(tunable: Tunable) -> bool:
    """Whether the default schedule has written a phase, which is that of one layer or chain alone."""
    recipe = tunable.unit.recipe
    return recipe is not None and recipe.name == DEFAULT_SCHEDULE and len(tunable.alike) == 1


def _storage(tunable: Tunable) -> set[str]:
    return {buffer.name for buffer in tunable.subject.program.buffers.values()}


def _after(
    phases: Sequence[Tunable], declared: Callable[[], Net], machine: Machine
) -> Callable[[Candidate], list[Tunable]]:
    made: dict[str, list[Tunable]] = {}

    def after(candidate: Candidate) -> list[Tunable]:
        """The phases of a net with that schedule of the first one."""
        if candidate.key not in made:
            made[candidate.key] = scheduled(candidate)
        return made[candidate.key]

    def scheduled(candidate: Candidate) -> list[Tunable]:
        net = declared()
        with tempfile.TemporaryDirectory() as scratch:
            write_entries(Path(scratch), [tried_entry(phases[0], candidate, machine.target.name, machine.threads)])
            net.graph.settings.recipes = (Path(scratch), *net.graph.settings.recipes)
            found, _ = tunables(net, machine.target, machine.threads, {each.unit.name for each in phases})
        named = {each.name: each for each in found}
        missing = next((each.name for each in phases if each.name not in named), None)
        if missing is not None:
            raise CommandError(f"with other layouts there is no {missing}")
        return [replace(named[each.name], alike=each.alike, lays_out=each.lays_out) for each in phases]

    return after
