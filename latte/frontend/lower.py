"""From a body that a user wrote to a program of loop nests.

A neuron's body becomes one nest: loops over the batch and the ensemble's dimensions around it. An ensemble's
body becomes one nest for each of its top-level statements. A field that is accumulated into and never set is set to
zero before, by a nest or statement, so that a phase can run twice with the same results.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from latte.frontend.bounds import check_bounds
from latte.frontend.locals import Types, declare_locals, first_use, mentions, self_contained
from latte.frontend.references import ArrayReferences, NeuronReferences
from latte.frontend.scope import BodyScope, Source
from latte.frontend.sources import spelled_out
from latte.frontend.translate import Translator, loop_over
from latte.frontend.whole_numbers import check_whole_numbers
from latte.model.buffers import body_buffers
from latte.model.checks import check_phase
from latte.model.ensemble import Ensemble
from latte.model.instances import stored_names
from swirl.analysis.uniform import for_any_number
from swirl.errors import DeclarationError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, counting, fresh, make_nest, nested, reference, references, subscripts
from swirl.ir.trees import name_of

# Fields whose first dimension is the batch: where a loop variable is a plain subscript of one, it is that
# dimension's.
_BATCH_FIELDS = ("value", "grad", "inputs", "grad_inputs")


def lower(ensemble: Ensemble, phase: str, *, batch_size: int, training: bool = True) -> Program:
    """The program of one phase of one ensemble, as the user wrote it.

    Args:
        ensemble: an ensemble of a net.
        phase: ``forward``, or ``backward`` or ``update`` (alias ``update_internal``) where the user wrote
            them.
        batch_size: extent of the batch dimension.
        training: what ``self.training`` is in the body.

    Returns:
        ``Program(name="conv1.forward", …)``; its buffers are those that the nests touch, by the names in the
        body. ``stop_gradient(x)`` is left as a call.

    Raises:
        BodyError: for what the language does not have, with file and line.
        DeclarationError: if the phase is unknown or not written by the user.
    """
    phase = check_phase(phase)
    name = f"{ensemble.name}.{phase}"
    if not ensemble.has_phase(phase):
        if phase == "forward":
            return Program(name, (), {})
        raise DeclarationError(f"{ensemble!r} has no {phase} of its own; it is derived from forward")
    buffers = body_buffers(ensemble, batch_size)
    explicit = ensemble.phase_is_explicit(phase)
    body = ensemble.body(phase)
    source = Source(ensemble, spelled_out(body, ensemble) if explicit else body, buffers, batch_size, training, phase)
    to_clear = _clearable(ensemble, phase)
    if explicit:
        translator = Translator(ArrayReferences(source))
        blocks, buffers, aliases = _array_blocks(translator, to_clear)
    else:
        neuron = NeuronReferences(source)
        translator = Translator(neuron)
        blocks = _neuron_blocks(translator, neuron, to_clear)
        buffers = dict(neuron.scope.buffers)
        aliases = {f"_neuron_index_{d}": (dim,) for d, dim in enumerate(neuron.dims) if dim != f"_neuron_index_{d}"}
    for block in blocks:
        check_bounds(translator.scope, block, buffers)
    check_whole_numbers(translator.scope, blocks, buffers, to_clear)
    if phase == "forward" and "value" not in stored_names(body.tree):
        body.fail(body.tree, f"forward of {ensemble!r} never assigns value: it would be zero", "self.value = …")
    for count, names in enumerate(translator.eachindex_loops):
        aliases[f"__unique_loopvar{count}"] = names
    label = name.replace(".", "_")
    nests = [make_nest(f"{label}_{index}", block, buffers) for index, block in enumerate(blocks)]
    used = {argument for nest in nests for argument in nest.arguments}
    program = Program(name, tuple(nests), {key: buffer for key, buffer in buffers.items() if key in used}, aliases)
    fixing = [f"the body computes with {text}" for text in translator.scope.constants.fixing]
    return for_any_number(program, batch_size, fixing[0] if fixing else "", translator.scope.over_items)


def _clearable(ensemble: Ensemble, phase: str) -> list[str]:
    """Fields that this phase computes from nothing: in forward ``value`` and what is neither parameter nor state; in
    the other phases, those of them that forward does not compute."""
    declared = [name for name, field in ensemble.declared_fields().items() if field.role == "value"]
    if phase == "forward":
        return ["value", *declared]
    earlier = stored_names(ensemble.body("forward").tree) if ensemble.has_phase("forward") else set()
    return [name for name in declared if name not in earlier]


# --- neurons ------------------------------------------------------------------------------------------------
def _neuron_blocks(translator: Translator, neuron: NeuronReferences, to_clear: list[str]) -> list[list[ast.stmt]]:
    scope = translator.scope
    body = translator.block(scope.body.statements)
    types = _types(scope, body, scope.buffers)
    body = declare_locals(body, types.locals, types, scope.fail)
    body = [types.statement(statement) for statement in body]
    clearing: list[ast.stmt] = []
    blocks = []
    for name in to_clear:
        if _is_cleared(body, name):
            spec = neuron.specs[name]
            if spec.dims == neuron.dims and len(spec.shape) == len(spec.dims):
                indices: list[ast.expr] = [ast.Name(dim, ast.Load()) for dim in neuron.dims]
                clearing.append(_zero(name, indices, spec.dtype))
            else:
                blocks.append([_clear_nest(name, scope.buffers[name], body)])
    body = [*clearing, *body]
    loops = (loop_over(dim, scope.loops[dim]) for dim in neuron.dims)
    return [*blocks, nested(loops, body)] if body else blocks


def _is_cleared(body: list[ast.stmt], name: str) -> bool:
    """Whether a field is set to zero first: some way adds to it, or keeps it; or it is the value, and all that stores
    to it has been left out, as it depends on ``self.training``: readers would get that of another batch."""
    use = first_use(body, name)
    return use in ("read", "maybe") or (use is None and name == "value")


def _types(scope: BodyScope, body: list[ast.stmt], buffers: Mapping[str, Buffer]) -> Types:
    return Types(body, {name: buffer.dtype for name, buffer in buffers.items()}, scope.fail)


# --- ensembles ----------------------------------------------------------------------------------------------
def _array_blocks(
    translator: Translator, to_clear: list[str]
) -> tuple[list[list[ast.stmt]], dict[str, Buffer], dict[str, tuple[str, ...]]]:
    scope = translator.scope
    body = translator.block(scope.body.statements)
    buffers = dict(scope.buffers)
    types = _types(scope, body, buffers)
    body, shared = _share_locals(scope, body, types, buffers)
    own = [name for name in types.locals if name not in shared]
    if shared:
        types = _types(scope, body, buffers)
    blocks: list[list[ast.stmt]] = []
    for statement in body:
        block = declare_locals([statement], own, types, scope.fail)
        blocks.append([types.statement(part) for part in block])
    everything = [statement for block in blocks for statement in block]
    for name in to_clear:
        if _is_cleared(everything, name):
            where = next((i for i, block in enumerate(blocks) if any(mentions(s, name) for s in block)), len(blocks))
            first_reader = blocks[where] if where < len(blocks) else []
            blocks.insert(where, [_clear_nest(name, buffers[name], first_reader)])
    aliases = _structural_aliases(scope.ensemble, [s for block in blocks for s in block])
    return blocks, buffers, aliases


def _share_locals(
    scope: BodyScope, body: list[ast.stmt], types: Types, buffers: dict[str, Buffer]
) -> tuple[list[ast.stmt], set[str]]:
    """Locals that live across top-level statements become temporary buffers of one element (added to
    ``buffers``)."""
    shared = set()
    for name, dtype in types.locals.items():
        uses = [statement for statement in body if mentions(statement, name)]
        plain = any(
            isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name) and s.targets[0].id == name for s in body
        )
        if not plain and all(first_use([use], name) == "store" or self_contained(use, name) for use in uses):
            continue
        if first_use(body, name) == "read":
            node = next(statement for statement in body if mentions(statement, name))
            scope.fail(node, f"the local variable {name} may be read before it is assigned")
        shared.add(name)
        buffers[name] = Buffer(f"{scope.ensemble.name}.{name}", (1,), dtype, "temporary")
    replace = _ToElement(shared)
    return [replace.visit(statement) for statement in body], shared


class _ToElement(ast.NodeTransformer):
    """``name`` → ``name[0]``."""

    def __init__(self, names: set[str]):
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.names:
            return node
        return ast.copy_location(reference(node.id, [ast.Constant(0)], isinstance(node.ctx, ast.Store)), node)


def _structural_aliases(ensemble: Ensemble, body: list[ast.stmt]) -> dict[str, tuple[str, ...]]:
    """``_neuron_index_i`` → the loop variables that are subscript i of a batch field, by itself."""
    found: dict[str, list[str]] = {}
    names = [name for name in _BATCH_FIELDS if ensemble.batched or name not in ("value", "grad")]
    names += [f"{grad}{edge.name}" for edge in ensemble.connections for grad in ("", "grad_") if not edge.is_label]
    for statement in body:
        for element in references(statement):
            if name_of(element) in names:
                for position, index in enumerate(subscripts(element)):
                    loops = found.setdefault(f"_neuron_index_{position}", [])
                    if isinstance(index, ast.Name) and index.id not in loops:
                        loops.append(index.id)
    return {alias: tuple(loops) for alias, loops in sorted(found.items()) if loops}


# --- zeroing ------------------------------------------------------------------------------------------------
def _zero(name: str, indices: list[ast.expr], dtype: str) -> ast.stmt:
    zero = ast.Constant({"bool": False, "int32": 0}.get(dtype, 0.0))
    return ast.Assign([reference(name, indices, store=True)], zero)


def _clear_nest(name: str, buffer: Buffer, body: list[ast.stmt]) -> ast.stmt:
    """A loop nest that sets ``name`` to zero, with the loop names that ``body`` uses for it where they are
    plain."""
    plain = None
    for statement in body:
        for element in references(statement):
            if name_of(element) == name and plain is None:
                plain = [index.id if isinstance(index, ast.Name) else "" for index in subscripts(element)]
    taken: set[str] = {name, *filter(None, plain or [])}
    names = []
    for position, variable in enumerate(plain or [""] * len(buffer.shape)):
        good = variable and variable not in names
        names.append(variable if good else fresh(f"i{position}", taken))
        taken.add(names[-1])
    if buffer.shape == (1,) and not any(plain or []):
        return _zero(name, [ast.Constant(0)], buffer.dtype)
    zero = _zero(name, [ast.Name(variable, ast.Load()) for variable in names], buffer.dtype)
    (nest,) = nested(counting(names, buffer.shape), [zero])
    return nest
