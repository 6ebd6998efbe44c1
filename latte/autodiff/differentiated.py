"""The phases of every layer of a net: which gradients are wanted, and who starts them."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from latte.autodiff.derive import Derived, derive, strip_stop_gradient
from latte.autodiff.initialise_gradients import ACCUMULATE
from latte.frontend.lowered import LoweredLayer, lower_layers
from latte.model.buffers import body_buffers
from latte.model.ensemble import Connection, Ensemble
from latte.model.ensemble_kinds import AccuracyEnsemble, DataEnsemble
from latte.model.frozen import Frozen, frozen_now
from latte.model.graph import Graph
from latte.model.neuron import FieldSpec
from swirl.analysis.uniform import for_any_number, with_items
from swirl.errors import DerivativeError
from swirl.ir.anonymous import anonymous
from swirl.ir.buffers import Buffer
from swirl.ir.item_numbers import NotUniform
from swirl.ir.nest import Nest, Program, counting, fresh, make_nest, names_in, nested, reference, stmts, substitute
from swirl.ir.precision import in_double
from swirl.ir.text import identity
from swirl.ir.trees import name_of, nodes, statements_in, target_of


@dataclass(frozen=True)
class LayerPrograms:
    """The programs of one layer, by phase: ``forward``, ``inference``, and where wanted ``backward``, ``update``."""

    ensemble: Ensemble
    programs: Mapping[str, Program]
    notes: tuple[str, ...] = ()

    @cached_property
    def trained(self) -> set[str]:
        """Storage of the parameters' gradients that these programs set or add to."""
        buffers = (buffer for program in self.programs.values() for buffer in program.buffers.values())
        return {buffer.name for buffer in buffers if buffer.role == "param_grad"}


class Differentiated:
    """The phases of all layers of a net, for any order in which they run.

    The first reader of a layer that runs backwards sets its gradient, the others add to it, and so do layers that share
    a parameter: so the programs of a phase depend on the order. They are made on request, and again only where another
    order changes them.

    Args:
        graph: of the net.
        lowered: its layers that compute something, by name.
        seeded: names of ensembles whose gradient the user sets although others read them.
        forced: whether gradients of data are wanted; by default the net's ``force_backward`` says it.
        frozen: what does not train; by default what is frozen now.
        double: whether everything is computed in double precision.

    Attributes:
        changed: layers whose phases are not what they are where nothing is frozen.
    """

    def __init__(
        self,
        graph: Graph,
        lowered: Mapping[str, LoweredLayer],
        seeded: frozenset[str] = frozenset(),
        forced: bool | None = None,
        frozen: Frozen | None = None,
        double: bool = False,
    ):
        self._graph, self._double = graph, double
        self.seeded = seeded
        self.frozen = frozen_now(graph) if frozen is None else frozen
        of_data = graph.settings.force_backward if forced is None else forced
        self._wanted = _gradient_wanted(graph, of_data, self.frozen)
        self._lowered = {
            name: layer.inferring() if name in self.frozen.inferring else layer for name, layer in lowered.items()
        }
        self.changed = _changed(graph, self.frozen, self._wanted, of_data)
        self._made: dict[tuple[str, tuple[str, ...]], LayerPrograms] = {}
        self._shared = _Shared()
        self._inputs = {ensemble.name: _differentiated(ensemble, self._wanted) for ensemble in graph.ensembles}
        self._trained = {
            ensemble.name: [spec for spec in _parameters(ensemble) if spec.storage not in self.frozen.parameters]
            for ensemble in graph.ensembles
        }

    def programs(self, order: Sequence[Ensemble] | None = None) -> list[LayerPrograms]:
        """The programs of all layers, in the order in which they run forwards.

        Args:
            order: in which they run; by default that of construction, sources first.

        Raises:
            BodyError, DerivativeError: with the line of the body.
        """
        order = order or self._graph.order()
        started = {ensemble.name for ensemble in order if ensemble.name in self.seeded}
        result = []
        for ensemble in reversed(order):
            result.append(self._of(ensemble, started))
            if ensemble.name in self._wanted and result[-1].programs and not isinstance(ensemble, AccuracyEnsemble):
                started |= {edge.source.name for edge in self._inputs[ensemble.name]}
            started |= result[-1].trained
        return result[::-1]

    def _of(self, ensemble: Ensemble, started: set[str]) -> LayerPrograms:
        if ensemble.name not in self._lowered:
            return LayerPrograms(ensemble, {})
        inputs, params = self._inputs[ensemble.name], self._trained[ensemble.name]
        add_to = tuple(edge.name for edge in inputs if edge.source.name in started)
        add_to += tuple(spec.name for spec in params if spec.gradient.storage in started)
        key = ensemble.name, add_to
        if key not in self._made:
            layer, trained = self._lowered[ensemble.name], [spec.name for spec in params]
            made = _programs(layer, [edge.name for edge in inputs], trained, add_to, self._shared)
            if self._double:
                made = replace(made, programs={phase: in_double(p) for phase, p in made.programs.items()})
            self._made[key] = replace(made, notes=(*made.notes, *_frozen_notes(ensemble, self.frozen)))
        return self._made[key]


def differentiate(
    graph: Graph,
    lowered: Mapping[str, LoweredLayer],
    seeded: frozenset[str] = frozenset(),
    frozen: Frozen | None = None,
) -> Differentiated:
    """The backward and update phases of all layers; see :class:`Differentiated`."""
    return Differentiated(graph, lowered, seeded, frozen=frozen)


def layer_programs(
    graph: Graph,
    batch_size: int,
    order: Sequence[Ensemble] | None = None,
    *,
    forced: bool | None = None,
    frozen: Frozen | None = None,
) -> list[LayerPrograms]:
    """The programs of all layers, lowered and differentiated; see :class:`Differentiated`."""
    return Differentiated(graph, lower_layers(graph, batch_size), forced=forced, frozen=frozen).programs(order)


def _gradient_wanted(graph: Graph, of_data: bool, frozen: Frozen) -> set[str]:
    """Names of the ensembles whose value depends on parameters that train (or ``of_data``: on data)."""
    wanted: set[str] = set()
    for ensemble in graph.order():
        has_parameters = any(spec.storage not in frozen.parameters for spec in _parameters(ensemble))
        reads = any(edge.source.name in wanted for edge in ensemble.connections if not edge.is_label)
        numbers = isinstance(ensemble, DataEnsemble) and ensemble.dtype == "float32"
        forced = numbers and of_data
        if has_parameters or reads or forced:
            wanted.add(ensemble.name)
    return wanted


def _parameters(ensemble: Ensemble) -> list[FieldSpec]:
    return [spec for spec in ensemble.fields().values() if spec.role == "param"]


def _changed(graph: Graph, frozen: Frozen, wanted: set[str], of_data: bool) -> frozenset[str]:
    """The layers that freezing changes: one that is frozen, in part too, or whose sources need no gradient then."""
    if not frozen:
        return frozenset()
    no_longer = _gradient_wanted(graph, of_data, Frozen()) - wanted
    return frozenset(
        ensemble.name
        for ensemble in graph.ensembles
        if ensemble.name in frozen.inferring
        or any(spec.storage in frozen.parameters for spec in _parameters(ensemble))
        or any(edge.source.name in no_longer for edge in ensemble.connections)
    )


def _frozen_notes(ensemble: Ensemble, frozen: Frozen) -> list[str]:
    """What ``explain`` tells of a frozen layer."""
    own = [spec.name for spec in _parameters(ensemble) if spec.storage in frozen.parameters]
    notes = [f"frozen: {', '.join(own)}"] if own else []
    return notes + ["frozen: training runs the inference body"] * (ensemble.name in frozen.inferring)


def _differentiated(ensemble: Ensemble, wanted: set[str]) -> list[Connection]:
    """The connections through which a gradient flows back."""
    return [edge for edge in ensemble.connections if not edge.is_label and edge.source.name in wanted]


class _Shared:
    """What has been found out about programs: equal programs of several layers share it."""

    def __init__(self) -> None:
        self._derived: dict[Hashable, Derived] = {}
        self._fixed: dict[Hashable, str] = {}

    def derived(
        self, forward: Program, inputs: Sequence[str], params: Sequence[str], add_to: Sequence[str], taken: set[str]
    ) -> Derived:
        """See :func:`latte.autodiff.derive.derive`.

        Raises:
            DerivativeError: as there.
        """
        given = anonymous(forward)
        key = identity(given.program), tuple(inputs), tuple(params), tuple(add_to), frozenset(taken)
        if key not in self._derived:
            try:
                made = derive(given.program, inputs=inputs, params=params, add_to=add_to, taken=taken)
            except DerivativeError:  # to be told with the names of layers
                return derive(forward, inputs=inputs, params=params, add_to=add_to, taken=taken)
            self._derived[key] = made
        made = self._derived[key]
        backward, update = (None if each is None else given.named(each) for each in (made.backward, made.update))
        return Derived(given.named(made.forward), backward, update, tuple(map(given.text, made.notes)), made.taped)

    def for_any_number(self, program: Program, items: int, fixed: str) -> Program:
        """See :func:`swirl.analysis.uniform.for_any_number`."""
        given = anonymous(program)
        key = identity(given.program), items, fixed
        if key not in self._fixed:
            self._fixed[key] = for_any_number(given.program, items, fixed).fixed
        return replace(program, fixed=given.text(self._fixed[key]))


def _programs(
    layer: LoweredLayer,
    inputs: Sequence[str],
    params: Sequence[str],
    started: Sequence[str],
    shared: _Shared,
) -> LayerPrograms:
    """The phases of a layer.

    Args:
        layer: lowered.
        inputs: its connections through which a gradient flows back.
        params: its parameters that train.
        started: those of them, and of its parameters, whose gradient another layer has set.
        shared: with other layers.
    """
    ensemble, forward = layer.ensemble, layer.forward
    programs = {"inference": strip_stop_gradient(layer.inference).renamed(f"{ensemble.name}.inference")}
    # A source that is connected twice is lowered under its first name only.
    inputs = [name for name in inputs if name in forward.buffers]
    params = [name for name in params if name in forward.buffers]
    add_to = [name for name in started if name in (*inputs, *params)]
    if isinstance(ensemble, AccuracyEnsemble) or not (inputs or params):
        programs["forward"] = _with_argmax(layer)
        return LayerPrograms(ensemble, _for_any_number(layer, programs, shared))
    written = {
        phase: _started(program, ensemble, add_to)
        for phase in ("backward", "update")
        if (program := layer.written(phase)) is not None
    }
    derived = _derived(
        layer,
        [] if "backward" in written else inputs,
        [] if "update" in written else params,
        add_to,
        layer.arrays.union(*(program.buffers for program in written.values())),
        shared,
    )
    programs["forward"] = strip_stop_gradient(derived.forward)
    backward = (written.get("backward") if inputs else None) or derived.backward
    all_frozen = not params and any(_parameters(ensemble))
    update = derived.update if all_frozen else written.get("update") or derived.update
    if backward is not None:
        programs["backward"] = backward
    if update is not None:
        programs["update"] = update
    aliases = forward.aliases
    programs = {phase: replace(program, aliases={**aliases, **program.aliases}) for phase, program in programs.items()}
    return LayerPrograms(ensemble, _for_any_number(layer, programs, shared), derived.notes)


def _for_any_number(layer: LoweredLayer, programs: Mapping[str, Program], shared: _Shared) -> dict[str, Program]:
    """The phases of a layer, each of which says whether it is right for fewer items than the batch size."""
    items = layer.batch_size
    declared = {buffer.name for buffer in body_buffers(layer.ensemble, items).values()}
    added = {b.name for program in programs.values() for b in program.buffers.values()} - declared
    why = {"inference": layer.inference.fixed}
    try:
        programs = with_items(programs, items, added)
    except NotUniform as error:
        why |= {phase: why.get(phase) or layer.forward.fixed or str(error) for phase in programs}
    fixed = {phase: why.get(phase, layer.forward.fixed) or program.fixed for phase, program in programs.items()}
    return {phase: shared.for_any_number(program, items, fixed[phase]) for phase, program in programs.items()}


def _derived(
    layer: LoweredLayer,
    inputs: list[str],
    params: list[str],
    add_to: list[str],
    taken: set[str],
    shared: _Shared,
) -> Derived:
    """What follows from a layer's forward program; arrays ``taken`` are left alone.

    Raises:
        DerivativeError: with the line of the body.
    """
    try:
        return shared.derived(layer.forward, inputs, params, add_to, taken)
    except DerivativeError as error:
        if error.line is None:
            raise
        location = layer.ensemble.body("forward").place(error.line)
        raise DerivativeError(
            f"{error.location}: {error.message}", location=location, way_out=error.way_out, line=error.line
        ) from error


def _with_argmax(layer: LoweredLayer) -> Program:
    """The forward program of a layer that sends no gradient back, with the same fields as if it did."""
    ensemble, forward = layer.ensemble, layer.forward
    sources = [edge.name for edge in ensemble.connections if not edge.is_label and edge.name in forward.buffers]
    if isinstance(ensemble, AccuracyEnsemble) or not sources:
        return strip_stop_gradient(forward)
    try:
        derived = derive(forward, inputs=sources, params=[], taken=layer.arrays)
    except DerivativeError:
        return strip_stop_gradient(forward)  # no gradient is wanted, so none is missing
    return strip_stop_gradient(forward) if derived.taped else derived.forward


def _started(program: Program, ensemble: Ensemble, add_to: list[str]) -> Program:
    """A phase that the user wrote; what it accumulates into gets a first value."""
    program = program.with_buffers(accumulate=ACCUMULATE)
    start: list[Nest] = []
    end: list[Nest] = []
    for name, buffer in program.buffers.items():
        if buffer.role != "param_grad" and (buffer.role != "grad" or name == "grad"):
            continue
        if name.removeprefix("grad_") not in add_to:
            kept = f"{name}[0] if accumulate[0] != 0 else 0.0" if buffer.role == "param_grad" else "0.0"
            start.append(_elements(program, name, f"{name}[0] = {kept}"))
        elif _assigns(program, name):
            # `=` would drop what other layers have added.
            program, own = _with_own(program, name, ensemble)
            start.append(_elements(program, own, f"{own}[0] = 0.0"))
            end.append(_elements(program, name, f"{name}[0] += {own}[0]"))
    return program.with_nests([*start, *program.nests, *end])


def _assigns(program: Program, name: str) -> bool:
    """Whether an element of a buffer is written by a plain ``=``."""
    statements = (statement for nest in program.nests for statement in statements_in(nest.function))
    return any(isinstance(s, ast.Assign) and name_of(target_of(s)) == name for s in statements)


def _with_own(program: Program, name: str, ensemble: Ensemble) -> tuple[Program, str]:
    """The program with a temporary buffer instead of a shared one; the buffer's name."""
    own = fresh(f"own_{name}", {*program.buffers, *ensemble.fields()})
    shared = program.buffers[name]
    buffer = Buffer(f"{ensemble.name}.{own}", shared.shape, shared.dtype, "temporary", items=shared.items)
    program = program.with_buffers(**{own: buffer})
    mapping: dict[str, ast.expr] = {name: ast.Name(own, ast.Load())}
    nests = [make_nest(n.label, [substitute(s, mapping) for s in n.body], program.buffers) for n in program.nests]
    return program.with_nests(nests), own


def _elements(program: Program, name: str, statement: str) -> Nest:
    """``statement``, in which the subscript ``[0]`` stands for each element of a buffer (but ``accumulate``'s)."""
    taken = {n for nest in program.nests for n in names_in(nest.function)} | set(program.buffers)
    variables: list[str] = []
    for position in range(len(program.buffers[name].shape)):
        variables.append(fresh(f"i{position}", taken))
        taken.add(variables[-1])
    body = stmts(statement)
    for node in nodes(body[0]):
        if isinstance(node, ast.Subscript) and name_of(node) != "accumulate":
            node.slice = reference("", [ast.Name(variable, ast.Load()) for variable in variables]).slice
    body = nested(counting(variables, program.buffers[name].shape), body)
    verb = "end" if "+=" in statement else "start"
    return make_nest(f"{program.name.replace('.', '_')}_{verb}_{name}", body, program.buffers)
