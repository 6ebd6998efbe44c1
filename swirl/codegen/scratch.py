"""What kernels keep on each thread besides their buffers."""

from __future__ import annotations

import ast
from math import prod

from swirl.codegen.storage import decide
from swirl.codegen.to_c import MOST_STACK_BYTES
from swirl.ir.buffers import DTYPES
from swirl.ir.nest import Program, local_type
from swirl.ir.trees import statements_in


def thread_bytes(program: Program, vector_width: int) -> int:
    """Bytes that a kernel keeps on each thread from its first run on: local arrays that are too large for the stack.

    Args:
        program: after the last stage.
        vector_width: elements in a vector of the target.
    """
    found = 0
    for nest in program.nests:
        large = {id(each): nbytes for outer in nest.body for each in statements_in(outer) if (nbytes := _large(each))}
        if large:
            storage = decide(nest.body, vector_width)
            found += sum(nbytes for key, nbytes in large.items() if storage[key].kind == "memory")
    return found


def _large(statement: ast.stmt) -> int:
    """The bytes of a local array that is too large for the stack; otherwise 0."""
    if not isinstance(statement, ast.AnnAssign):
        return 0
    kind = local_type(statement)
    nbytes = prod(kind.shape) * DTYPES[kind.dtype]().itemsize if kind.shape else 0
    return nbytes if nbytes > MOST_STACK_BYTES else 0
