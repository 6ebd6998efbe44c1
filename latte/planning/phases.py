"""The programs of every ensemble and phase of a net: which gradients are wanted, and who starts them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from latte.autodiff import derive, strip_stop_gradient
from latte.frontend.lower import lower
from latte.model.connection import Connection
from latte.model.ensemble import AccuracyEnsemble, DataEnsemble, Ensemble, LossEnsemble
from latte.model.place import user_place
from swirl.errors import DeclarationError, DerivativeError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Nest, Program, for_loop, fresh, make_nest, names_in, reference, stmts, substitute

if TYPE_CHECKING:
    from latte.net import Net

ACCUMULATE = Buffer("net.accumulate", (1,), "int32", "scalar")


@dataclass(frozen=True)
class EnsemblePrograms:
    """The programs of one ensemble, by phase: ``forward``, ``inference``, and where wanted ``backward``, ``update``."""

    ensemble: Ensemble
    programs: dict[str, Program]
    notes: tuple[str, ...] = ()


def net_programs(
    net: Net, batch_size: int, seeded: frozenset[str] = frozenset(), order: list[Ensemble] | None = None
) -> list[EnsemblePrograms]:
    """The programs of all ensembles, in the order in which they run forwards.

    Args:
        net: the net.
        batch_size: extent of the batch dimension.
        seeded: names of ensembles whose gradient the user sets although others read them.
        order: in which they run; by default that of construction, sources first.

    Raises:
        DeclarationError: there are none, or one reads nothing.
        BodyError, DerivativeError: with the line of the body.
    """
    if not net.ensembles:
        raise DeclarationError(
            "the net has no layers", place=user_place(), way_out="add some before net.compile()"
        )
    for ensemble in net.ensembles:
        if not isinstance(ensemble, DataEnsemble) and not ensemble.connections:
            raise DeclarationError(
                f"{ensemble!r} reads nothing",
                place=ensemble.place,
                way_out="net.add_connections(source, ensemble, mapping)",
            )
    order = order or net.order()
    wanted = _gradient_wanted(net, order)
    started = {net_ensemble.name for net_ensemble in order if net_ensemble.name in seeded}
    result = []
    for ensemble in reversed(order):
        result.append(_programs(ensemble, batch_size, wanted, started))
        if ensemble.name in wanted and not isinstance(ensemble, (AccuracyEnsemble, DataEnsemble)):
            started |= {edge.source.name for edge in _differentiated(ensemble, wanted)}
    return result[::-1]


class OrderedPrograms:
    """The programs of a net, made anew just where the order of execution is not the one asked for last.

    Args:
        net, batch_size, seeded: see :func:`net_programs`.
    """

    def __init__(self, net: Net, batch_size: int, seeded: frozenset[str] = frozenset()):
        self._net, self._batch_size, self._seeded = net, batch_size, seeded
        self._order: list[Ensemble] | None = None
        self._made: list[EnsemblePrograms] = []

    def programs(self, order: list[Ensemble]) -> list[EnsemblePrograms]:
        """See :func:`net_programs`."""
        if order != self._order:
            self._made = net_programs(self._net, self._batch_size, self._seeded, order)
            self._order = order
        return self._made


def _gradient_wanted(net: Net, order: list[Ensemble]) -> set[str]:
    """Names of the ensembles whose value depends on parameters (or on data, with ``force_backward``)."""
    wanted: set[str] = set()
    for ensemble in order:
        has_parameters = any(spec.role == "param" for spec in ensemble.fields().values())
        reads = any(edge.source.name in wanted for edge in ensemble.connections if not edge.is_label)
        forced = isinstance(ensemble, DataEnsemble) and net.force_backward
        if has_parameters or reads or forced:
            wanted.add(ensemble.name)
    return wanted


def _differentiated(ensemble: Ensemble, wanted: set[str]) -> list[Connection]:
    """The connections through which a gradient flows back."""
    return [edge for edge in ensemble.connections if not edge.is_label and edge.source.name in wanted]


def has_gradient_reader(net: Net, ensemble: Ensemble) -> bool:
    """Whether some layer sends a gradient back to ``ensemble``; if none does, ``set_grad`` gives it."""
    return any(not edge.is_label and not isinstance(edge.sink, AccuracyEnsemble) for edge in net.readers(ensemble))


def _programs(ensemble: Ensemble, batch_size: int, wanted: set[str], started: set[str]) -> EnsemblePrograms:
    if isinstance(ensemble, DataEnsemble):
        return EnsemblePrograms(ensemble, {})
    forward = lower(ensemble, "forward", batch_size=batch_size)
    inference = lower(ensemble, "forward", batch_size=batch_size, training=False)
    programs = {"inference": strip_stop_gradient(inference).renamed(f"{ensemble.name}.inference")}
    # A source that is connected twice is lowered under its first name only.
    inputs = [edge.name for edge in _differentiated(ensemble, wanted) if edge.name in forward.buffers]
    params = [name for name, spec in ensemble.fields().items() if spec.role == "param" and name in forward.buffers]
    notes: tuple[str, ...] = ()
    if isinstance(ensemble, AccuracyEnsemble) or not (inputs or params):
        programs["forward"] = _with_winners(ensemble, forward)
        return EnsemblePrograms(ensemble, programs)
    add_to = [edge.name for edge in ensemble.connections if edge.source.name in started and edge.name in inputs]
    written = {
        phase: _written(ensemble, phase, batch_size, add_to)
        for phase in ("backward", "update")
        if ensemble.has_phase(phase)
    }
    try:
        derived = derive(
            forward,
            inputs=[] if "backward" in written else inputs,
            params=[] if "update" in written else params,
            add_to=add_to,
        )
    except DerivativeError as error:
        if error.line is None:
            raise
        place = f"{ensemble.body('forward').filename}:{error.line}"
        raise DerivativeError(
            f"{error.place}: {error.message}", place=place, way_out=error.way_out, line=error.line
        ) from error
    programs["forward"] = strip_stop_gradient(derived.forward)
    notes = derived.notes
    backward = (written.get("backward") if inputs else None) or derived.backward
    update = written.get("update") or derived.update
    if backward is not None:
        programs["backward"] = backward
    if update is not None:
        programs["update"] = update
    aliases = forward.aliases
    programs = {phase: replace(program, aliases={**aliases, **program.aliases}) for phase, program in programs.items()}
    return EnsemblePrograms(ensemble, programs, notes)


def _with_winners(ensemble: Ensemble, forward: Program) -> Program:
    """The forward program of a layer that sends no gradient back: its fields are those of one that does."""
    sources = [edge.name for edge in ensemble.connections if not edge.is_label and edge.name in forward.buffers]
    if isinstance(ensemble, AccuracyEnsemble) or not sources:
        return strip_stop_gradient(forward)
    try:
        derived = derive(forward, inputs=sources, params=[])
    except DerivativeError:
        return strip_stop_gradient(forward)  # no gradient is asked for, so none is missed
    return strip_stop_gradient(forward) if derived.taped else derived.forward


def _written(ensemble: Ensemble, phase: str, batch_size: int, add_to: list[str]) -> Program:
    """A phase that the user wrote, with what it accumulates into started."""
    program = lower(ensemble, phase, batch_size=batch_size).with_buffers(accumulate=ACCUMULATE)
    start: list[Nest] = []
    end: list[Nest] = []
    for name, buffer in program.buffers.items():
        if buffer.role == "param_grad":
            start.append(_elements(program, name, f"{name}[0] = {name}[0] if accumulate[0] != 0 else 0.0"))
        elif name.startswith("grad_inputs") and name.removeprefix("grad_") not in add_to:
            start.append(_elements(program, name, f"{name}[0] = 0.0"))
        elif name.startswith("grad_inputs") and _assigns(program, name):
            # `=` would drop what other readers of the source have put there.
            program, own = _with_own(program, name, ensemble)
            start.append(_elements(program, own, f"{own}[0] = 0.0"))
            end.append(_elements(program, name, f"{name}[0] += {own}[0]"))
    return program.with_nests([*start, *program.nests, *end])


def _assigns(program: Program, name: str) -> bool:
    """Whether an element of a buffer is written by a plain ``=``."""
    nodes = (node for nest in program.nests for node in ast.walk(nest.function))
    targets = (target for node in nodes if isinstance(node, ast.Assign) for target in node.targets)
    return any(isinstance(t, ast.Subscript) and ast.unparse(t.value) == name for t in targets)


def _with_own(program: Program, name: str, ensemble: Ensemble) -> tuple[Program, str]:
    """The program with a temporary buffer in the place of a shared one; the buffer's name."""
    own = fresh(f"own_{name}", set(program.buffers))
    shared = program.buffers[name]
    buffer = Buffer(f"{ensemble.name}.{own}", shared.shape, shared.dtype, "temporary")
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
    for node in ast.walk(body[0]):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) != "accumulate":
            node.slice = reference("", [ast.Name(variable, ast.Load()) for variable in variables]).slice
    for variable, extent in reversed(list(zip(variables, program.buffers[name].shape, strict=True))):
        body = [for_loop(variable, extent, body)]
    verb = "end" if "+=" in statement else "start"
    return make_nest(f"{program.name.replace('.', '_')}_{verb}_{name}", body, program.buffers)


def is_loss(ensemble: Ensemble) -> bool:
    """Whether the ensemble's value is a loss: its gradient is 1."""
    return isinstance(ensemble, LossEnsemble) and not isinstance(ensemble, AccuracyEnsemble)
