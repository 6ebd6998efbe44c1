"""What the compiler did with one ensemble: commands, what is kept for backward, nests, loops, C++."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import jinja2

from latte.explain.facts import BufferFact, CommandFact, LoopFact, NestFact
from latte.explain.showing import loop_lines, memory, model_cells, model_lines, operations, parts, trips
from latte.model.ensemble import Ensemble
from latte.model.source_location import user_location
from latte.planning.recipes import Recipes, chain_name, short_name
from latte.planning.units import Unit
from latte.runtime.executable import Executable
from latte.runtime.kernels import CompiledPhase
from swirl.analysis.loop_tree import loop_tree
from swirl.analysis.work import Work, loop_works, program_work
from swirl.codegen.emit import listing
from swirl.cost.time import program_demand
from swirl.errors import CommandError, nearest
from swirl.ir.item_numbers import whole_batch
from swirl.ir.nest import Program
from swirl.ir.paths import at
from swirl.ir.phases import INFERENCE, PHASE_ALIASES, PHASES
from swirl.ir.printing import unparse
from swirl.ir.separate import separate
from swirl.schedule.by_entries import ByEntries
from swirl.schedule.command_log import EntryUse, Outcome, given_text
from swirl.schedule.entries import Function
from swirl.schedule.pipeline import AFTER_RECIPE, Stage
from swirl.schedule.recipe import DEFAULT_SCHEDULE
from swirl.schedule.rules.schedule import DEFAULTS
from swirl.transforms import LAYOUT_COMMANDS


@dataclass(frozen=True)
class PhaseExplanation:
    """One phase of an ensemble.

    Args:
        phase: its name.
        stages: names of the stages that it went through, in order.
        buffers: that it touches.
        after_recipe: the nests as the recipe left them.
        final: the nests that were translated to C++.
        loops: of the final nests.
        work: operations and bytes of all of them together.
        nests: what each loop nest asks of the processor; with a profile, the time that follows, and the measured one.
        listing: the C++ as a self-contained function.
        folder: of the kernel that was compiled, with its ``kernel.cpp``.
        command: that compiled it, in that folder.
    """

    phase: str
    stages: tuple[str, ...]
    buffers: tuple[BufferFact, ...]
    after_recipe: str
    final: str
    loops: tuple[LoopFact, ...]
    work: Work
    nests: tuple[NestFact, ...]
    listing: str
    folder: str
    command: str

    def __str__(self) -> str:
        buffers = [
            f"{b.name} = {b.storage}, {b.dtype} {b.shape}{_laid_out(b)}, {b.role}{b.formula and f': {b.formula}'}"
            for b in self.buffers
        ]
        title, *work = self._work()
        return "\n\n".join(
            [
                title,
                _section("stages", [" → ".join(self.stages)]),
                _section("buffers", buffers),
                _section("nests after the recipe", self.after_recipe.splitlines()),
                _section("final nests", self.final.splitlines()),
                *work,
                _section("C++", self.listing.splitlines()),
                _section("compiled by", [self.command, f"in {self.folder}"]),
            ]
        )

    def summary(self) -> str:
        """What its loops do; without buffers, nests and C++."""
        return "\n\n".join(self._work())

    def _work(self) -> list[str]:
        return [
            f"── {self.phase} " + "─" * (97 - len(self.phase)),
            _section("loops", loop_lines(self.loops)),
            _section("in all", [f"{operations(self.work)}, {memory(self.work)}: {parts(self.work)}"]),
            _section("model", model_lines(self.nests)),
        ]


@dataclass(frozen=True)
class Explanation:
    """What the compiler did with one ensemble, or with a chain. ``print`` shows it, a notebook shows it as a page, and
    ``to_json`` gives it to programs.

    Args:
        ensemble, kind, shape: which one (the shape without the batch); of a chain its name, the kinds joined by ``_``,
            and the last layer's shape.
        chain: of a chain, the kinds of its layers; else ().
        lanes: of a vector of the target.
        batch_size, target: what it was compiled for.
        recipe: the file that its commands come from, ``commands of <ensemble>``, or empty without one.
        commands: of its recipe, in order.
        notes: what autodiff keeps or computes again, and what recipes have left to others.
        phases: see :class:`PhaseExplanation`.
    """

    ensemble: str
    kind: str
    shape: tuple[int, ...]
    batch_size: int
    target: str
    recipe: str
    commands: tuple[CommandFact, ...]
    notes: tuple[str, ...]
    phases: tuple[PhaseExplanation, ...]
    chain: tuple[str, ...]
    lanes: int

    def __str__(self) -> str:
        return "\n\n".join([*self._head(), *map(str, self.phases)])

    def summary(self) -> str:
        """The commands and notes, and what the loops of each phase do; without buffers, nests and C++."""
        return "\n\n".join([*self._head(), *(phase.summary() for phase in self.phases)])

    def _head(self) -> list[str]:
        head = f"{self.ensemble} ({self.kind}), shape {self.shape}, batch size {self.batch_size}"
        head += f", for {self.target}"
        if not self.phases:
            return [head, "nothing is computed here: the values are set"]
        recipe = "no recipe: as the automatic passes left it"
        if self.recipe or self.commands:
            recipe = _section(f"recipe {self.recipe}", _shown_commands(self.commands))
        return [head, recipe, *([_section("notes", self.notes)] if self.notes else [])]

    def as_recipe(self) -> str:
        """The commands that were applied to this layer or chain, as a recipe file to copy and edit, each after its
        reason.

        Factors are those of this shape; the number of lanes is the target's.

        Raises:
            CommandError: it is a layer that is scheduled in a chain.
        """
        around = next((c.unit for c in self.commands if c.unit != self.ensemble), None)
        if around is not None:
            raise CommandError(
                f"{self.ensemble} is scheduled in the chain {around}, whose buffers have other names",
                location=user_location(),
                way_out=f"the commands of the chain: --layer {around}",
            )
        title = f"{self.ensemble}, shape {self.shape}, batch size {self.batch_size}, for {self.target}."
        phases = [phase.phase for phase in self.phases]
        return recipe_text(title, self.commands, phases, self.lanes, self.chain)

    def to_json(self) -> str:
        """The same as a JSON object with the fields of these records."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        helpers = {"operations": operations, "memory": memory, "parts": parts, "trips": trips, "model": model_cells}
        return str(_page().render(e=self, **helpers))


def explain(executable: Executable, ensemble: Ensemble | str, phase: str | None = None) -> Explanation:
    """What the compiler did with an ensemble of a compiled net, or with a chain; see :class:`Explanation`.

    Args:
        executable: of the net.
        ensemble: or its name, or that of a chain (``conv1_relu1``), for the phases that its layers share.
        phase: ``forward``, ``inference``, ``backward`` or ``update``; all by default.

    Raises:
        CommandError: it has no such ensemble, or the ensemble no such phase.
    """
    members, units = _layer(executable, ensemble)
    compiled = phases_of(executable, ensemble, phase)
    if phase is not None:
        asked = PHASE_ALIASES.get(phase, phase)
        units = [unit for unit in units if asked in unit.parts]
    outcomes = [command_fact(outcome, unit.name) for unit in units for outcome in executable.plan.outcomes[unit.name]]
    if phase is not None:
        followed = "forward" if asked == "inference" else asked  # inference follows forward's commands
        outcomes = [fact for fact in outcomes if fact.phase in ("", followed, asked)]
    last = members[-1]
    notes = [note for member in members for note in executable.plan.notes.get(member.name, ())]
    fixed = [item for item in compiled if item.program.fixed and executable.batch_size > 1]
    notes += [f"{item.phase} is compiled for each number of items: {item.program.fixed}" for item in fixed]
    return Explanation(
        chain_name(members),
        "_".join(member.kind for member in members),
        tuple(last.shape),
        executable.batch_size,
        executable.plan.target.name,
        _recipe(executable, last, units) if last.has_body else "",
        tuple(outcomes),
        tuple(dict.fromkeys(notes)),
        tuple(_phase(executable, item) for item in compiled),
        tuple(member.kind for member in members) if len(members) > 1 else (),
        executable.plan.target.simd_width,
    )


def _layer(executable: Executable, layer: Ensemble | str) -> tuple[tuple[Ensemble, ...], list[Unit]]:
    """A layer and the units that contain it; for a chain's name, its layers and itself."""
    units = executable.plan.units
    for unit in units:
        if unit.joined and isinstance(layer, str) and unit.name == layer:
            return unit.members, [unit]
    found = executable.graph.find(layer, [unit.name for unit in units if unit.joined])
    return (found,), [unit for unit in units if found in unit.members]


def phases_of(executable: Executable, layer: Ensemble | str, phase: str | None = None) -> list[CompiledPhase]:
    """The compiled phases of an ensemble or a chain, or only the one named.

    Raises:
        CommandError: there is no such layer, or it has no such phase.
    """
    members, units = _layer(executable, layer)
    names = {unit.name for unit in units}
    compiled = [item for item in executable.compiled if item.unit.name in names]
    if phase is None:
        return compiled
    asked = PHASE_ALIASES.get(phase, phase) if isinstance(phase, str) else ""
    found = [item for item in compiled if item.phase == asked]
    if found:
        return found
    phases = [item.phase for item in compiled]
    has = f"{nearest(asked, phases)}it has {', '.join(phases)}"
    way_out = has if phases else "it is a data layer: it computes nothing"
    if any(asked == part for unit in units for part in unit.parts):
        way_out = f"its recipe has made it a part of another: {has}"
    raise CommandError(f"{chain_name(members)} has no phase {phase!r}", location=user_location(), way_out=way_out)


def after_recipe(stages: Sequence[Stage]) -> Stage:
    """The last stage before the automatic passes that follow the recipe."""
    return stages[-1 - len(AFTER_RECIPE)]


# --- facts --------------------------------------------------------------------------------------------------
def _recipe(executable: Executable, ensemble: Ensemble, units: Sequence[Unit]) -> str:
    """The files that the commands of a layer come from, each with its phases where there are several."""
    if all(unit.recipe is None for unit in units):
        return ""
    entries = {item.unit.name: item.result.entries for item in executable.plan.scheduled}
    joined = [unit for unit in units if unit.joined and unit.recipe is not None]
    lone = [unit for unit in units if not unit.joined and unit.recipe is not None]
    path = Recipes(executable.graph).path(ensemble) if len(joined) < len(units) else None
    names = [] if path is None else [short_name(path)]
    if ensemble.commands:
        names.insert(0, f"commands of {ensemble.name}")
    for file, phases in _by_entries(lone, entries).items():
        names.insert(0, f"{file} ({', '.join(phases)})")
    tuned = {(unit.name, each.phase) for unit in units for each in entries[unit.name] if each.is_used}
    default = [
        phase for unit in lone for phase in unit.parts if (unit.name, phase) not in tuned and _is_default(unit, phase)
    ]
    names += [f"{DEFAULT_SCHEDULE} ({', '.join(default)})"] if default else []
    for unit in joined[::-1]:
        rest = [phase for phase in unit.parts if (unit.name, _followed(phase, unit)) not in tuned]
        if rest:
            names.insert(0, f"{_of_chain(unit, rest[0])} ({', '.join(rest)})")
        for file, phases in _by_entries([unit], entries).items():
            names.insert(0, f"{file} ({', '.join(phases)})")
    return ", otherwise ".join(names)


def _by_entries(units: Sequence[Unit], entries: Mapping[str, Sequence[EntryUse]]) -> dict[str, list[str]]:
    """File of a tuned recipe → the phases that have an entry of it."""
    found: dict[str, list[str]] = {}
    for unit in units:
        for each in entries[unit.name]:
            if each.is_used:
                found.setdefault(short_name(Path(each.location.rpartition(":")[0])), []).append(each.phase)
    return found


def _followed(phase: str, unit: Unit) -> str:
    """The phase whose commands a phase has: inference follows forward, unless there is a function for it."""
    own = unit.recipe is not None and INFERENCE in unit.recipe.functions
    return "forward" if phase == INFERENCE and not own else phase


def _of_chain(unit: Unit, phase: str) -> str:
    """The file that a phase of a chain is scheduled by, where it has no entry of a tuned recipe."""
    assert unit.recipe is not None
    function, path = _otherwise(unit, phase), unit.recipe.path
    if function is not unit.recipe.functions.get(_followed(phase, unit)):  # under entries, whose file is the recipe's
        code = getattr(function, "__code__", None)
        path = None if code is None else Path(code.co_filename)
    return f"{DEFAULT_SCHEDULE} of the chain {unit.name}" if path is None else short_name(path)


def _otherwise(unit: Unit, phase: str) -> Function | None:
    """The function of a unit's recipe for a phase; under entries, the one without them."""
    function = unit.recipe.functions.get(_followed(phase, unit)) if unit.recipe is not None else None
    while isinstance(function, ByEntries):
        function = function.otherwise
    return function


def recipe_text(
    title: str, commands: Sequence[CommandFact], phases: Sequence[str], lanes: int, chain: Sequence[str] = ()
) -> str:
    """The commands that were applied to a layer, or to a chain, as a recipe file, each after its reason.

    Args:
        title: what the file begins with.
        commands: in order.
        phases: that it computes.
        lanes: of the target.
        chain: the kinds of the layers of a chain.
    """
    functions: dict[str, list[str]] = {phase: [] for phase in phases if phase in PHASES}
    layouts: list[str] = []
    for command in commands:
        if command.status != "applied":
            continue
        lines = [
            *(f"    # {line}" for line in command.reason.splitlines()),
            f"    s.{_any_width(command, lanes)}",
        ]
        function = command.function or command.phase
        if function:
            functions.setdefault(function, []).extend([*layouts, *lines])
            layouts = []
        else:
            layouts += lines
    for phase in list(functions)[-1:]:
        functions[phase] += layouts
    parts = [f'"""{title}"""', *([f"chain = {tuple(chain)!r}"] if chain else [])]
    parts += ["\n".join(["", f"def {name}(s, target):", *(lines or ["    pass"])]) for name, lines in functions.items()]
    return "\n\n".join(parts) + "\n"


def _any_width(command: CommandFact, lanes: int) -> str:
    """The command with the target's number of lanes in the place of that number."""
    text = given_text(command.text, command.of)
    if text.split("(")[0] not in ("vectorize", "tile"):
        return text
    return re.sub(rf", {lanes}(?=[,)])", ", target.simd_width", text, count=1)


def _is_default(unit: Unit, phase: str) -> bool:
    if unit.recipe is None or phase not in DEFAULTS or phase not in unit.recipe.functions:
        return False
    return _otherwise(unit, phase) in (None, DEFAULTS[phase])


def command_fact(outcome: Outcome, unit: str) -> CommandFact:
    """A command of a unit's recipe, and its outcome."""
    command = outcome.command
    options = dict(command.options)
    named = options.get("phase", command.arguments[0] if command.arguments else "")
    phase = "" if command.name in LAYOUT_COMMANDS else PHASE_ALIASES.get(named, str(named))
    return CommandFact(
        command.text,
        phase,
        outcome.status,
        outcome.reason,
        command.location,
        unit,
        outcome.cautions,
        outcome.function,
        command.of,
    )


def _phase(executable: Executable, item: CompiledPhase) -> PhaseExplanation:
    buffers = [
        BufferFact(name, b.name, b.dtype, b.shape, b.layout.blocks, b.role, b.layout.halo, b.layout.order, b.formula)
        for name, b in item.stages[-2].program.buffers.items()
    ]
    return PhaseExplanation(
        item.phase,
        tuple(stage.name for stage in item.stages),
        tuple(buffers),
        after_recipe(item.stages).program.text,
        item.program.text,
        tuple(loop_facts(item.program)),
        program_work(item.program),
        tuple(NestFact(label, program_demand(nest, executable.plan.target)) for label, nest in separate(item.program)),
        listing(item.program, executable.plan.target),
        str(item.built.path.parent),
        item.built.command,
    )


def loop_facts(program: Program) -> list[LoopFact]:
    """The loops of a program, outer before inner, as they are for a whole batch."""
    facts = []
    program = whole_batch(program)
    for nest in program.nests:
        works = loop_works(nest, program.buffers)
        for loop, work in zip(loop_tree(nest).loops.values(), works, strict=True):
            node = at(nest.body, loop.path)
            assert isinstance(node, ast.For)
            trips, exact = loop.loop.extent, True
            if trips is None:
                low, high = loop.iteration.ranges.get(loop.var, (0, -1))
                trips, exact = ((high - low) // abs(loop.loop.step) + 1 if high >= low else None), False
            head = f"for {loop.var} in {unparse(node.iter)}"
            facts.append(LoopFact(nest.label, loop.level, loop.var, loop.loop.kind, head, trips, exact, work))
    return facts


# --- printing -----------------------------------------------------------------------------------------------
def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{title}:", *(f"    {line}".rstrip() for line in lines or ["none"])])


def _laid_out(buffer: BufferFact) -> str:
    padded = [(dim, *sides) for dim, sides in enumerate(buffer.halo) if any(sides)]
    return "".join(
        [f", dimension {dim} in blocks of {factor}" for dim, factor in buffer.blocks]
        + [f", dimension {dim} between {before} and {after} zeros" for dim, before, after in padded]
        + ([f", dimensions in the order {', '.join(map(str, buffer.order))}"] if buffer.order else [])
    )


def _shown_commands(commands: Sequence[CommandFact]) -> list[str]:
    width = max((len(command.text) for command in commands), default=0)
    lines = []
    for command in commands:
        lines.append(f"{command.status}  {command.text.ljust(width)}  {command.location or ''}".rstrip())
        lines += [f"         {line}" for line in command.reason.splitlines()]
        lines += [f"         caution: {text}" for text in command.cautions]
    return lines


@lru_cache(maxsize=1)
def _page() -> jinja2.Template:
    loader = jinja2.PackageLoader("latte.explain", "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("explanation.html.j2")
