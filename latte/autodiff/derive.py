"""Backward and update programs from a forward program: the driver of the other modules here."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from latte.autodiff.activity import active_names
from latte.autodiff.argmax import save_argmax
from latte.autodiff.gather import gather
from latte.autodiff.initialise_gradients import Gradients, Variables, finish
from latte.autodiff.prepare import ELEMENT, Body, line_of, origin, prepare, rebuild
from latte.autodiff.reverse import OutputChanges, Reversal
from latte.autodiff.saved import multiple_of, save_local, save_version
from latte.autodiff.tapes import Tapes, first_wins, normalised
from latte.autodiff.values import Choices, Overwritten, TooDear
from swirl.errors import DerivativeError
from swirl.ir.nest import Program, clone, make_nest, names_in
from swirl.ir.trees import name_of, statements_in
from swirl.transforms.rewrites.sites import taken_names

ATTEMPTS = 32
"""Each attempt keeps one value more; a program that needs more is refused."""


@dataclass(frozen=True)
class Derived:
    """What :func:`derive` makes.

    Args:
        forward: the forward program, extended so that it keeps what the others need.
        backward: gradients of the inputs, or None where none is wanted.
        update: gradients of the parameters, or None where there are none.
        notes: what is kept or computed again, and the bytes that decided it.
        taped: whether forward keeps values of single iterations, only for backward.
    """

    forward: Program
    backward: Program | None
    update: Program | None
    notes: tuple[str, ...] = ()
    taped: bool = False


def derive(
    forward: Program,
    *,
    inputs: Sequence[str],
    params: Sequence[str],
    output: str = "value",
    add_to: Collection[str] = (),
    keep: Collection[str] = (),
    recompute: Collection[str] = (),
    taken: Collection[str] = (),
) -> Derived:
    """Differentiate ``forward`` in reverse.

    Args:
        forward: ``<ensemble>.forward``, in the grammar of ``docs/ir.md`` (and ``stop_gradient(x)``).
        inputs: buffers whose gradients backward computes (``inputs`` → ``grad_inputs``).
        params: buffers whose gradients update accumulates (``weights`` → ``grad_weights``).
        output: the buffer whose gradient ``grad`` is given.
        add_to: those of ``inputs`` and ``params`` whose gradient has been started by another layer.
        keep, recompute: names of locals of the forward program that are kept in a buffer, or computed again, whatever
            that costs; ignored where values of single iterations must be kept.
        taken: names of arrays that the layer has beside those in the program: what is kept gets other names.

    Raises:
        DerivativeError: the program has a statement without a derivative; the message quotes it.
    """
    by = Variables(inputs, params, output, add_to)
    try:
        choices = Choices(frozenset(recompute), frozenset(keep), _declared_once(forward))
        return _kept_as_needed(forward, by, choices, taken)
    except DerivativeError:
        return _taped(forward, by, taken)


def _kept_as_needed(forward: Program, by: Variables, choices: Choices, taken: Collection[str]) -> Derived:
    """Whole locals, or versions of buffers, are kept one after the other, until nothing is missing."""
    notes: list[str] = []
    program = forward
    for _ in range(ATTEMPTS):
        try:
            return _attempt(program, by, choices, taken, notes)
        except TooDear as found:
            kept = multiple_of(program, found.local, choices.keepable - choices.recompute)
            program = save_local(program, kept, taken)
            again = f"computing it again would move {found.bytes_again}"
            if found.bytes_again is None:
                again = "it cannot be computed again"
            notes.append(f"{kept} is kept: {found.bytes_kept} bytes a time, {again}")
        except Overwritten as found:
            changed = save_version(program, found.name, found.by.path[0][1], taken)
            if changed is None:
                name = found.name.removesuffix(ELEMENT)
                used, overwriting = origin(found.used.node), origin(found.by.node)
                raise DerivativeError(
                    f"`{used}` cannot be differentiated: it needs a value of {name} that `{overwriting}` overwrites",
                    location=forward.name,
                    way_out=f"give the new value a name of its own instead of overwriting {name}",
                    line=line_of(found.used.node),
                ) from found
            program, kept = changed
            notes.append(
                f"the value of {found.name} before `{origin(found.by.node)}` is kept as {kept}: "
                f"{program.buffers[kept].nbytes} bytes"
            )
    raise DerivativeError(f"more than {ATTEMPTS} values would have to be kept", location=forward.name)


def _declared_once(program: Program) -> frozenset[str]:
    """The locals that one declaration in the program names."""
    every = (statement for nest in program.nests for statement in statements_in(nest.function))
    names = [name_of(statement.target) for statement in every if isinstance(statement, ast.AnnAssign)]
    return frozenset(name for name in names if names.count(name) == 1)


def _attempt(program: Program, by: Variables, choices: Choices, taken: Collection[str], notes: list[str]) -> Derived:
    bodies = [list(nest.body) for nest in program.nests]
    everything = active_names(bodies, program.buffers, {*by.inputs, *by.params}, by.output)
    saved, inside, _ = save_argmax(program, everything, taken)
    names = _names(saved, inside).union(taken)
    prepared = prepare(inside, saved.buffers, names)
    return _phases(saved, prepared, by, names, choices, notes)


def _taped(forward: Program, by: Variables, taken: Collection[str]) -> Derived:
    """What a statement reads and something overwrites later is kept, one element for each iteration."""
    program = normalised(forward, taken_names(forward).union(taken))
    bodies = [list(nest.body) for nest in program.nests]
    everything = active_names(bodies, program.buffers, {*by.inputs, *by.params}, by.output)
    saved, inside, originals = save_argmax(program, everything, taken)
    names = _names(saved, inside).union(taken)
    tapes = Tapes(saved, originals, names)
    prepared = [rebuild(nest, first_wins) for nest in inside]
    derived = _phases(saved, prepared, by, names, Choices(), [], tapes)
    kept, notes = tapes.saving(derived.backward, derived.update)
    return replace(derived, forward=strip_stop_gradient(kept), notes=(*notes, *derived.notes), taped=True)


def _names(program: Program, inside: list[Body]) -> set[str]:
    return taken_names(program).union({"grad"}, *(names_in(s) for nest in inside for s in nest))


def _phases(
    saved: Program,
    prepared: list[Body],
    by: Variables,
    taken: set[str],
    choices: Choices,
    notes: list[str],
    tapes: Tapes | None = None,
) -> Derived:
    """Backward and update by reversal of the ``prepared`` nests of ``saved``."""
    found: list[str] = list(notes)

    def phase(name: str, wanted: Sequence[str]) -> Program | None:
        if not wanted:
            return None
        name = f"{saved.name.split('.')[0]}.{name}"
        reversal, nests = _reverse(name, prepared, saved, wanted, by.output, taken, choices, tapes)
        known = saved.with_buffers(**{tape.name: tape.buffer for tape in tapes.tapes}) if tapes else saved
        if all(len(nest) == 1 for nest in nests):
            buffers = {**known.buffers, **{new: saved.buffers[of] for new, of in reversal.adjoints.items()}}
            body, gathered = gather([nest[0] for nest in nests], list(reversal.adjoints), buffers)
            nests = [[statement] for statement in body]
            reversal.values.notes.extend(gathered)
        found.extend(f"{name}: {note}" for note in reversal.values.notes)
        return finish(name, nests, Gradients(known, reversal.adjoints, wanted, by))

    backward = phase("backward", by.inputs)
    update = phase("update", by.params)
    return Derived(strip_stop_gradient(saved), backward, update, tuple(dict.fromkeys(found)))


def _reverse(
    name: str,
    prepared: list[Body],
    program: Program,
    wanted: Sequence[str],
    output: str,
    taken: set[str],
    choices: Choices,
    tapes: Tapes | None,
) -> tuple[Reversal, list[Body]]:
    for copied in (False, True):
        reversal = Reversal(
            name, prepared, program.buffers, wanted, output, taken, replace(choices, copy_output=copied), tapes
        )
        try:
            nests = [[_stripped(statement) for statement in nest] for nest in reversal.run()]
            return reversal, nests
        except OutputChanges:
            continue
    raise AssertionError("a copy of the output's gradient may change")


class _Strip(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        stops = isinstance(node.func, ast.Name) and node.func.id == "stop_gradient"
        return node.args[0] if stops else node


def _stripped(statement: ast.stmt) -> ast.stmt:
    return _Strip().visit(clone(statement))


def strip_stop_gradient(program: Program) -> Program:
    """``stop_gradient(x)`` → ``x`` everywhere: its only meaning is for derivatives."""
    if not any("stop_gradient" in nest.text for nest in program.nests):
        return program
    nests = [make_nest(nest.label, [_stripped(s) for s in nest.body], program.buffers) for nest in program.nests]
    return program.with_nests(nests)
