"""What is scheduled and compiled together: the programs of one layer, or those of a chain joined."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from latte.autodiff.differentiated import LayerPrograms
from latte.model.checks import PHASES
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import DataEnsemble
from latte.model.graph import Graph
from latte.model.neuron import FieldSpec
from latte.planning.chains import Chain, Chains
from latte.planning.recipes import Recipes
from swirl.ir.buffers import Buffer
from swirl.ir.names import stored_in
from swirl.ir.nest import Program, fresh
from swirl.ir.phases import INFERENCE
from swirl.schedule.declared import Declared
from swirl.schedule.recipe import Recipe
from swirl.transforms.rewrites.joined_programs import Part


@dataclass(frozen=True)
class Unit:
    """Programs that are scheduled together.

    Args:
        members: the layers, sources first.
        recipe: None leaves the canonical programs.
        region: the programs.
    """

    members: tuple[Ensemble, ...]
    recipe: Recipe | None
    region: Declared

    @property
    def name(self) -> str:
        """``conv1``, or ``conv1_relu1``."""
        return self.region.name

    @property
    def parts(self) -> Mapping[str, tuple[Part, ...]]:
        """Phase → the layers' programs, in order of execution."""
        return self.region.parts

    @property
    def joined(self) -> bool:
        """Whether these are the programs of several layers."""
        return self.region.joined

    def location(self, phase: str = "forward") -> str | None:
        """``file:line`` of the body that a phase of the last layer comes from."""
        layer = self.members[-1]
        written = phase if phase in PHASES and layer.has_phase(phase) else "forward"
        return layer.body(written).location() if layer.has_phase(written) else None


class NetUnits:
    """The programs of a net as they are compiled together. What stays the same from one choice of chains to the next is
    the very same unit.

    Args:
        graph: of the net.
        recipes: of the net.
    """

    def __init__(self, graph: Graph, recipes: Recipes):
        self._graph, self._recipes = graph, recipes
        # With what their keys name by its id, so that nothing else gets it.
        self._joined: dict[Hashable, tuple[Unit, object]] = {}
        self._made: dict[Hashable, tuple[Unit, object]] = {}
        self._specs: dict[str, list[FieldSpec]] = {}

    def of(
        self, programs: Sequence[LayerPrograms], chains: Chains, left: Collection[tuple[str, str]] = ()
    ) -> list[Unit]:
        """The units, in the order in which they run forwards.

        Args:
            programs: of all ensembles, the members of each chain next to each other.
            chains: of the net.
            left: layers and those of their phases that their recipes have left to the default schedule.

        Raises:
            RecipeError: a recipe file cannot be read.
        """
        by_name = {item.ensemble.name: item for item in programs}
        joined = [self._chain(chain, [by_name[member.name] for member in chain.members]) for chain in chains.found]
        done = {(phase, member.name) for unit in joined for phase in unit.parts for member in unit.members}
        rest = {
            name: {phase: program for phase, program in item.programs.items() if (phase, name) not in done}
            for name, item in by_name.items()
        }
        users = _users(joined, rest)
        starting: dict[str, list[Unit]] = {}
        for unit in joined:
            starting.setdefault(unit.members[0].name, []).append(unit)
        phases_left: dict[str, set[str]] = {}
        for layer, phase in left:
            phases_left.setdefault(layer, set()).add(phase)
        result: list[Unit] = []
        first_users: dict[str, frozenset[str]] = {}
        for item in programs:
            name = item.ensemble.name
            for unit in starting.get(name, ()):
                if unit.parts:
                    result.append(self._placed(unit, _internal(unit, users), first_users))
            if rest[name] or not item.programs:
                recipe = self._recipes.of(item.ensemble, phases_left.get(name, ()))
                result.append(self._alone(rest[name], item, recipe, first_users))
        return result

    def _chain(self, chain: Chain, items: Sequence[LayerPrograms]) -> Unit:
        key = chain.name, chain.phases, id(chain.recipe), tuple(map(id, items))
        if key not in self._joined:
            self._joined[key] = _joined(chain, items), (chain, items)
        return self._joined[key][0]

    def _placed(self, unit: Unit, internal: dict[str, frozenset[str]], first_users: dict[str, frozenset[str]]) -> Unit:
        """A chain with what it lays out."""
        lays_out, parameters = self._lays_out(unit.members, first_users)
        key = id(unit), lays_out, tuple(parameters.items()), tuple(internal.items())
        if key not in self._made:
            region = replace(unit.region, internal=internal, lays_out=lays_out, parameters=parameters)
            self._made[key] = replace(unit, region=region), unit
        return self._made[key][0]

    def _alone(
        self,
        programs: Mapping[str, Program],
        whole: LayerPrograms,
        recipe: Recipe | None,
        first_users: dict[str, frozenset[str]],
    ) -> Unit:
        """The phases of a layer that are in no chain.

        Args:
            programs: of these phases.
            whole: all of its phases.
            recipe: its own.
            first_users: see :meth:`_lays_out`.
        """
        members = (whole.ensemble,)
        lays_out, parameters = self._lays_out(members, first_users)
        key = id(whole), tuple(programs), id(recipe), lays_out, tuple(parameters.items())
        if key not in self._made:
            elsewhere = sorted(whole.programs.keys() - programs.keys())
            names = {local: buffer for phase in elsewhere for local, buffer in whole.programs[phase].buffers.items()}
            parts = {phase: (Part(program),) for phase, program in programs.items()}
            name = whole.ensemble.name
            region = Declared(name, (name,), parts, {}, {}, lays_out, parameters, {"": names})
            self._made[key] = Unit(members, recipe, region), (whole, recipe)
        return self._made[key][0]

    def _lays_out(
        self, members: Sequence[Ensemble], first_users: dict[str, frozenset[str]]
    ) -> tuple[tuple[str, ...], dict[str, bool]]:
        """Prefixes of the storage that a recipe for these layers lays out: the layers' own, and data that no other
        layer has read before: no kernel computes data, and setting them packs them anyway. Parameters, which layers may
        share, and whether no other layer has used them before; and what has a given layout, which nobody chooses.

        Args:
            members: the layers.
            first_users: data and parameters → the layers that have read them first; those of these layers are added.
        """
        names = frozenset(member.name for member in members)
        edges = [edge for member in members for edge in member.connections]
        data = sorted({edge.source.name for edge in edges if isinstance(edge.source, DataEnsemble)})
        own = [name for name in data if first_users.setdefault(name, names) & names]
        used = (spec for member in members for spec in self._trained(member))
        parameters = {spec.storage: bool(first_users.setdefault(spec.storage, names) & names) for spec in used}
        touched = {*names, *(edge.source.name for edge in edges)}
        given = self._graph.settings.given
        parameters |= {s: False for s in given if s in parameters or s.partition(".")[0] in touched}
        return tuple(f"{name}." for name in (*sorted(names), *own)), parameters

    def _trained(self, ensemble: Ensemble) -> list[FieldSpec]:
        """The parameters of a layer, and their gradients."""
        if ensemble.name not in self._specs:
            specs = ensemble.fields().values()
            self._specs[ensemble.name] = [spec for spec in specs if spec.role in ("param", "param_grad")]
        return self._specs[ensemble.name]


def _joined(chain: Chain, items: Sequence[LayerPrograms]) -> Unit:
    """The phases that the chain's recipe schedules and the layers have."""
    wanted = chain.phases if _updates_may_follow(items) else chain.phases - {"backward", "update"}
    loops = _loops(chain.members)
    parts: dict[str, tuple[Part, ...]] = {}
    for phase in ("inference", "forward", "backward", "update"):
        ordered = items if phase in ("forward", "inference") else items[::-1]
        found = [Part(i.programs[phase], loops[i.ensemble.name]) for i in ordered if phase in i.programs]
        if phase in wanted and found:
            parts[phase] = tuple(found)
    local = _local_names(chain.members, items)
    names = _names_by_kind(items)
    names[""] = {local[record.name]: record for own in list(names.values()) for record in own.values()}
    layers = tuple(member.name for member in chain.members)
    return Unit(chain.members, chain.recipe, Declared(chain.name, layers, parts, local, names=names))


def _users(joined: Iterable[Unit], rest: Mapping[str, Mapping[str, Program]]) -> dict[tuple[bool, str], set[str]]:
    """Whether in inference, and storage → the chains that touch it; "" for layers by themselves. Only inference reads
    what inference computes."""
    users: dict[tuple[bool, str], set[str]] = {}
    every = [("", phase, program) for programs in rest.values() for phase, program in programs.items()]
    every += [
        (unit.name, phase, part.program) for unit in joined for phase, parts in unit.parts.items() for part in parts
    ]
    for user, phase, program in every:
        for record in program.buffers.values():
            users.setdefault((phase == INFERENCE, record.name), set()).add(user)
    return users


def _internal(unit: Unit, users: Mapping[tuple[bool, str], set[str]]) -> dict[str, frozenset[str]]:
    """Phase → storage of the inner layers that no program outside of the unit needs."""
    inner = {f"{member.name}.{name}" for member in unit.members[:-1] for name in ("value", "grad")}
    return {
        phase: frozenset(storage for storage in inner if users.get((phase == INFERENCE, storage), set()) <= {unit.name})
        for phase in unit.parts
    }


def _updates_may_follow(items: Sequence[LayerPrograms]) -> bool:
    """Whether all updates may run after all backwards: a layer's update needs nothing that an earlier layer's backward
    changes."""
    for position, later in enumerate(items):
        update = later.programs.get("update")
        for earlier in items[:position]:
            backward = earlier.programs.get("backward")
            if update is None or backward is None:
                continue
            if written(backward) & touched(update) or touched(backward) & written(update):
                return False
    return True


def touched(program: Program) -> set[str]:
    """The storage that a program reads or writes."""
    return {record.name for record in program.buffers.values()}


def written(program: Program) -> set[str]:
    """The storage that a program writes."""
    stored = {name for nest in program.nests for name in stored_in(nest.body)}
    return {program.buffers[name].name for name in stored if name in program.buffers}


# --- names ------------------------------------------------------------------------------------------------
def _local_names(members: Sequence[Ensemble], items: Sequence[LayerPrograms]) -> dict[str, str]:
    """Storage → name in the joined programs.

    ``value`` and ``grad`` are the last layer's, as if the chain were one layer; those in between are
    ``<kind>_value`` and ``<kind>_grad``. A field keeps its name, unless an earlier layer has it: then it is
    ``<kind>_<field>``. A number is added where even that is taken.
    """
    result: dict[str, str] = {}
    taken = {"value", "grad"}
    for member, item in zip(members, items, strict=True):
        for program in item.programs.values():
            for local, record in program.buffers.items():
                if record.name in result:
                    continue
                owner, _, name = record.name.rpartition(".")
                if owner == members[-1].name and name in ("value", "grad"):
                    result[record.name] = name
                    continue
                inner = name in ("value", "grad") and any(owner == m.name for m in members)
                kind = next((m.kind for m in members if m.name == owner), member.kind)
                kind = kind if kind.isidentifier() else re.sub(r"\W", "_", kind)
                wanted = f"{kind}_{name}" if inner or local in taken else local
                result[record.name] = fresh(wanted, taken)
                taken.add(result[record.name])
    return result


def _names_by_kind(items: Sequence[LayerPrograms]) -> dict[str, dict[str, Buffer]]:
    """Kind → name of a buffer in the programs of the first layer of this kind → buffer."""
    result: dict[str, dict[str, Buffer]] = {}
    for item in items:
        own = {name: record for program in item.programs.values() for name, record in program.buffers.items()}
        result.setdefault(item.ensemble.kind, own)
    return result


def _loops(members: Sequence[Ensemble]) -> dict[str, dict[str, str]]:
    """Ensemble → its loops' names → names in the joined programs: a layer that reads its source one to one runs over
    the source's dimensions."""
    result: dict[str, dict[str, str]] = {members[0].name: {}}
    for source, sink in pairwise(members):
        edge = next(edge for edge in sink.connections if edge.source is source)
        before = (source.batch_dim, *source.dims)
        own = (sink.batch_dim, *sink.dims)
        known = result[source.name]
        same = edge.one_to_one and len(own) == len(before)
        renamed = {mine: known.get(theirs, theirs) for mine, theirs in zip(own, before, strict=True)} if same else {}
        result[sink.name] = renamed
    return result
