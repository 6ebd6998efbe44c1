"""Which locals and buffers a gradient flows through."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping

from latte.autodiff.partials import active_in
from latte.autodiff.prepare import Body
from latte.autodiff.uses import sites, uses
from swirl.analysis.statements import Statement
from swirl.ir.buffers import Buffer
from swirl.ir.nest import local_type
from swirl.ir.types import is_float


def active_names(nests: list[Body], buffers: Mapping[str, Buffer], wanted: Collection[str], output: str) -> set[str]:
    """Locals and buffers that depend on ``wanted`` and that ``output`` depends on."""
    flows: list[tuple[str, list[str]]] = []
    for site in sites(nests):
        found = uses(site)
        reads = [use.name for use in found if use.reads]
        for use in found:
            if not use.reads and _carries_gradient(use.name, site, buffers):
                value = site.node.value  # type: ignore[attr-defined]
                flows.append((use.name, [name for name in reads if active_in(value, lambda n, r=name: n == r)]))  # type: ignore[misc]
    varied, useful = set(wanted), {output}
    size = -1
    while size != len(varied) + len(useful):
        size = len(varied) + len(useful)
        for target, reads in flows:
            if varied.intersection(reads):
                varied.add(target)
            if target in useful:
                useful.update(reads)
    return {name for name in varied & useful if name not in buffers or _is_differentiable(buffers[name])}


def _is_differentiable(buffer: Buffer) -> bool:
    return is_float(buffer.dtype) and buffer.role not in ("constant", "scalar")


def _carries_gradient(name: str, site: Statement, buffers: Mapping[str, Buffer]) -> bool:
    if name in buffers:
        return _is_differentiable(buffers[name])
    statement = site.node
    if isinstance(statement, ast.AnnAssign):
        return is_float(local_type(statement).dtype)
    return True
