"""Tuning a net: which phases are searched for how long, and which results are kept."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from latte.net import Net
from latte.tools.net_files import load_net
from latte.tools.synthetic_data import synthetic_batch
from latte.tools.tune.accept import Comparison, compare_nets, has_loss
from latte.tools.tune.automcl import AUTOMCL, with_configurations
from latte.tools.tune.files import NewEntry, new_entry, write_entries
from latte.tools.tune.layouts import layout_choices
from latte.tools.tune.schemes import POLYDL, TTILE, hierarchy_of, with_schemes, with_variants
from latte.tools.tune.session import Found, Known, Machine, search
from latte.tools.tune.subjects import Left, Tunable, tunables
from swirl.errors import CommandError, LatteError
from swirl.schedule.recipe import DEFAULT_SCHEDULE
from swirl.tune.log import Log

LAYOUTS = 0.25
"""Share of a layer's seconds in which layouts of its parameters are chosen."""
LEAST = 10.0
"""Seconds of a search: two or three batches."""
NEAR = 0.9
"""Share of the machine's limit from which on there is nothing to find."""
ACCEPTING = 0.15, 30.0
"""Share of the budget, and seconds at the most, in which the whole net is measured with what was found."""
ROUNDS = 2
"""Of a profile: enough to tell which phases take long."""


@dataclass(frozen=True)
class Slice:
    """A phase with the seconds that its search may take.

    Args:
        tunable: the phase.
        seconds: of the search.
        share: of the machine's limit that it reaches now; 0 where that was not measured.
        weight: seconds of a step that it takes more than the limit.
    """

    tunable: Tunable
    seconds: float
    share: float
    weight: float


@dataclass(frozen=True)
class Options:
    """Of a search for a net.

    Args:
        file: that defines the net.
        layers, phases: that are searched; all by default.
        budget: seconds.
        method: of the search.
        seed: of its draws.
        out: folder of the recipes and the log.
        resume: whether what the log has need not be measured again.
        target, threads: as they were asked for.
        choices: for recipes of the net, by name.
        top: how many of PolyDL's ranking are measured; 0 for all.
    """

    file: Path
    layers: Collection[str]
    phases: Collection[str]
    budget: float
    method: str
    seed: int
    out: Path
    resume: bool
    target: str | None
    threads: int | None
    choices: Mapping[str, Any] = field(default_factory=dict)
    top: int = 0


def planned(
    net: Net, options: Options, machine: Machine, tell: Callable[[str], None] = lambda text: None
) -> tuple[list[Slice], list[Left]]:
    """What would be searched, and for how long: by the seconds of a step that a phase takes more than the machine's
    limit.

    Args:
        net: as it was declared.
        options: of the search.
        machine: that it is for.
        tell: is told of what the user should know.

    Raises:
        CommandError, LatteError: see :func:`latte.tools.tune.subjects.tunables`; or a phase is asked for that no step
            of the net has.
    """
    phases = _phases(net, options.phases)
    found, left = tunables(net, machine.target, machine.threads, options.layers, phases)
    if not has_loss(net):
        tell("the net has no loss: it is tuned for inference, which has the commands for forward")

    def declared() -> Net:
        return load_net(options.file, options.choices)

    choices = []
    if not options.phases:  # layouts concern all phases, also those in chains that are not searched
        every = tunables(net, machine.target, machine.threads, (), phases)[0] if options.layers else found
        choices = list(layout_choices(every, declared, machine))
    found = list(_with_spaces(found, options, machine, tell))
    budget = options.budget - min(ACCEPTING[0] * options.budget, ACCEPTING[1])
    if options.layers:
        return _with_layouts([Slice(each, budget / max(1, len(found)), 0.0, 0.0) for each in found], choices), left
    taken = _profiled(options, machine)
    weighed = []
    for each in found:
        seconds = sum(taken.get((name, each.phase), 0.0) for name in each.alike)
        share = machine.limit(each) * len(each.alike) / seconds if seconds else 0.0
        if share >= NEAR:
            left.append(Left(each.name, f"it takes {share:.0%} of the machine's limit"))
        elif seconds:
            weighed.append(Slice(each, 0.0, share, seconds * (1 - share)))
    weighed.sort(key=lambda each: -each.weight)
    return _with_layouts(list(_sliced(weighed, budget)), choices), left


def _with_layouts(slices: Sequence[Slice], choices: Sequence[Tunable]) -> list[Slice]:
    """Choices of layouts, which get a part of the seconds of their layers' phases, and then these phases."""
    first: list[Slice] = []
    rest = {each.tunable.name: each for each in slices}
    for choice in choices:
        assert choice.together is not None
        names = {each.name for each in choice.together.phases}
        own = [each for each in slices if each.tunable.name in names]
        if own:
            first.append(Slice(choice, LAYOUTS * sum(each.seconds for each in own), 0.0, 0.0))
            rest |= {each.tunable.name: replace(each, seconds=(1 - LAYOUTS) * each.seconds) for each in own}
    return [*first, *rest.values()]


def _with_spaces(
    found: Sequence[Tunable], options: Options, machine: Machine, tell: Callable[[str], None]
) -> Iterator[Tunable]:
    """Phases with the space that the method has."""
    hierarchy = hierarchy_of(machine) if found and options.method == POLYDL else None
    for each in found:
        why = ""
        if hierarchy is not None:
            each, why = with_variants(each, machine, hierarchy, options.out, options.seed, options.top)
        elif options.method == TTILE:
            each, why = with_schemes(each, machine, options.out)
        elif options.method == AUTOMCL:
            each, why = with_configurations(each, machine, options.out)
        if why:
            tell(why)
        yield each


def _phases(net: Net, asked: Collection[str]) -> Collection[str]:
    """The phases that are searched, empty for all: of a net without a loss, those that inference has commands of.

    Raises:
        CommandError: others are asked for, in which nothing would be measured.
    """
    if has_loss(net):
        return asked
    unused = [phase for phase in asked if phase != "forward"]
    if unused:
        raise CommandError(
            f"the net has no loss, from which {unused[0]} would start: no step of it can be measured",
            way_out="give the net a loss layer, as for training; or --phase forward, which inference follows",
        )
    return ("forward",)


def _sliced(weighed: Sequence[Slice], budget: float) -> Iterator[Slice]:
    """Each with its part of the budget, the heaviest first, as long as there is some; the first one in any case."""
    rest = sum(each.weight for each in weighed)
    for number, each in enumerate(weighed):
        seconds = max(LEAST, budget * each.weight / rest) if rest else 0.0
        if number and budget < LEAST:
            return
        seconds = min(seconds, budget)
        yield Slice(each.tunable, seconds, each.share, each.weight)
        budget, rest = budget - seconds, rest - each.weight


def _profiled(options: Options, machine: Machine) -> Mapping[tuple[str, str], float]:
    """Unit and phase → seconds."""
    net = load_net(options.file, options.choices)
    net.compile(target=machine.target.name, threads=machine.threads)
    net.set_batch(*synthetic_batch(net))
    return {(row.ensemble, row.phase): row.seconds for row in net.profile(ROUNDS).rows}


def searched(
    slices: Sequence[Slice],
    options: Options,
    machine: Machine,
    items: int,
    log: Log,
    known: Known,
    tell: Callable[[str], None],
    show: Callable[[str, int, int, float], None],
) -> Iterator[Found]:
    """Search phase after phase; what one leaves of its time is the next ones'. Layouts come first: phases begin with
    those that are chosen."""
    end = monotonic() + sum(each.seconds for each in slices)
    chosen: list[Found] = []
    for number in range(len(slices)):
        if number and monotonic() >= end:
            tell(f"the budget is over: {len(slices) - number} of {len(slices)} searches were not begun")
            return
        if chosen and slices[number].tunable.together is None:
            slices, chosen = _after(chosen, slices, options, machine, tell), []
        each = slices[number]
        rest = sum(other.seconds for other in slices[number:])
        seconds = max(0.0, end - monotonic()) * each.seconds / rest if rest else 0.0

        def told(tried: int, refused: int, share: float, name: str = each.tunable.name) -> None:
            show(name, tried, refused, share)

        try:
            found = search(each.tunable, machine, items, seconds, options.method, options.seed, log, known, tell, told)
        except LatteError as error:
            tell(f"{each.tunable.name}: {error}")
            continue
        if each.tunable.together is not None and found.best is not None:
            chosen.append(found)
        yield found


def _after(
    chosen: Sequence[Found], slices: Sequence[Slice], options: Options, machine: Machine, tell: Callable[[str], None]
) -> list[Slice]:
    """The same searches, of phases that have the layouts that were chosen."""
    made = [phase for each in chosen for phase in _phases_after(each)]
    now = {each.name: each for each in _with_spaces(made, options, machine, tell)}
    return [replace(each, tunable=now.get(each.tunable.name, each.tunable)) for each in slices]


def _phases_after(chosen: Found) -> list[Tunable]:
    assert chosen.tunable.together is not None and chosen.best is not None
    return chosen.tunable.together.after(chosen.best.candidate)


def entries_of(
    found: Sequence[Found], options: Options, machine: Machine, tell: Callable[[str], None]
) -> list[list[NewEntry]]:
    """An entry for each phase with a faster schedule, by itself, or together with those for the other phases of a layer
    whose layouts were chosen: these have been found with them. Those that gain most in a step come first."""
    laid_out = {  # phase → its group
        phase.name: each.tunable.name
        for each in found
        if each.tunable.together is not None and each.best is not None
        for phase in each.tunable.together.phases
    }
    groups: dict[str, dict[str, NewEntry]] = {}
    gains: dict[str, float] = {}
    for each in found:
        recipe = each.tunable.unit.recipe
        if each.best is None:
            continue
        shipped = recipe is not None and recipe.name != DEFAULT_SCHEDULE
        try:
            entry = new_entry(each, machine.target.name, machine.threads, shipped, options.method, options.seed)
        except LatteError as error:
            tell(f"{each.tunable.name}: {error}")
            continue
        phase = each.tunable.phase_name
        group = laid_out.get(phase, phase)
        groups.setdefault(group, {})[phase] = entry  # what is found for the phase that chooses has the layouts, too
        gains[group] = gains.get(group, 0.0) + (each.known - each.tuned) * len(each.tunable.alike)
    return [list(entries.values()) for group, entries in sorted(groups.items(), key=lambda item: -gains[item[0]])]


def accepted(
    groups: Sequence[Sequence[NewEntry]], options: Options, machine: Machine, tell: Callable[[str], None]
) -> tuple[list[NewEntry], tuple[Comparison, ...]]:
    """Those of the entries with which the whole net is faster, in training if it has a loss, and not slower in
    inference: all of them, or the half that gains most, and so on.

    Args:
        groups: entries that go together, those that gain most first.
        options: of the search.
        machine: that it was for.
        tell: is told what does not gain.

    Returns:
        the entries, none if the net does not gain; and what was measured.
    """
    seconds = min(ACCEPTING[0] * options.budget, ACCEPTING[1])
    base = options.out if any(options.out.glob("*.py")) else None
    kept = list(groups)
    while kept:
        entries = [entry for group in kept for entry in group]
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            for path in sorted(options.out.glob("*.py")):
                shutil.copy(path, folder)
            write_entries(folder, entries)
            try:
                first, *others = compare_nets(
                    options.file, folder, base, machine.target.name, machine.threads, seconds, options.choices
                )
            except LatteError as error:
                tell(f"with {len(entries)} of the schedules found: {error}")
                kept = kept[: len(kept) // 2]
                continue
        slower = [each for each in others if each.loses]
        if first.gains and not slower:
            return entries, (first, *others)
        tell(f"with {len(entries)} of the schedules found {', '.join(map(str, [first, *slower]))}")
        # Inference has the commands for forward.
        rest = [group for group in kept if all(each.phase != "forward" for each in group)] if first.gains else []
        kept = rest if 0 < len(rest) < len(kept) else kept[: len(kept) // 2]
    return [], ()
