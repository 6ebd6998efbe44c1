"""``latte bench bn|cbr --breakdown``: what the optimisations, and the operators, have to do with the time of a step.

Source: J. Lake, thesis, Utah 2020, Figs. 4.1 (batch norm by optimisations), 4.2 and 4.3 (Conv-BN-ReLU in images per
second, and in milliseconds by operators).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from rich.table import Table

from latte.tools.bench.alternate import Row, sides_but
from latte.tools.bench.cases import Case
from latte.tools.bench.levels import LEVELS
from latte.tools.bench.workers import OURS, Side


def level_sides() -> list[Side]:
    """Our side at each level below all of the recipe."""
    return [Side(name, peer=False, level=number) for number, name in enumerate(LEVELS)]


def by_optimisation(rows: Sequence[Row]) -> Table:
    """Fig. 4.1: seconds at each level, and what share of the final speed each level adds."""
    peers = sides_but(rows, OURS, *LEVELS)
    made = Table("case", *LEVELS, "+ threads", *peers, title="a training step by optimisations")
    for row in rows:
        made.add_row(
            str(row.case),
            *(
                f"{row.median(name) * 1e3:.2f} ms ({share:.0%})"
                for name, share in zip((*LEVELS, OURS), level_shares(row), strict=True)
            ),
            *(f"{row.median(name) * 1e3:.2f} ms" if name in row.seconds else "–" for name in peers),
        )
    return made


def level_shares(row: Row) -> list[float]:
    """What each level adds to the speed, as a share of the speed of all."""
    speeds = [0.0, *(row.median() / row.median(name) for name in (*LEVELS, OURS))]
    return [after - before for before, after in pairwise(speeds)]


@dataclass(frozen=True)
class Operators:
    """A Conv-BN-ReLU, and each of its operators by itself.

    Args:
        whole: forward and step of the layers together.
        parts: operator → the same of it alone.
    """

    whole: Mapping[str, Row]
    parts: Mapping[str, Mapping[str, Row]]

    @property
    def case(self) -> Case:
        return self.whole["step"].case

    def images(self, side: str) -> float:
        """Images a second of a side's training step."""
        return self.case.batch / self.whole["step"].median(side)


def operator_cases(case: Case) -> dict[str, Case]:
    """Operator → the case that is it alone; the convolution has a bias then, and a ReLU's source is plain."""
    out = (case.extent + 2 * (case.kernel // 2) - case.kernel) // case.stride + 1
    image = Case("bn", case.batch, case.filters, out)
    return {"convolution": replace(case, kind="conv"), "batch norm": image, "ReLU": replace(image, kind="relu")}


def milliseconds(rows: Mapping[str, Row], side: str) -> tuple[float, float]:
    """Forward, and backward with the gradients of the parameters: what else a step takes."""
    forward = rows["forward"].median(side) * 1e3
    return forward, max(0.0, rows["step"].median(side) * 1e3 - forward)


def by_operator(found: Sequence[Operators]) -> Table:
    """Figs. 4.2 and 4.3: images a second, and milliseconds of each operator alone and of all together."""
    sides = [OURS, *sides_but([one.whole["step"] for one in found], OURS)]
    made = Table(
        "case",
        "side",
        "images/s",
        *(f"{name} fwd + bwd, ms" for name in found[0].parts),
        "together fwd + bwd, ms",
        title="a training step by operators",
    )
    for one in found:
        for side in sides:
            every = [*one.parts.values(), one.whole]
            if any(side not in row.seconds for rows in every for row in rows.values()):
                continue
            times = (milliseconds(rows, side) for rows in every)
            shown = (f"{forward:.2f} + {backward:.2f}" for forward, backward in times)
            made.add_row(str(one.case) if side == OURS else "", side, f"{one.images(side):.0f}", *shown)
        made.add_section()
    return made
