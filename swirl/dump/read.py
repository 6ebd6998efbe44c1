"""Reading a dumped stage back: as a program that can be compiled or run in checking mode."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from swirl.build.jit import Kernel, build, load
from swirl.codegen.emit import KernelSource, emit
from swirl.errors import LatteError
from swirl.ir.buffers import DTYPES, Buffer, Layout
from swirl.ir.execute import execute
from swirl.ir.nest import Nest, Program, declare, local_type, make_nest
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer
from swirl.ir.validate import validate
from swirl.run.memory import allocate
from swirl.run.runner import Runner
from swirl.source_text import SAVE_AS, EncodingError, parsed
from swirl.target.machine import resolve_target

Arrays = dict[str, np.ndarray]
STAGES = "SWIRL_DUMP=folder at compile writes the stages"
"""The way out where there is none."""


@dataclass(frozen=True)
class DumpedStage:
    """A stage that was dumped, perhaps edited since.

    Args:
        path: its file.
        namespace: what running the file defines.
        program: its nests, on buffers with their shapes in memory.
        compiled: runs the nests compiled (:func:`compiled_stages`); by default Python runs them.
    """

    path: Path
    namespace: Mapping[str, Any]
    program: Program
    compiled: Callable[[Arrays], None] | None = None

    def arrays(self, seed: int = 0) -> Arrays:
        """The logical contents that a seed gives."""
        return dict(self.namespace["make_arrays"](seed))

    def run(self, arrays: Arrays) -> Arrays:
        """The logical arrays after the stage."""
        return dict(self.namespace["run"](arrays, self.compiled))


def read_stage(path: str | Path) -> DumpedStage:
    """A dumped stage from its file.

    Raises:
        LatteError: the file cannot be read, is not Python, or is not a dumped stage.
        ValidationError: its nests are outside the grammar of ``docs/ir.md``.
    """
    path = Path(path)
    tree = _tree(path)
    try:
        namespace = runpy.run_path(str(path), run_name="stage")
    except Exception as error:  # somebody's edit of the file: any error may come out of it
        raise LatteError(f"does not run: {type(error).__name__}: {error}", location=str(path)) from error
    if not {"BUFFERS", "NESTS", "make_arrays", "run"} <= namespace.keys():
        raise LatteError("is not a dumped stage", location=str(path), way_out=STAGES)
    buffers = {name: _buffer(fields) for name, fields in namespace["BUFFERS"].items()}
    wanted = [nest.__name__ for nest in namespace["NESTS"]]
    functions = {s.name: s for s in tree.body if isinstance(s, ast.FunctionDef) and s.name in wanted}
    nests = [_nest(functions[name], buffers) for name in wanted]
    return DumpedStage(path, namespace, validate(Program(path.stem, tuple(nests), buffers)))


def functions_of(path: Path) -> list[str]:
    """The names of the functions in a dumped stage.

    Raises:
        LatteError: the file cannot be read, or is not Python.
    """
    return [statement.name for statement in _tree(path).body if isinstance(statement, ast.FunctionDef)]


def _tree(path: Path) -> ast.Module:
    try:
        return parsed(path.read_bytes(), str(path))
    except OSError as error:
        raise LatteError(f"cannot be read: {error.strerror}", location=str(path), way_out=STAGES) from error
    except EncodingError as error:
        raise LatteError(f"is not text: {error.msg}", location=f"{path}:{error.lineno}", way_out=SAVE_AS) from error
    except (SyntaxError, ValueError) as error:
        raise LatteError(f"does not run: {type(error).__name__}: {error}", location=str(path)) from error


def _buffer(fields: Mapping[str, Any]) -> Buffer:
    layout = Layout(tuple(fields["blocks"]), tuple(fields.get("halo", ())), tuple(fields.get("order", ())))
    shape = layout.physical_shape(tuple(fields["shape"]))
    around = Layout(halo=tuple(fields.get("around", ())))
    return Buffer(fields["storage"], shape, fields["dtype"], fields["role"], around)


def _nest(function: ast.FunctionDef, buffers: Mapping[str, Buffer]) -> Nest:
    return make_nest(function.name, [_Declared().visit(statement) for statement in function.body], buffers)


class _Declared(Transformer):
    """Declarations as the grammar has them: ``mean_t: float32 = 0.0``."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        kind = local_type(node)
        assert isinstance(node.target, ast.Name)
        value = node.value
        if not kind.shape and isinstance(value, ast.Call) and unparse(value.func) == kind.dtype:
            value = value.args[0]
        return declare(node.target.id, kind, value)


# --- other ways to run --------------------------------------------------------------------------------------
def compiled_run(file: str, target: str) -> Callable[[Arrays], None]:
    """Runs the nests of a dumped file compiled for a target, on arrays with their layouts in memory."""
    (stage,) = compiled_stages([read_stage(file)], target)
    assert stage.compiled is not None
    return stage.compiled


def checked_run(file: str, seed: int) -> Callable[[Arrays], None]:
    """Runs the nests of a dumped file in checking mode (:func:`swirl.ir.execute.execute`)."""
    program = read_stage(file).program
    return lambda arrays: execute(program, arrays, checking=True, seed=seed)


def compiled_stages(stages: Iterable[DumpedStage], target: str, *, optimize: str = "-O3") -> list[DumpedStage]:
    """The same stages, to be run compiled for a target; they are compiled all at once.

    Args:
        optimize: the compiler's flag; ``-O3`` is what kernels of nets are compiled with.
    """
    stages, made_for = list(stages), resolve_target(target)
    sources = [emit(stage.program, made_for, contract=False) for stage in stages]
    built = build(sources, made_for, contract=False, optimize=optimize)
    return [
        replace(stage, compiled=_run(stage.program, source, load(library)))
        for stage, source, library in zip(stages, sources, built, strict=True)
    ]


def _run(program: Program, source: KernelSource, kernel: Kernel) -> Callable[[Arrays], None]:
    def run(arrays: Arrays) -> None:
        runner = Runner()
        sizes = {name: (b.physical_shape, DTYPES[b.dtype]) for name, b in program.buffers.items()}
        memory = allocate(sizes, runner)
        for name, array in arrays.items():
            memory[name][...] = program.buffers[name].layout.pack(array)
        runner.phase([(kernel, [memory[name] for name in source.buffers])]).run()
        for name, array in arrays.items():
            array[...] = program.buffers[name].layout.unpack(memory[name], array.shape)

    return run
