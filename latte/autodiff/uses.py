"""Who touches which element: the statements of a program, and what each of them reads and writes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from swirl.analysis import dependences
from swirl.analysis.accesses import Access
from swirl.analysis.statements import Statement, statements
from swirl.ir.paths import Path


@dataclass(frozen=True)
class Use:
    """One reference of a statement."""

    site: Statement
    access: Access

    @property
    def name(self) -> str:
        return self.access.name

    @property
    def reads(self) -> bool:
        """Whether it reads; else it writes, and the update of a sum also reads."""
        return self.access.kind == "read"

    @property
    def text(self) -> str:
        """As the statement has it."""
        return self.access.text

    @property
    def indices(self) -> tuple[ast.expr, ...]:
        """The subscripts; none of a plain name."""
        return self.access.own

    def meets_later(self, other: Use, *, carried_by: Path | None = None, itself: bool = False) -> bool:
        """See :func:`swirl.analysis.dependences.meets_later`."""
        return dependences.meets_later(
            self.site, self.access, other.site, other.access, carried_by=carried_by, itself=itself
        )


def use_of(reference: ast.expr, kind: str, site: Statement) -> Use:
    """A reference as if it were in a statement: a ``read`` or a ``write``."""
    return Use(site, site.access(reference, kind))


def sites(nests: list[list[ast.stmt]]) -> list[Statement]:
    """Every assignment, declaration and condition of nests, in textual order; the first part of a path is the nest's
    number."""
    found = (site for number, nest in enumerate(nests) for site in statements(nest, (("body", number),)))
    return [site for site in found if not isinstance(site.node, ast.Pass)]


def uses(site: Statement) -> list[Use]:
    """What a statement touches, reads first; ``t = max(t, x)`` reads and writes ``t``."""
    found = list(_accesses(site))
    return [Use(site, access) for access in sorted(found, key=lambda access: access.kind != "read")]


def _accesses(site: Statement) -> Iterator[Access]:
    for access in site.accesses:
        if access.kind in ("max", "min"):
            assert isinstance(site.node, ast.Assign)
            yield site.access(site.node.targets[0], "read")
            yield site.access(site.node.targets[0], "write")
        else:
            yield access


def uses_of(name: str, among: Iterable[Statement]) -> list[Use]:
    """What touches elements of a buffer."""
    return [use for site in among for use in uses(site) if use.name == name and use.indices]
