"""The recipes' commands, the nests and the machine's instructions in docs/kernels.md.

    python docs/kernels.py compiles the kernels, and updates the instructions of their innermost loops

Commands and nests are the same everywhere; ``python docs/refresh.py kernels`` writes them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed

from latte.autodiff.differentiated import differentiate  # noqa: E402
from latte.frontend.lowered import lower_layers  # noqa: E402
from latte.planning.plan import make_plan  # noqa: E402
from latte.tools.bench import nets  # noqa: E402
from latte.tools.bench.assembly import Counts, counts, innermost_loops, instructions  # noqa: E402
from latte.tools.bench.report import machine, replaced  # noqa: E402
from latte.tools.bench.walk import touching  # noqa: E402
from swirl.ir.nest import Program  # noqa: E402
from swirl.schedule.kept_schedules import KeptSchedules  # noqa: E402
from swirl.schedule.memo import Memos  # noqa: E402
from swirl.target.targets import TARGETS  # noqa: E402
from swirl.transforms import LAYOUT_COMMANDS  # noqa: E402

PAGE = ROOT / "docs" / "kernels.md"
TARGET = TARGETS["avx512"]
MARK = re.compile(r"<!-- kernel (.+?) -->")
FIRST, LAST = 24, 6  # instructions of a loop that are shown
FEWEST = 4  # multiply-adds of a loop over pixels


@dataclass(frozen=True)
class Shown:
    """A kernel on the page.

    Args:
        declare: the net that it is from.
        phase: of its last layer.
        buffers: the statements that touch them are shown.
    """

    declare: Callable[[], nets.Declared]
    phase: str
    buffers: tuple[str, ...]


BATCH_NORM = partial(nets.batch_norm, 64, 64, 56, False)
KERNELS = {
    "batch norm, forward": Shown(BATCH_NORM, "forward", ("inputs", "value")),
    "batch norm, backward": Shown(BATCH_NORM, "backward", ("inputs", "grad", "grad_inputs")),
    "batch norm in blocks, forward": Shown(partial(nets.batch_norm, 64, 64, 56, True), "forward", ("inputs", "value")),
    "1 × 1, forward": Shown(partial(nets.convolution, 64, 64, 256, 56, 1), "forward", ("inputs", "value")),
    "chain, forward": Shown(partial(nets.chain, 64, 64, 64, 56, 3), "forward", ("conv_value", "value")),
    "1 × 1 chain, forward": Shown(
        partial(nets.chain, 64, 64, 256, 56, 1), "forward", ("inputs", "conv_value", "value")
    ),
}


def filled(text: str) -> str:
    """The page with updated commands and nests.

    Raises:
        ValueError: it shows other kernels than :data:`KERNELS`, or in another order.
    """
    marks = MARK.findall(text)
    if marks != list(KERNELS):
        raise ValueError(f"the page shows {marks}, not {list(KERNELS)}")
    for name in marks:
        text = replaced(text, f"kernel {name}", _nest(KERNELS[name]))
    return text


def _nest(shown: Shown) -> str:
    commands, program = _scheduled(shown)
    blocks = ["\n".join(f"s.{command}" for command in commands), touching(program, shown.buffers)]
    return "\n\n".join(f"```python\n{block}\n```" for block in blocks)


@cache
def _scheduled(shown: Shown) -> tuple[list[str], Program]:
    """The commands on a phase and on layouts that were applied, and the nests before memory is addressed."""
    net, layers = shown.declare()
    with Memos() as memos, KeptSchedules(memos, TARGET) as kept:
        programs = differentiate(net.graph, lower_layers(net.graph, net.batch_size))
        plan = make_plan(net.graph, programs, kept)
        item = next(
            item
            for item in plan.scheduled
            if item.unit.members[-1].name == layers[-1] and shown.phase in item.result.stages
        )
        stages = item.stages(shown.phase, plan.state, TARGET)
    physical = next(index for index, stage in enumerate(stages) if stage.name == "physical")
    program = stages[physical - 1].program
    # The layers of a chain share layouts: each is said once.
    commands = [
        command
        for index, command in enumerate(program.commands)
        if command.split("(")[0] not in LAYOUT_COMMANDS or command not in program.commands[:index]
    ]
    return commands, program


def with_loops(text: str) -> str:
    """The page with updated instructions of the innermost loops."""
    for name, shown in KERNELS.items():
        text = replaced(text, f"loops {name}", "\n\n".join(_loops(shown)))
    return replaced(text, "machine", machine())


def _loops(shown: Shown) -> Iterator[str]:
    """The innermost loops of a kernel that compute with whole vectors, one of each kind of counts."""
    net, layers = shown.declare()
    net.compile(target=TARGET.name)
    wanted = (layers[-1], shown.phase)
    kernel = next(kernel for kernel in net.executable.compiled if (kernel.ensemble.name, kernel.phase) == wanted)
    alike: dict[tuple[Counts, int], list[list[str]]] = {}
    for loop in innermost_loops(instructions(kernel.built.path, kernel.built.name)):
        found = counts(loop)
        if found.multiply_adds >= FEWEST:
            alike.setdefault((found, sum("vmovnt" in text for text in loop)), []).append(loop)
    for (found, past), (loop, *others) in alike.items():
        cut = len(loop) > FIRST + LAST
        lines = [*loop[:FIRST], f"…  {len(loop) - FIRST - LAST} more", *loop[-LAST:]] if cut else loop
        listing = "\n".join(re.sub(r" <.*>$", "", line) for line in lines)
        like = f" ({len(others)} more like this one)" if others else ""
        stores = f", {past} vectors stored past the caches" if past else ""
        yield f"{found}{stores}{like}:\n\n```text\n{listing}\n```"


if __name__ == "__main__":
    PAGE.write_text(with_loops(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
