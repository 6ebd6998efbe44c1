"""What a recipe may ask about its programs, as they are now."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from swirl.analysis.dependences import NotProved, carried
from swirl.analysis.loop_facts import LoopFacts, facts
from swirl.analysis.loop_tree import loop_tree
from swirl.analysis.statements import statements_of
from swirl.errors import CommandError, nearest
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, loop_of, references, subscripts
from swirl.ir.phases import INFERENCE, PHASE_ALIASES, PHASES
from swirl.ir.printing import unparse
from swirl.ir.trees import name_of, nodes, statements_in, target_of
from swirl.schedule.plan_state import PlanState, Region
from swirl.transforms.rewrites.loops.borders import interior
from swirl.transforms.rewrites.loops.tile_sizes import combination
from swirl.transforms.rewrites.sites import find_loops, loop_at, loop_names


class Questions:
    """The questions of a :class:`swirl.schedule.recipe.Schedule`, which also has the commands.

    Args:
        programs: phase → program, as it is now.
        region: of these programs.
        state: of the plan, for buffers that no program touches.
        instead: phases in whose place another one is meant.
    """

    def __init__(
        self, programs: Mapping[str, Program], region: Region, state: PlanState, instead: Mapping[str, str]
    ) -> None:
        self._asked, self._of, self._in, self._instead = programs, region, state, instead

    def loops(self, phase: str, buffer: str | None = None) -> tuple[str, ...]:
        """The names of the loops of a phase as they are now, in order of first appearance; none without the phase.

        Args:
            phase: whose loops.
            buffer: only those around statements that write it: in a chain there are loops of other layers.

        Raises:
            CommandError: the phase has no such buffer.
        """
        program = self._asked.get(self._phase(phase))
        if program is None:
            return ()
        if buffer is None:
            return tuple(loop_names(program))
        if buffer not in program.buffers:
            raise self._untouched(program, buffer)
        writing = [
            statement
            for nest in program.nests
            for statement in statements_of(nest)
            if any(access.name == buffer and access.kind != "read" for access in statement.accesses)
        ]
        return tuple(dict.fromkeys(loop.var for statement in writing for loop in statement.loops))

    def perfect(self, phase: str, order: Sequence[str]) -> bool:
        """Whether loops are directly inside of each other, outermost first, and nothing else is between them, wherever
        the first one has the others inside: ``parallelize`` of several loops needs that. In a chain whose loops are
        fused, those of another layer may be beside them.

        Raises:
            CommandError: no such loop, or nothing is computed in this phase.
        """
        program = self._program(phase)
        if not isinstance(order, (list, tuple)) or not order:
            raise CommandError(f"several loops are given as a list of names, not as {order!r}")
        first, *others = (loop_of(loop_at(program, find_loops(program, name)[-1])).var for name in order)
        for nest in program.nests:
            tree = loop_tree(nest)
            for path, found in tree.loops.items():
                within = {loop.loop.var for each, loop in tree.loops.items() if each[: len(path)] == path}
                chain = [loop.var for loop in tree.chain(path)]
                if found.loop.var == first and within.issuperset(others) and chain[1 : len(order)] != others:
                    return False
        return True

    def locals(self, phase: str, loop_var: str) -> tuple[str, ...]:
        """The names of the locals that are declared in the body of a loop, of all loops of that name, but not in loops
        inside: what connects its statements, for ``scalar_expand``. None without such a loop."""
        program = self._asked.get(self._phase(phase))
        if program is None or loop_var not in loop_names(program):
            return ()
        bodies = (loop_at(program, site).body for site in reversed(find_loops(program, loop_var)))
        return tuple(dict.fromkeys(name_of(s.target) for body in bodies for s in body if isinstance(s, ast.AnnAssign)))

    def nests(self, phase: str) -> tuple[str, ...]:
        """The labels of the nests of a phase as they are now, in order of execution; none without the phase."""
        program = self._asked.get(self._phase(phase))
        return tuple(nest.label for nest in program.nests) if program is not None else ()

    def buffers(self, phase: str) -> tuple[str, ...]:
        """The names of the buffers of a phase as they are now; none without the phase."""
        program = self._asked.get(self._phase(phase))
        return tuple(program.buffers) if program is not None else ()

    def sets(self, phase: str, buffer: str) -> bool:
        """Whether a phase gives a buffer its first values: by ``=``, and not only by ``+=``, as it adds to a gradient
        that another layer has started."""
        program = self._asked.get(self._phase(phase))
        statements = [s for nest in program.nests for s in statements_in(nest.function)] if program is not None else []
        return any(isinstance(s, ast.Assign) and name_of(target_of(s)) == buffer for s in statements)

    def blocked(self, phase: str) -> bool:
        """Whether an array of the phase is blocked: neighbours in a row are then not always neighbours in memory."""
        program = self._asked.get(self._phase(phase))
        return program is not None and any(buffer.layout.blocks for buffer in program.buffers.values())

    def rearranged(self, phase: str) -> bool:
        """Whether an array of the phase has zeros around it or its dimensions in another order: neighbouring dimensions
        are no longer one row, nor neighbours of the last one neighbours in memory."""
        program = self._asked.get(self._phase(phase))
        return program is not None and any(b.layout.halo or b.layout.order for b in program.buffers.values())

    def blocks(self, buffer: str) -> dict[int, int]:
        """Blocked dimension → elements in a block, outermost first; empty where the buffer has the plain layout. A
        reader asks its source, to lay its own arrays out alike:
        ``for dim, factor in s.blocks("inputs").items(): s.tile("value", dim, factor)``. Dimensions count as in
        ``tile``: of values and gradients without the batch.

        Raises:
            CommandError: no such buffer.
        """
        found = find_buffer(self._in, self._of, buffer)
        return {dim - found.batch_dims: factor for dim, factor in found.layout.blocks}

    def owns(self, buffer: str) -> bool:
        """Whether a buffer belongs to the layers that are scheduled: not to those that they read, nor to data.

        Raises:
            CommandError: no such buffer.
        """
        return self._of.owns(find_buffer(self._in, self._of, buffer).name)

    def shape(self, buffer: str) -> tuple[int, ...]:
        """The logical extents of a buffer; of values and gradients without the batch, as ``tile`` counts.

        Raises:
            CommandError: no such buffer.
        """
        found = find_buffer(self._in, self._of, buffer)
        return found.shape[found.batch_dims :]

    def extent(self, phase: str, loop_var: str) -> int | None:
        """Iterations of the first loop of that name, or None where its bounds are not constant.

        Raises:
            CommandError: no such loop, or nothing is computed in this phase.
        """
        program = self._program(phase)
        return loop_of(loop_at(program, find_loops(program, loop_var)[-1])).extent

    def interior(self, phase: str, loop_var: str) -> tuple[int, int]:
        """The part of a loop's range in which no border clips anything: where to ``split``; the whole range, where none
        does. Of several loops of that name, which ``split`` divides alike, the part that is so in all of them. See
        :func:`swirl.transforms.rewrites.loops.borders.interior`."""
        program = self._program(phase)
        parts = [interior(program, loop_var, occurrence=each) for each in range(len(find_loops(program, loop_var)))]
        inside = max(low for low, _ in parts), min(high for _, high in parts)
        return inside if inside[0] < inside[1] else parts[0]

    def borders(self, phase: str, loop_var: str) -> list[int]:
        """Where to ``split`` a loop so that what its borders clip is separate: the ends of :meth:`interior` inside of
        its range; none where nothing is clipped."""
        extent = self.extent(phase, loop_var)
        return [cut for cut in self.interior(phase, loop_var) if 0 < cut < (extent or 0)]

    def strides(self, phase: str, loop_var: str) -> dict[str, int | None]:
        """How far the accesses in a loop move in memory from one iteration to the next, in elements, with the arrays as
        they are laid out now: ``{"inputs[n, c, y, x]": 1, "weights[k, c]": 0}``; None where that is not constant. Of
        loops of one name it is the first, as for :meth:`dependence` and :meth:`footprint`.

        Raises:
            CommandError: no such loop, or nothing is computed in this phase.
        """
        return {use.access.text: use.stride for use in self._loop(phase, loop_var).uses}

    def dependence(self, phase: str, loop_var: str) -> str:
        """``"parallel"``: its iterations are independent; ``"reduction"``: but for sums, maxima or minima, for which
        ``privatize`` or ``partial_sums`` make places of their own; ``"recurrence"``: one needs what another has made,
        or it is not known whether it does.

        Raises:
            CommandError: no such loop, or nothing is computed in this phase.
        """
        found = self._loop(phase, loop_var)
        for answer, reductions in (("parallel", True), ("reduction", False)):
            try:
                if carried(found.nest.body, found.path, reductions=reductions, known=statements_of(found.nest)) is None:
                    return answer
            except NotProved:
                break
        return "recurrence"

    def footprint(self, phase: str, loop_var: str) -> int:
        """Bytes of the arrays' elements that one iteration of a loop touches, each counted once: the smallest boxes
        around them. Compare with ``target.l2_bytes``.

        Raises:
            CommandError: no such loop, nothing is computed in this phase, or the question took more work than is
                allowed.
        """
        found = self._loop(phase, loop_var)
        try:
            return found.footprint
        except NotProved:
            raise CommandError(
                f"what an iteration of {loop_var} touches is not known within the time allowed"
            ) from None

    def touched(self, phase: str, loop_var: str, unit: str = "bytes", iterations: int | None = 1) -> dict[str, int]:
        """How many different elements of each array a loop touches, at the most: what two iterations touch, less what
        one does, is what the next one brings into a cache. A local in a subscript counts as one value.

        Args:
            phase, loop_var: the loop; of several of one name the first.
            unit: what is counted: ``"elements"``, their ``"bytes"``, or the cache ``"lines"`` in which they are.
            iterations: 1; 2, which are neighbours; or None, which is all of them.

        Raises:
            CommandError: no such loop, unit or number, or nothing is computed in this phase.
        """
        found = self._loop(phase, loop_var)
        if iterations not in (1, 2, None) or unit not in ("elements", "bytes", "lines"):
            raise CommandError(
                f"what {iterations!r} iterations touch is not counted in {unit!r}",
                way_out='iterations are 1, 2 or None; units are "elements", "bytes" and "lines"',
            )
        one_or_two = found.in_one_iteration if iterations == 1 else found.in_two_iterations
        touched = found.in_all_iterations if iterations is None else one_or_two
        if unit == "bytes":
            return {each.name: each.bytes for each in touched}
        return {each.name: (each.lines if unit == "lines" else each.elements)[0] for each in touched}

    def combination(self, extent: int, factors: int | Iterable[int]) -> list[int]:
        """Tile sizes that sum to ``extent``: ``s.combination(17, 6)`` is ``[6, 6, 5]``, for ``unroll_and_jam``,
        ``unroll`` and ``tile_loop``; see :func:`swirl.transforms.rewrites.loops.tile_sizes.combination`."""
        return combination(extent, factors)

    def subscripts(self, phase: str, buffer: str) -> tuple[str, ...]:
        """The subscripts, in the loops' variables, of the first statement that updates ``buffer`` (``+=``), or else
        of the first reference to it: ``("n", "c", "y * 2 + ky - 1", "x * 2 + kx - 1")``.

        Raises:
            CommandError: the phase does not touch the buffer.
        """
        program = self._program(phase)
        found = [
            (not isinstance(getattr(node, "target", None), ast.Subscript), reference)
            for nest in program.nests
            for node in nodes(nest.function)
            if isinstance(node, (ast.AugAssign, ast.Assign, ast.AnnAssign))
            for reference in references(node)
            if unparse(reference.value) == buffer
        ]
        if not found:
            raise self._untouched(program, buffer)
        return tuple(unparse(index) for index in subscripts(min(found, key=lambda entry: entry[0])[1]))

    def _untouched(self, program: Program, buffer: str) -> CommandError:
        return CommandError(
            f"{program.name} does not touch {buffer!r}",
            way_out=f"{nearest(buffer, program.buffers)}the buffers are {', '.join(program.buffers)}",
        )

    def _loop(self, phase: str, loop_var: str) -> LoopFacts:
        program = self._program(phase)
        site = find_loops(program, loop_var)[-1]
        return next(each for each in facts(program.nests[site.nest], program.buffers) if each.path == site.path)

    def _phase(self, phase: str) -> str:
        return chosen_phase(self._of, phase, self._instead)

    def _program(self, phase: str) -> Program:
        program = self._asked.get(self._phase(phase))
        if program is None:
            raise CommandError(
                f"nothing is computed in the phase {phase!r}", way_out=f"ask s.loops({phase!r}) first: it is empty then"
            )
        return program


def find_buffer(state: PlanState, region: Region, buffer: str) -> Buffer:
    """The buffer of this name in a region's layers, with its declared role.

    Raises:
        CommandError: no such buffer.
    """
    bound = [nests.program.buffers for nests in region.phases.values()]
    for known in (*bound, region.names.get("", {})):
        if isinstance(buffer, str) and buffer in known:
            found = known[buffer]
            return found.with_layout(state.layout(found.name))
    names = sorted({name for buffers in bound for name in buffers})
    raise CommandError(
        f"no buffer named {buffer!r}",
        way_out=f"{nearest(buffer, names)}the buffers are {', '.join(names)}",
    )


def chosen_phase(region: Region, phase: Any, instead: Mapping[str, str]) -> str:
    """The phase that a recipe means.

    Args:
        region: that is scheduled.
        phase: as the recipe calls it.
        instead: phases in whose place another one is meant.

    Raises:
        CommandError: no such phase, or one without commands of its own.
    """
    if isinstance(phase, str):
        phase = PHASE_ALIASES.get(phase, phase)
        phase = instead.get(phase, phase)
        if phase in PHASES or (phase == INFERENCE and not region.follows):
            return phase
    raise CommandError(
        f"no phase named {phase!r}",
        way_out=f"{nearest(phase, PHASES)}the phases are {', '.join(PHASES)}",
    )


def touched_elsewhere(programs: Mapping[str, Program], phase: str, buffer: str) -> str | None:
    """The statement of another phase that touches a buffer of this one, in words; or None."""
    own = programs[phase].buffers.get(buffer)
    for other, program in programs.items():
        names = {key for key, record in program.buffers.items() if own is not None and record.name == own.name}
        if other == phase or INFERENCE in (phase, other):
            continue
        for statement in (s for nest in program.nests for s in statements_of(nest)):
            touched = [access for access in statement.accesses if access.name in names]
            if touched:
                doing = "reads" if touched[0].kind == "read" else "writes"
                return f"{statement.text.splitlines()[0]} in the {other} phase {doing} it"
    return None
