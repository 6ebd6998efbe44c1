"""What convolution's phases share: blocks of channels, and the sizes of register tiles."""

from swirl.schedule.recipe import Schedule
from swirl.target import Target


def one_tap(s: Schedule, phase: str) -> bool:
    """Whether each output pixel meets one input pixel, in the same place, and an image is one row in memory."""
    same = s.shape("inputs")[1:] == s.shape("value")[1:] and s.extent(phase, "ky") == s.extent(phase, "kx") == 1
    where = s.subscripts(phase, "grad_inputs" if phase == "backward" else "inputs")[-2:]
    moved = any(sign in index for index in where for sign in "*-")  # by a stride, or by zeros around the source
    return same and not moved and not s.rearranged(phase)


def whole_blocks(s: Schedule, phase: str, channels: str, width: int, pairs: bool = False) -> tuple[int, bool]:
    """The number of whole blocks of channels, and whether there is a ragged one: it is separate, and so is an odd one
    from ``pairs``."""
    whole, rest = divmod(s.shape("value" if channels == "k" else "inputs")[0], width)
    inside = range(1, whole + (rest > 0))
    if cuts := sorted({whole, whole - whole % 2 if pairs else whole}.intersection(inside)):
        s.split(phase, f"{channels}_outer", cuts)
    return whole, rest > 0


def sums_of_tile(target: Target) -> int:
    """How many sums a register tile has; the other registers hold weights and a pixel."""
    return target.registers - 4


def divisor(number: int, limit: int) -> int:
    """The largest divisor of a number that is not above a limit."""
    return max(factor for factor in range(1, limit + 1) if number % factor == 0)


def present(s: Schedule, phase: str, *names: str) -> list[str]:
    """Those of the names that are loops of a phase."""
    return [name for name in names if name in s.loops(phase)]


def channel_loops(s: Schedule, phase: str) -> tuple[list[str], list[str]]:
    """The loops over input channels, and those over the channels of a block. Where they are blocked, a loop ``c`` is
    that of another layer in the chain."""
    return (["c_outer"], ["c_inner"]) if "c_outer" in s.loops(phase) else (present(s, phase, "c"), [])


def leave_other_blocks(s: Schedule, target: Target) -> None:
    if s.blocks("inputs") not in ({}, {0: target.simd_width}):
        s.decline(f"the source is in other blocks than {target.simd_width} channels")
