"""Writing stages: ``<folder>/<ensemble>/<phase>/00_lowered.py``, …, ``kernel.cpp``, ``command.txt``."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from swirl.codegen.emit import KernelSource
from swirl.dump import standalone
from swirl.errors import LatteError
from swirl.ir.buffers import Buffer
from swirl.ir.item_numbers import capacity, value_of
from swirl.ir.nest import Nest, Program, fresh, local_type, loop_of, references, subscripts
from swirl.ir.operations import FUNCTIONS
from swirl.ir.paths import loops
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, nodes
from swirl.ir.types import explicit, is_float
from swirl.schedule.pipeline import Stage

POSITIVE = tuple(name for name, function in FUNCTIONS.items() if function.positive)
Contents = int | str | list[float]
"""Whole numbers below one, a word of :func:`contents`, or the numbers themselves."""
MADE_HERE = re.compile(r"\d\d+_\w+\.py|kernel\.cpp|command\.txt")


def dump_stages(folder: Path, stages: Sequence[Stage]) -> list[Path]:
    """Write every stage of one ensemble and phase, replacing an earlier compilation's.

    Args:
        folder: where to; made if it is not there.
        stages: in order, the one with physical references (if any) last.

    Raises:
        LatteError: the folder cannot be written.
    """
    programs = [stage.program for stage in stages]
    values: dict[str, Contents] = {**contents(programs[0]), **_whole_batches(programs)}
    logical: dict[str, Buffer] = {}
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if MADE_HERE.fullmatch(old.name):
                old.unlink()
        for number, stage in enumerate(stages):
            physical = stage.name == "physical"
            if not physical:
                logical |= stage.program.buffers
            title = f"{stage.program.name}: stage {number} of {len(stages) - 1}, {stage.command or stage.name}"
            buffers = {name: logical.get(name, buffer) for name, buffer in stage.program.buffers.items()}
            path = folder / f"{number:02}_{stage.name}.py"
            path.write_text(stage_text(stage.program, title, buffers, physical, values), encoding="utf-8")
            paths.append(path)
    except OSError as error:
        raise _not_written(folder, error) from error
    return paths


def dump_kernel(folder: Path, source: KernelSource, command: str) -> None:
    """Write the C++ beside the stages, and the command that compiles it there.

    Raises:
        LatteError: the folder cannot be written.
    """
    try:
        (folder / "kernel.cpp").write_text(source.source, encoding="utf-8")
        (folder / "command.txt").write_text(command + "\n", encoding="utf-8")
    except OSError as error:
        raise _not_written(folder, error) from error


def _not_written(folder: Path, error: OSError) -> LatteError:
    return LatteError(
        f"{folder}: the stages cannot be written: {error.strerror}",
        way_out="SWIRL_DUMP names a folder that you can write, or is unset",
    )


def stage_text(
    program: Program, title: str, buffers: Mapping[str, Buffer], physical: bool, values: Mapping[str, Contents]
) -> str:
    """The file of one stage.

    Args:
        title: its first line.
        buffers: with logical shapes.
        physical: whether the nests see the buffers with their shapes in memory.
        values: see :func:`contents`.
    """
    program = explicit(program)
    source = inspect.getsource(standalone)
    imports = source[source.index("from __future__") : source.index("# A dumped file")]
    definitions = source[source.index("# --- loops and calls") :]
    table = "".join(_entry(name, buffer, physical, values) for name, buffer in buffers.items())
    labels: list[str] = []
    for nest in program.nests:
        labels.append(fresh(nest.label, set(labels)))
    nests = "\n\n\n".join(_explicit(nest, label) for nest, label in zip(program.nests, labels, strict=True))
    title = title.replace("\\", "\\\\").replace('"', "'")
    return (
        f'"""{title}\n\n{_USAGE}"""\n\n{imports}'
        f"BUFFERS = {{\n{table}}}\n\n\n{nests}\n\n\nNESTS = [{', '.join(labels)}]\n\n\n{definitions}"
    )


_USAGE = """Runs with NumPy alone. --seed N makes other arrays, --save and --load keep and take them (.npz, by
storage name); --compile and --check need swirl. `latte compare` runs two stages on the same arrays.
"""


def _entry(name: str, buffer: Buffer, physical: bool, values: Mapping[str, Contents]) -> str:
    default = "normal" if is_float(buffer.dtype) else 2
    layout = buffer.layout
    fields = {
        "storage": buffer.name,
        "shape": buffer.shape,
        "blocks": layout.blocks if physical else (),
        **({"halo" if physical else "around": layout.halo} if layout.halo else {}),
        **({"order": layout.order} if layout.order and physical else {}),
        "dtype": buffer.dtype,
        "role": buffer.role,
        "values": values.get(name, default),
    }
    return f"    {name!r}: {fields!r},\n"


class _Explicit(Transformer):
    """Makes declared types explicit: ``mean_t: float32 = float32(0.0)``."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        kind = local_type(node)
        assert node.value is not None
        if kind.shape:
            call = "empty" if kind.dtype == "float32" else f"empty_{kind.dtype}"
            value: ast.expr = ast.Call(ast.Name(call, ast.Load()), [ast.Constant(extent) for extent in kind.shape], [])
        else:
            value = ast.Call(ast.Name(kind.dtype, ast.Load()), [node.value], [])
        return ast.AnnAssign(node.target, node.annotation, value, node.simple)


def _explicit(nest: Nest, label: str) -> str:
    function = _Explicit().visit(ast.parse(nest.text).body[0])
    function.name = label
    return unparse(ast.fix_missing_locations(function))


# --- what to fill buffers with ------------------------------------------------------------------------------
def contents(program: Program) -> dict[str, int | str]:
    """Buffer → what its made-up contents must be for the program to do something worth comparing.

    ``positive`` where it is the argument of a root or a logarithm; a number ``n`` (whole numbers below it) where it is
    used as a subscript, or compared with a loop's variable, as labels and winners of a maximum are. Others may hold
    anything.
    """
    found: dict[str, int | str] = {}
    for nest in program.nests:
        heads = [loop_of(node) for _, node in loops(nest.body)]
        extents = {head.var: head.extent for head in heads}
        for node in nodes(nest.function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in POSITIVE:
                for name in _buffers_in(node, program):
                    found.setdefault(name, "positive")
            elif isinstance(node, ast.Subscript):
                found |= _subscript_buffers(node, program)
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
                sides = (node.left, node.comparators[0])
                for side, other in (sides, sides[::-1]):
                    variable = _variable(other)
                    extent = extents.get(variable) if variable else None
                    if extent is not None:
                        found |= dict.fromkeys(_buffers_in(side, program), extent)
    return found


def _whole_batches(programs: Sequence[Program]) -> dict[str, list[float]]:
    """Scalars that depend on the number of items, as they are for a whole batch."""
    items = capacity(programs)
    found = (pair for program in programs for pair in program.buffers.items())
    return {name: [value_of(b.formula, items)] for name, b in found if b.formula and items}


def _buffers_in(tree: ast.AST, program: Program) -> Iterator[str]:
    for node in references(tree):
        assert isinstance(node.value, ast.Name)
        if node.value.id in program.buffers:
            yield node.value.id


def _subscript_buffers(node: ast.Subscript, program: Program) -> dict[str, int | str]:
    if not isinstance(node.value, ast.Name) or node.value.id not in program.buffers:
        return {}
    shape = program.buffers[node.value.id].shape
    return {
        name: extent
        for index, extent in zip(subscripts(node), shape, strict=True)
        for name in _buffers_in(index, program)
    }


def _variable(node: ast.expr) -> str | None:
    """``c`` for ``c`` and for ``float32(c)``."""
    value: Any = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else node
    return value.id if isinstance(value, ast.Name) else None
