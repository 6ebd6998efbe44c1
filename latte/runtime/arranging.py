"""In which order kernels run, and where the storage is meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from latte.model.ensemble_kinds import BatchSumEnsemble
from latte.model.graph import Graph
from latte.planning.memory import MemoryPlan, kept, plan_memory
from latte.planning.plan import Plan
from latte.planning.recompute import backward_steps, uses_of
from latte.planning.uses import Use, Uses
from latte.runtime.kernels import GeneratedPhase
from swirl.ir.buffers import Buffer

P = TypeVar("P", bound=GeneratedPhase)


def arranged(
    graph: Graph, plan: Plan, buffers: Mapping[str, Buffer], order: Mapping[str, list[P]]
) -> tuple[dict[str, list[P]], MemoryPlan]:
    """The kernels of each phase in the order in which they run, and the places of the storage.

    Args:
        graph: of the net; its setting ``memory`` says whether backward computes values again.
        plan: that the kernels are made by.
        buffers: all storage.
        order: of the kernels, each once.
    """
    uses = Uses(plan.programs)
    remembered = uses.remembered({name for name, buffer in buffers.items() if buffer.role == "state"})
    found = uses_in(order, uses)
    after = dict(order)
    if graph.settings.memory == "less":
        forward, backward = found["forward"], found["backward"]
        sums = {f"{each.name}.value" for each in graph.ensembles if isinstance(each, BatchSumEnsemble)}
        steps = backward_steps(forward, backward, buffers, kept(graph, buffers), remembered | sums)
        after["backward"] = [order["forward" if step.again else "backward"][step.number] for step in steps]
        found["backward"] = uses_of(steps, forward, backward)
    return after, plan_memory(graph, buffers, found, remembered)


def uses_in(order: Mapping[str, Sequence[GeneratedPhase]], uses: Uses) -> dict[str, list[Use]]:
    """What each kernel does with storage, by phase of the net.

    Args:
        order: of the kernels.
        uses: of the plan that they are made by.
    """
    updated = {
        member.name for steps in order.values() for s in steps if s.phase == "update" for member in s.unit.members
    }

    def use(step: GeneratedPhase) -> Use:
        layers = [member.name for member in step.unit.members]
        return uses.of(step.unit.name, layers, step.phase, step.storage, not updated.isdisjoint(layers))

    return {phase: [use(step) for step in steps] for phase, steps in order.items()}


def execution_order(compiled: Sequence[P]) -> dict[str, list[P]]:
    """The kernels of each phase of the net in the order of execution: backward, then update, layer by layer (chain by
    chain)."""
    backwards = [c for c in reversed(compiled) if c.phase in ("backward", "update")]
    chain_of = {member.name: c.unit.name for c in backwards if c.unit.joined for member in c.unit.members}
    groups: dict[str, list[P]] = {}
    for c in backwards:
        groups.setdefault(chain_of.get(c.unit.members[0].name, c.unit.name), []).append(c)
    by_layer = [c for group in groups.values() for phase in ("backward", "update") for c in group if c.phase == phase]
    return {
        "forward": [c for c in compiled if c.phase == "forward"],
        "inference": [c for c in compiled if c.phase == "inference"],
        "backward": by_layer,
    }
