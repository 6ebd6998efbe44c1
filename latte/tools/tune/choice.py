"""Training the choice of schedules for products (AutoMCL, section 3, "Learning to choose schedules"): sizes, what was
measured of them, boosted trees by scikit-learn, and how good they are beside a static choice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import geometric_mean
from typing import Any

import numpy as np

from swirl.errors import CommandError, LatteError
from swirl.tune.automcl.choice import ScheduleChoice, opt_schedule
from swirl.tune.automcl.space import CHOSEN_AMONG
from swirl.tune.automcl.trees import Tree, Trees

SCALES = ((1, 8, 16), (64, 256), (1024, 4096))
"""Small, medium and large extents of the paper's sizes; each dimension has one of them."""
LARGEST = 4096
"""Of the extents that are drawn at random."""
OPERATIONS = 20e9
"""Of a size at the most: larger ones take most of the time, and all their schedules are near the peak."""
LEAST = 2**16
"""Of a size at the least: smaller ones take less than starting threads does."""
DRAWN = 0.25
"""Of the sizes, the share with random extents: the paper has 120 of 458."""
TESTED = 1 / 8
"""Of the sizes, the share that trees are tested with: 10 of 80."""
TOLERANCE = 0.02
"""So near to the best one is also the best (figure 2)."""
TREES, DEPTH, RATE = 60, 3, 0.1
"""Rounds of boosting, the depth of trees, and what each adds: 70 sizes are few."""
FILTERED, ALL, FACTORS, POWERS = "pfactor+filter", "pfactor", "factor", "power"
SPACES = (FILTERED, ALL, FACTORS, POWERS)
"""Spaces of tile sizes: algorithm 1 with the filter and without; TVM's two."""

Size = tuple[int, int, int]
"""M, K and N."""


@dataclass(frozen=True)
class Row:
    """The best of a search for a product.

    Args:
        m, k, n: M, K and N.
        schedule: that was searched.
        space: of tile sizes, one of :data:`SPACES`.
        seconds: of the best that was found.
        default: seconds of the default schedule, in the same races.
        tried, size: configurations that were measured, and that there are.
        misses: the fewest cache misses of the space, by theorem 1.
        target, machine, threads: that it was measured with.
    """

    m: int
    k: int
    n: int
    schedule: str
    space: str
    seconds: float
    default: float
    tried: int
    size: int
    misses: int
    target: str
    machine: str
    threads: int

    @property
    def extents(self) -> Size:
        """M, K and N."""
        return self.m, self.k, self.n

    @property
    def ratio(self) -> float:
        """Its time beside that of the default schedule: times of several races have that in common."""
        return self.seconds / self.default


def sizes(count: int, seed: int = 0) -> list[Size]:
    """Sizes of products as the paper's, in random order: extents of three scales, and some at random.

    Args:
        count: of sizes.
        seed: of the draws.
    """
    random = Random(seed)
    extents = [each for scale in SCALES for each in scale]
    grid = [(m, k, n) for m in extents for k in extents for n in extents if _wanted(m, k, n)]
    random.shuffle(grid)
    drawn: dict[Size, None] = {}
    while len(drawn) < round(count * DRAWN):
        size = random.randint(1, LARGEST), random.randint(1, LARGEST), random.randint(1, LARGEST)
        if _wanted(*size):
            drawn[size] = None
    found = [*drawn, *grid[: count - len(drawn)]]
    random.shuffle(found)
    return found


def _wanted(m: int, k: int, n: int) -> bool:
    return LEAST <= 2 * m * k * n <= OPERATIONS


# --- the file -----------------------------------------------------------------------------------------------
def read_rows(path: Path) -> list[Row]:
    """The rows of a file, of those for one search the last one; none where there is no file. Lines that are damaged are
    left out."""
    found: dict[tuple[Any, ...], Row] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = Row(**json.loads(text))
        except (TypeError, ValueError):
            continue
        found[row.extents, row.schedule, row.space, row.target, row.threads] = row
    return list(found.values())


def add_row(path: Path, row: Row) -> None:
    """Write another row at the end of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def by_size(rows: Sequence[Row], space: str = FILTERED) -> dict[Size, dict[str, Row]]:
    """Size → schedule → row, of one space of tile sizes."""
    found: dict[Size, dict[str, Row]] = {}
    for row in rows:
        if row.space == space:
            found.setdefault(row.extents, {})[row.schedule] = row
    return found


# --- figure 2 -----------------------------------------------------------------------------------------------
def shares_best(table: Mapping[Size, Mapping[str, Row]], misses: bool = False) -> dict[str, float]:
    """Schedule → the share of sizes for which it is the best, or nearly (figure 2).

    Args:
        table: size → schedule → row.
        misses: whether the fewest cache misses are the best, by theorem 1, and not the shortest time.
    """
    counts: dict[str, int] = {}
    for rows in table.values():
        values = {name: float(row.misses) if misses else row.ratio for name, row in rows.items()}
        best = min(values.values())
        for name, value in values.items():
            counts[name] = counts.get(name, 0) + (value <= best * (1 + TOLERANCE))
    return {name: count / len(table) for name, count in counts.items()}


# --- training -----------------------------------------------------------------------------------------------
def split(table: Mapping[Size, Any], seed: int = 0) -> tuple[list[Size], list[Size]]:
    """Sizes to train with, and an eighth of them to test with."""
    every = sorted(table)
    Random(seed).shuffle(every)
    count = max(1, round(len(every) * TESTED))
    return every[count:], every[:count]


def trained(
    table: Mapping[Size, Mapping[str, Row]], schedules: Sequence[str] = CHOSEN_AMONG, seed: int = 0
) -> tuple[ScheduleChoice, list[Size]]:
    """Boosted trees that choose among schedules by the size, trained on a part of a table.

    Args:
        table: size → schedule → row; sizes without one of the schedules are left out.
        schedules: that it chooses among.
        seed: of the split.

    Returns:
        the choice, and the sizes that it was not trained with.

    Raises:
        CommandError: scikit-learn is missing.
        LatteError: the table has too few sizes, or was measured on several machines.
    """
    whole = {size: rows for size, rows in table.items() if set(schedules) <= set(rows)}
    if len(whole) < 8:
        raise LatteError(f"{len(whole)} sizes have all of {', '.join(schedules)}: too few", way_out="measure more")
    made = {(row.target, row.machine, row.threads) for rows in whole.values() for row in rows.values()}
    if len(made) > 1:
        raise LatteError("the rows are of several targets, machines or numbers of threads", way_out="a file for each")
    train, test = split(whole, seed)
    best = [min(schedules, key=lambda name: whole[size][name].ratio) for size in train]
    scores = _classified(np.array(train, dtype=float), best)
    ((target, machine, threads),) = made
    choice = ScheduleChoice(target, machine, threads, scores)
    card = {
        "trained on": len(train),
        "tested on": len(test),
        "of the best, trained": round(quality(whole, train, choice), 4),
        "of the best, tested": round(quality(whole, test, choice), 4),
        **_static(whole, test, schedules),
        "model": f"gradient boosting, {TREES} rounds, depth {DEPTH}, rate {RATE}, seed {seed}",
    }
    return ScheduleChoice(target, machine, threads, scores, card), test


def _static(
    table: Mapping[Size, Mapping[str, Row]], test: Sequence[Size], schedules: Sequence[str]
) -> dict[str, float]:
    """How good the static choice is, where its schedules were measured."""
    if not {opt_schedule(m) for m, _, _ in test} <= set(schedules):
        return {}
    return {"of the best, tested, static": round(quality(table, test, None), 4)}


def _classified(rows: np.ndarray, names: Sequence[str]) -> dict[str, Trees]:
    """Trees for each name, of which those of a row's name give most.

    Raises:
        CommandError: scikit-learn is missing.
    """
    if len(set(names)) == 1:
        return {names[0]: Trees(0.0, ())}
    try:
        from sklearn.ensemble import GradientBoostingClassifier
    except ImportError as error:
        raise CommandError(
            "training needs scikit-learn, which is not installed", way_out="pip install 'latte-swirl[tune]'"
        ) from error
    model = GradientBoostingClassifier(
        n_estimators=TREES, max_depth=DEPTH, learning_rate=RATE, init="zero", random_state=0
    )
    model.fit(rows, list(names))
    known = [str(name) for name in model.classes_]
    columns = [tuple(_converted(each.tree_) for each in column) for column in model.estimators_.T]
    if len(known) == 2:  # one column, for the second name
        return {known[0]: Trees(0.0, ()), known[1]: Trees(0.0, columns[0])}
    return {name: Trees(0.0, trees) for name, trees in zip(known, columns, strict=True)}


def _converted(tree: Any) -> Tree:
    """A tree of scikit-learn's, whose leaves count what a round adds."""
    leaf = tree.children_left < 0
    feature = np.where(leaf, -1, tree.feature)
    # Rows are compared as float32 there: the next whole number is on the same side.
    below, above = np.where(leaf, 0, tree.children_left), np.where(leaf, 0, tree.children_right)
    return Tree(
        feature, np.where(leaf, 0.0, tree.threshold), below, above, np.where(leaf, RATE * tree.value[:, 0, 0], 0.0)
    )


# --- figure 3 -----------------------------------------------------------------------------------------------
def chosen(choice: ScheduleChoice | None, size: Size) -> str:
    """The schedule of a choice; of the static one, where there is none."""
    return opt_schedule(size[0]) if choice is None else choice.choose(*size)


def qualities(
    table: Mapping[Size, Mapping[str, Row]], some: Sequence[Size], choice: ScheduleChoice | None
) -> Iterator[tuple[Size, str, float]]:
    """Size, the schedule that is chosen, and its speed beside that of the best one (figure 3).

    Args:
        table: size → schedule → row.
        some: sizes.
        choice: the trained one; None for the static one (OptSchedule).
    """
    for size in some:
        name = chosen(choice, size)
        yield size, name, min(row.ratio for row in table[size].values()) / table[size][name].ratio


def quality(table: Mapping[Size, Mapping[str, Row]], some: Sequence[Size], choice: ScheduleChoice | None) -> float:
    """The geometric mean of :func:`qualities`."""
    return geometric_mean(share for *_, share in qualities(table, some, choice))
