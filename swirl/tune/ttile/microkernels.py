"""Micro-kernels: register tiles of a convolution, which of them there are, and which are kept (thesis, section 5.2).

A micro-kernel is ``[U_s, U_r, U_c, U_w, U_h, U_k, V_k]`` inside of a loop along ``c``. ``u_w · u_h · u_k`` vectors are
sums, ``u_r · u_s · u_c · u_k`` vectors are weights. With 32 registers the thesis allows

1. 16 ≤ sums + weights ≤ 36,
2. 14 ≤ sums ≤ 28,
3. 1 ≤ u_w, u_h, u_k, u_c ≤ 16,
4. (u_r, u_s) of (1, 1), (3, 3), (5, 5), (7, 7), or 1 by 3, 5, 7,

which are 1,512 micro-kernels. With another number of registers the bounds of 1 and 2 are scaled by it: with 16 they are
8 to 18 and 7 to 14. Those of 3 and 4 are of the problem, not of the registers, and stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swirl.errors import LatteError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.target.targets import Target
from swirl.tune.candidates import Subject
from swirl.tune.stored import stored
from swirl.tune.ttile.schemes import Scheme, T, U, V

MOST_COPIES = 16
TAPS = ((1, 1), (3, 3), (5, 5), (7, 7), (1, 3), (1, 5), (1, 7))
"""``(u_r, u_s)``."""
REGISTERS = 32
"""For which the thesis prints its bounds."""
KEPT = 0.85
"""Share of the peak from which on a micro-kernel is kept."""
LATENCY = 8
"""Multiply-adds that a core has in flight: two pipes of four cycles. Fewer sums leave it waiting (equation 5.3)."""
CHANNELS = 512
"""Iterations along ``c`` in the thesis."""
REPETITIONS = 2048
"""Of a kernel in a measurement: it then takes much longer than what begins and ends it."""


@dataclass(frozen=True, order=True)
class MicroKernel:
    """A register tile: copies along each dimension of a convolution; along ``k`` in vectors."""

    k: int
    w: int
    h: int = 1
    c: int = 1
    r: int = 1
    s: int = 1

    @property
    def sums(self) -> int:
        """Vectors of sums."""
        return self.w * self.h * self.k

    @property
    def weights(self) -> int:
        """Vectors of weights."""
        return self.r * self.s * self.c * self.k

    @property
    def name(self) -> str:
        """``w6_k2``: copies of 1 are left out but for the vectors."""
        counts = (("s", self.s), ("r", self.r), ("c", self.c), ("h", self.h), ("w", self.w))
        return "_".join([*(f"{dimension}{count}" for dimension, count in counts if count > 1), f"k{self.k}"])

    @classmethod
    def named(cls, name: str) -> MicroKernel:
        """The micro-kernel of a name.

        Raises:
            LatteError: there is none.
        """
        found = re.findall(r"([srchwk])(\d+)", name)
        if not found or "_".join(f"{d}{n}" for d, n in found) != name or len(dict(found)) < len(found):
            raise LatteError(f"{name!r} is not a micro-kernel", way_out="w6_k2 is 6 along w by two vectors along k")
        counts = {dimension: int(count) for dimension, count in found}
        return cls(**{"k": 1, "w": 1, **counts})


def microkernels(registers: int) -> Iterator[MicroKernel]:
    """All micro-kernels for a number of vector registers."""
    least, most = registers * 16 // REGISTERS, registers * 36 // REGISTERS
    fewest, largest = registers * 14 // REGISTERS, registers * 28 // REGISTERS
    counts = range(1, MOST_COPIES + 1)
    for k in counts:
        for w in counts:
            for h in counts:
                if not fewest <= w * h * k <= largest:
                    continue
                for c in counts:
                    for r, s in TAPS:
                        found = MicroKernel(k, w, h, c, r, s)
                        if least <= found.sums + found.weights <= most:
                            yield found


def fitting(registers: int) -> list[MicroKernel]:
    """Those whose sums and weights fit the registers, and keep the pipes busy (equation 5.3): a table where nothing
    was measured."""
    return [
        each
        for each in microkernels(registers)
        if each.sums + each.weights <= registers and each.sums >= min(LATENCY, registers // 2)
    ]


def measured_subject(kernel: MicroKernel, target: Target, channels: int) -> Subject:
    """A convolution of exactly one micro-kernel, along ``c``, many times in one cache.

    Args:
        kernel: that is measured.
        target: what code is made for.
        channels: along ``c``.
    """
    return Subject.alone(_convolution(kernel, target, channels), "forward", (), target)


def channels_in_l1(kernel: MicroKernel, target: Target) -> int:
    """Iterations along ``c`` with which a kernel's data fill at most half of the first cache; 512 at the most, as in
    the thesis, where two vectors of filters already take 64 KB."""
    lanes, bytes_of_float = target.simd_width, 4
    taps, inputs = kernel.r * kernel.s, (kernel.w + kernel.s - 1) * (kernel.h + kernel.r - 1)
    each = bytes_of_float * (taps * kernel.k * lanes + inputs)
    return max(kernel.c, min(CHANNELS, target.l1_bytes // 2 // each) // kernel.c * kernel.c)


def _convolution(kernel: MicroKernel, target: Target, channels: int) -> Program:
    filters = kernel.k * target.simd_width
    text = f"""
for again in range({REPETITIONS}):
    for h in range({kernel.h}):
        for w in range({kernel.w}):
            for k in range({filters}):
                for c in range({channels}):
                    for r in range({kernel.r}):
                        for s in range({kernel.s}):
                            O[h, w, k] += I[h + r, w + s, c] * K[r, s, c, k]
"""
    shapes = {
        "O": (kernel.h, kernel.w, filters),
        "I": (kernel.h + kernel.r - 1, kernel.w + kernel.s - 1, channels),
        "K": (kernel.r, kernel.s, channels, filters),
    }
    buffers = {name: Buffer(f"kernel.{name}", shape, per_item=False) for name, shape in shapes.items()}
    return parse_program(text, buffers, name=f"kernel_{kernel.name}")


def measured_scheme(kernel: MicroKernel, channels: int) -> Scheme:
    """The scheme of :func:`measured_subject`."""
    counts = (("s", kernel.s), ("r", kernel.r), ("c", kernel.c), ("w", kernel.w), ("h", kernel.h), ("k", kernel.k))
    copies = tuple(U(count, dimension) for dimension, count in counts if count > 1)
    loops = (T(channels // kernel.c, "c"),) if channels > kernel.c else ()
    return Scheme((T(REPETITIONS, "again"), *loops, *copies, V("k")))


def operations(kernel: MicroKernel, target: Target, channels: int) -> int:
    """Floating-point operations of a measurement."""
    return 2 * REPETITIONS * kernel.sums * target.simd_width * kernel.r * kernel.s * channels


# --- tables -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class KernelTable:
    """Micro-kernels of a target, on a machine.

    Args:
        target: its name.
        machine: its processor; "" where nothing was measured.
        shares: of the peak that each reaches; those below :data:`KEPT` too, so that a search of them resumes.
        refused: names of those that could not be measured, with the reason.
    """

    target: str
    machine: str
    shares: Mapping[MicroKernel, float]
    refused: Mapping[str, str]

    @property
    def kept(self) -> list[MicroKernel]:
        """Those that reach :data:`KEPT` of the peak, the best first; where none does, those within as much of the
        best one."""
        best = max(self.shares.values(), default=0.0)
        limit = KEPT if best >= KEPT else KEPT * best
        return sorted((k for k, share in self.shares.items() if share >= limit), key=lambda k: (-self.shares[k], k))

    def written(self) -> str:
        """As JSON."""
        shares = {kernel.name: round(share, 4) for kernel, share in sorted(self.shares.items())}
        values = {"target": self.target, "machine": self.machine, "shares": shares, "refused": dict(self.refused)}
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def read(cls, text: str, location: str) -> KernelTable:
        """A table from JSON.

        Raises:
            LatteError: it is damaged.
        """
        try:
            values = json.loads(text)
            shares = {MicroKernel.named(name): float(share) for name, share in values["shares"].items()}
            return cls(str(values["target"]), str(values["machine"]), shares, dict(values.get("refused", {})))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise LatteError(
                f"the table of micro-kernels is damaged: {error}",
                location=location,
                way_out="remove it, and measure again",
            ) from error


def table_file(folder: Path, target: str) -> Path:
    """Where a folder has the table of a target."""
    return folder / f"microkernels_{target}.json"


def load_table(target: Target, machine: str, folders: Sequence[Path]) -> KernelTable:
    """The table of a target: that of this machine in one of the folders; else the one that ships, where its machine has
    the same name; else any of them; else, where nothing was measured, those that fit the registers.

    Args:
        target: what code is made for.
        machine: name of its processor.
        folders: that may have a table, the first one first.

    Raises:
        LatteError: one is damaged.
    """
    paths = (table_file(folder, target.name) for folder in folders)
    every = stored(paths, "swirl.tune.ttile", f"tables/{target.name}.json")
    found = [KernelTable.read(*each) for each in every]
    same = [each for each in found if each.machine == machine and each.kept]
    for each in (*same, *found):
        if each.kept:
            return each
    return KernelTable(target.name, "", dict.fromkeys(fitting(target.registers), 1.0), {})
