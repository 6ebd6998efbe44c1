"""``latte export``: a trained net as a C++ library with an interface of C."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from latte.explain.showing import amount
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import DataEnsemble
from latte.net import Net
from latte.runtime.evaluation import data_of, outputs
from latte.tools.export.folder import check_folder, write_folder
from latte.tools.export.inference import Arrays, Inference, Tensor, inference_of
from latte.tools.export.learned import Learned, learned
from latte.tools.export.sources import OWN_NAME, TargetCode, texts
from latte.tools.export.weights import weights_file
from latte.tools.net_files import SET, AtLeastOne, Source, load_net, plain_errors
from swirl.build.jit import progress_bar
from swirl.errors import CommandError, DataError, about
from swirl.target.machine import resolve_target, why_not, why_not_made
from swirl.target.targets import TARGETS, Target, get_target

WEIGHTS = "weights.bin"
NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


class _SeveralValues(click.Command):
    """A command whose repeatable options may have several values after one name: ``--batch 1 16``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        repeatable = {
            name: option.type
            for option in self.params
            if isinstance(option, click.Option) and option.multiple and _has_pattern(option.type)
            for name in option.opts
        }
        spelt: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            spelt.append(word)
            if word not in repeatable or not rest:
                continue
            spelt.append(rest.pop(0))
            while rest and _fits(rest[0], repeatable[word]):
                spelt += [word, rest.pop(0)]
        return super().parse_args(ctx, spelt)


def _has_pattern(kind: click.ParamType) -> bool:
    """Whether a word can be told from a file's name: a whole number, or one of some words."""
    return isinstance(kind, (click.IntRange, click.Choice))


def _fits(word: str, kind: click.ParamType) -> bool:
    return word in kind.choices if isinstance(kind, click.Choice) else word.isdigit()


@click.command(cls=_SeveralValues)
@click.argument("file", type=Source)
@click.option("--out", "folder", type=click.Path(path_type=Path), required=True, help="the folder that is written")
@click.option(
    "--batch",
    "batches",
    type=AtLeastOne,
    multiple=True,
    help="the most items that are computed together; of several, a call uses the best; by default the net's",
)
@click.option(
    "--target",
    "targets",
    type=click.Choice(list(TARGETS)),
    multiple=True,
    help="what there is code for; the program takes the best one that its processor runs; by default all",
)
@click.option("--layer", "layers", multiple=True, help="an output; repeatable; by default what net.predict says")
@click.option("--checkpoint", type=Source, help="that net.save has written")
@click.option(
    "--name", default=OWN_NAME, show_default=True, help="of the library, and what all names in its header begin with"
)
@SET
def export(
    file: Path,
    folder: Path,
    batches: Sequence[int],
    targets: Sequence[str],
    layers: Sequence[str],
    checkpoint: Path | None,
    name: str,
    choices: dict[str, Any],
) -> None:
    """Write the net of FILE as a library that needs no Python: C++ sources, a header of C, weights, build files.

    It computes what net.predict does, to the last bit. FILE has a function net() or a module-level net; it is run up to
    the first call that would run a net, so that weights that are trained come from a checkpoint.
    """
    with plain_errors():
        if NAME.fullmatch(name) is None:
            raise CommandError(
                f"{name!r} cannot begin the names of a library",
                way_out="small letters, digits and underscores, a letter first, 31 at the most",
            )
        check_folder(folder)
        made_for = [_target(each) for each in TARGETS if each in (targets or TARGETS)]
        net = load_net(file, choices)
        found = learned(net, checkpoint)
        chosen = [outputs(net.graph, each) for each in layers] or [outputs(net.graph, None)]
        given = _inputs(net, chosen)
        sizes = sorted(set(batches or [net.graph.settings.batch_size]))
        codes = [_code(found, target, sizes, given, chosen) for target in made_for]
        files, identity = texts(name, _title(file, checkpoint), codes, _tensors(given), _tensors(chosen))
        weights = weights_file({code.target.name: code.arrays.section() for code in codes}, identity)
        encoded = {path: text.encode() for path, text in files.items()}
        write_folder(folder, {**encoded, WEIGHTS: weights})
    _tell(folder, codes, given, chosen, len(weights))


def _target(name: str) -> Target:
    """A target, with the caches of this machine if it runs it.

    Raises:
        CommandError: the compiler does not make code for it.
    """
    target = get_target(name)
    if (reason := why_not_made(target)) is not None:
        others = [other.name for other in TARGETS.values() if why_not_made(other) is None]
        raise CommandError(f"--target {name}: {reason}", way_out=f"--target {' '.join(others)}")
    return target if why_not(target) is not None else resolve_target(name)


def _inputs(net: Net, chosen: Sequence[Ensemble]) -> list[DataEnsemble]:
    """The data layers that outputs depend on.

    Raises:
        DataError: an output has no value for each item, depends on no data, or is asked for twice.
    """
    for layer in chosen:
        if not layer.batched:
            raise DataError(
                f"{layer.name} has one value for a whole batch: a program gives one for each item",
                way_out="--layer with the name of a layer below it",
            )
    names = [layer.name for layer in chosen]
    if twice := next((each for each in names if names.count(each) > 1), None):
        raise CommandError(f"--layer {twice} is given twice", way_out="give it once")
    needed = {id(layer) for output in chosen for layer in data_of(net.graph, output)}
    found = [layer for layer in net.graph.data() if id(layer) in needed]
    if not found:
        raise DataError(
            f"{', '.join(names)} depends on no data layer: there is nothing to compute",
            way_out="MemoryDataLayer(net, shape)",
        )
    return found


def _code(
    found: Learned, target: Target, sizes: Sequence[int], given: Sequence[DataEnsemble], chosen: Sequence[Ensemble]
) -> TargetCode:
    arrays = Arrays()
    plans = []
    for size in sizes:
        what = f"{target.name}, {_counted(size, 'item')}"
        shown = progress_bar(f"scheduling for {what}") if sys.stderr.isatty() else nullcontext()
        with about(what), shown as bar:
            plans.append(inference_of(found, size, target, given, chosen, arrays, bar))
    return TargetCode(target, plans, arrays)


def _tensors(layers: Sequence[Ensemble]) -> list[Tensor]:
    specs = [(layer, layer.fields()["value"]) for layer in layers]
    return [Tensor(layer.name, spec.dtype, tuple(layer.shape), spec.below) for layer, spec in specs]


def _title(file: Path, checkpoint: Path | None) -> str:
    """What the header says first; no path of this machine is in it."""
    return _comment(f"The net of {file.name}" + (f" as in {checkpoint.name}." if checkpoint else "."))


def _comment(text: str) -> str:
    """A text that a comment of C can hold."""
    return text.replace("*/", "* /").replace("\n", " ")


def _tell(
    folder: Path, codes: Sequence[TargetCode], given: Sequence[Ensemble], chosen: Sequence[Ensemble], nbytes: int
) -> None:
    """What has been written."""
    for what, layers in (("inputs", given), ("outputs", chosen)):
        shown = (f"{layer.name} {' × '.join(map(str, layer.shape))}" for layer in layers)
        click.echo(f"{what:8} {', '.join(shown)}")
    for code in codes:
        plans = ", ".join(f"{_counted(len(plan.steps), 'kernel')} for {_items(plan)}" for plan in code.plans)
        weights, memory = (amount(each, "B") for each in (code.arrays.weight_bytes, code.arrays.memory_bytes))
        click.echo(f"{code.target.name:8} {plans}; weights {weights}, memory of a model {memory}")
    for plan in codes[0].plans:
        if plan.whole:
            click.echo(f"{_items(plan)} and no other number: {plan.whole}")
    click.echo(f"wrote    {folder}: sources, and {WEIGHTS} of {amount(nbytes, 'B')}; cd {folder} && make && ./main")


def _items(plan: Inference) -> str:
    return _counted(plan.batch_size, "item")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
