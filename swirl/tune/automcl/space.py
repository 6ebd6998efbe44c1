"""AutoMCL's schedules of a phase as a space: a schedule and tile sizes, listed before their programs are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from swirl.errors import CommandError, LatteError
from swirl.schedule.command_log import Recorded
from swirl.tune.automcl.complexity import CONVOPT, DNMM332, LPMM, RPMMV, TMM
from swirl.tune.automcl.convolutions import CONVOLUTIONS, ConvTiling, conv_recipe, conv_space
from swirl.tune.automcl.factors import Filter, Tiling, kept_space
from swirl.tune.automcl.products import product_recipe
from swirl.tune.automcl.roles import Convolution, Product, convolution_of, product_of
from swirl.tune.candidates import Subject
from swirl.tune.prepared import prepared, preparing
from swirl.tune.problem import Problem, problem_of
from swirl.tune.spaces import Point

CHOSEN_AMONG = (DNMM332, RPMMV, LPMM, TMM)
"""The schedules for products that the paper found to be best for at least 5 % of its sizes."""
SCHEDULE = "schedule"
"""The knob with its name; the others are sizes, with the paper's names."""
_PRODUCT = {"M_o": "mo", "M_t": "mt", "N_o": "no", "N_t": "nt", "K_t": "kt"}
_CONVOLUTION = {"OW_t": "owt", "IC_t": "ict", "OC_t": "oct", "unroll_kw": "unroll_kw"}


def tiling_of(configuration: Mapping[str, Any]) -> Tiling | ConvTiling:
    """The sizes of a configuration."""
    if "M_t" in configuration:
        return Tiling(**{field: configuration[name] for name, field in _PRODUCT.items()})
    return ConvTiling(**{field: configuration[name] for name, field in _CONVOLUTION.items()})


def configuration_of(schedule: str, tiling: Tiling | ConvTiling) -> dict[str, Any]:
    """What :func:`tiling_of` is given."""
    names = _PRODUCT if isinstance(tiling, Tiling) else _CONVOLUTION
    return {SCHEDULE: schedule, **{name: getattr(tiling, field) for name, field in names.items()}}


@dataclass(frozen=True)
class Configurations:
    """The schedules of a phase with a product or a convolution.

    Args:
        subject: the phase.
        known: commands of the schedule that it has: its layouts stay, other nests keep what they have. Copies of
            operands are those of AutoMCL's schedules.
        threads: that run it.
        schedules: for products; one, where one was chosen. A convolution has CONVOpt.
        filtered: of tile sizes; by default that of the target.
        listed: the configurations, where they are not those of algorithm 1 that the filter leaves; those whose tiles
            cross the blocks of arrays are left out.

    Raises:
        CommandError: the phase has no contraction that is a product or a convolution; or no sizes are left.
    """

    subject: Subject
    known: tuple[Recorded, ...]
    threads: int
    schedules: tuple[str, ...] = CHOSEN_AMONG
    filtered: Filter | None = None
    listed: Sequence[Mapping[str, Any]] | None = None
    prepared: Subject = field(init=False)
    own: Product | Convolution = field(init=False)
    every: tuple[Mapping[str, Any], ...] = field(init=False)

    def __post_init__(self) -> None:
        known = [command for command in self.known if command.name != "pack"]
        begun = prepared(self.subject, known)
        problem = problem_of(begun.program, begun.target.simd_width)
        own = role_of(problem)
        filtered = self.filtered or Filter.of(begun.target)
        listed = _listed(own, self.schedules, self.threads, filtered) if self.listed is None else self.listed
        every = tuple(each for each in listed if _is_whole(own, each))
        if not every:
            raise CommandError(
                f"no tile sizes fit {self.subject.program.name}: its arrays are blocked otherwise, or no tile fits "
                f"{filtered.lines} cache lines",
                way_out="another method",
            )
        for name, value in (("prepared", begun), ("own", own), ("every", every)):
            object.__setattr__(self, name, value)

    def size(self) -> float:
        """The number of configurations; some of them may be refused."""
        return float(len(self.every))

    def configurations(self) -> Sequence[Mapping[str, Any]]:
        """See :class:`swirl.tune.spaces.ListedSpace`."""
        return self.every

    def at(self, configuration: Mapping[str, Any]) -> Point | None:
        """See :class:`swirl.tune.spaces.ListedSpace`."""
        schedule, tiling = configuration[SCHEDULE], tiling_of(configuration)
        phase, shares = self.subject.phase, self.threads > 1
        if isinstance(tiling, Tiling):
            recipe = product_recipe(schedule, tiling, phase, self.known, shares)
        else:
            recipe = conv_recipe(schedule, tiling, phase, self.known, shares)
        try:
            found = self.prepared.by(recipe)
        except LatteError:
            return None
        before = preparing(self.subject, self.prepared)
        return Point(replace(found, commands=(*before, *found.commands)), configuration, schedule)

    def sample(self, random: Random) -> Point | None:
        """A configuration."""
        return self.at(random.choice(self.every))

    def neighbours(self, point: Point, random: Random) -> Iterator[Point]:
        """Those that differ in one choice; of points from elsewhere, any."""

        def apart(configuration: Mapping[str, Any]) -> int:
            return sum(point.knobs.get(name) != value for name, value in configuration.items())

        near = [each for each in self.every if SCHEDULE not in point.knobs or apart(each) == 1]
        random.shuffle(near)
        for each in near:
            found = self.at(each)
            if found is not None:
                yield found


def role_of(problem: Problem) -> Product | Convolution:
    """A product, or else a convolution.

    Raises:
        CommandError: it is neither.
    """
    try:
        return product_of(problem)
    except CommandError as error:
        try:
            return convolution_of(problem)
        except CommandError as other:
            raise CommandError(f"{error.message}; {other.message}", way_out="another method") from other


def _listed(
    own: Product | Convolution, schedules: Sequence[str], threads: int, filtered: Filter
) -> Iterator[dict[str, Any]]:
    """The configurations that algorithm 1, or the factors of a convolution, begin with, and the filter leaves."""
    for schedule in schedules if isinstance(own, Product) else _of_convolutions(schedules):
        if isinstance(own, Convolution):
            for each in conv_space(schedule, own, filtered):
                yield configuration_of(schedule, each)
        elif schedule not in CONVOLUTIONS:
            m, k, n = own.extents
            for tiling in kept_space(schedule, m, k, n, threads, filtered):
                yield configuration_of(schedule, tiling)


def _of_convolutions(schedules: Sequence[str]) -> Sequence[str]:
    return [each for each in schedules if each in CONVOLUTIONS] or [CONVOPT]


def _is_whole(own: Product | Convolution, configuration: Mapping[str, Any]) -> bool:
    """Whether tiles do not cross the blocks of arrays, and those of a sum that is kept in a local are whole: it cannot
    be interrupted."""
    problem, tiling = own.problem, tiling_of(configuration)
    if isinstance(own, Convolution):
        assert isinstance(tiling, ConvTiling)
        return all(
            _fits(problem, d, size) for d, size in ((own.ow, tiling.owt), (own.ic, tiling.ict), (own.oc, tiling.oct))
        )
    assert isinstance(tiling, Tiling)
    if problem.local and tiling.kt < problem.extents[own.k]:
        return False
    return all(_fits(problem, d, size) for d, size in ((own.m, tiling.mt), (own.n, tiling.nt), (own.k, tiling.kt)))


def _fits(problem: Problem, dimension: str, size: int) -> bool:
    """Whether a tile is of whole blocks, or a part of one."""
    own = problem.loops[dimension]
    if len(own) == 1 or size >= problem.extents[dimension]:
        return True
    blocks = [loop.step for loop in own if loop.step > 1]
    return problem.extents[dimension] % size == 0 and all(size % b == 0 or b % size == 0 for b in blocks)
