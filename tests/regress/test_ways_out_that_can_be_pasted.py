"""Ways out of refusals, pasted into the recipe as they are printed: each is accepted where the refused command stood.
They lacked the phase."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from latte import BatchNormLayer, ConvLayer, MemoryDataLayer, Net, ReLULayer
from latte.errors import CommandError, Refused
from swirl.errors import LatteError
from swirl.schedule.command_log import pasted
from swirl.schedule.recipe import Schedule
from swirl.target.targets import TARGETS
from swirl.transforms import COMMANDS, LAYOUT_COMMANDS
from tests.transforms.test_odd_programs import MAKERS, ODD, Arguments, odd

CALL = re.compile(r"\w+\((?:'|\[|\w+=|\))[^()]*(?:\([^()]*\)[^()]*)*\)?")


def alternatives(way_out: str, called_on: str = "s.") -> Iterator[list[str]]:
    """The lines that each alternative of a way out gives a recipe."""
    for alternative in re.split(rf"; | or (?={re.escape(called_on)}\w+\()", way_out):
        lines = [f"s.{call}" for call in CALL.findall(alternative)]
        if lines:
            yield lines
            if others := re.search(r" \(or (.*)\)", alternative):  # of other loops
                yield from ([re.sub(r"'\w+'\)$", f"{name})", lines[0])] for name in others[1].split(", "))


def schedule_of(name: str, phase: str) -> Schedule:
    return Schedule.alone({phase: odd(name).renamed(f"net.{phase}")}, TARGETS["portable"], "net.")


@pytest.mark.parametrize("command", sorted(set(MAKERS) - set(LAYOUT_COMMANDS)))
def test_after_every_command(command: str) -> None:
    """On odd programs, in each phase: the schedule is as it was before the refused command, and takes the way out."""
    tried = 0
    for number, name in enumerate(ODD):
        for seed in range(2):
            phase = ("forward", "backward", "update")[(number + seed) % 3]
            schedule = schedule_of(name, phase)
            arguments, options = MAKERS[command](Arguments(odd(name), 100 * number + seed))
            try:
                getattr(schedule, command)(phase, *arguments, **options)
            except Refused as refusal:
                way_out = refusal.way_out
            except LatteError:
                continue
            else:
                continue
            for lines in alternatives(way_out or ""):
                again = schedule.copy()
                assert all(f"({phase!r}" in line or line[2:].split("(")[0] in LAYOUT_COMMANDS for line in lines)
                assert all(line in str(way_out) for line in lines) or "(or " in str(way_out)
                exec("\n".join(lines), {"s": again})
                assert [outcome.status for outcome in again.outcomes] == ["applied"] * len(lines)
                tried += 1
    assert tried or command not in ("interchange", "parallelize", "vectorize", "unroll_and_jam", "prefetch")


TEXTS = {
    "split('i', [3]), then vectorize('i', 4)": "s.split('update', 'i', [3]), then s.vectorize('update', 'i', 4)",
    "fuse_layers(), then contract('y')": "s.fuse_layers('update'), then s.contract('update', 'y')",
    "reindex(iy='y + ky') makes each": "s.reindex('update', iy='y + ky') makes each",
    "tile('y', dim=0, factor=4) makes j_inner": "s.tile('y', dim=0, factor=4) makes j_inner",
    "parallelize one of them": "parallelize one of them",
    "s.combination(17, 6) finds it": "s.combination(17, 6) finds it",
    "unroll_and_jam('i', 2); unroll('i', 2)": "s.unroll_and_jam('update', 'i', 2); s.unroll('update', 'i', 2)",
    "distribute makes loops of one sum each": "distribute makes loops of one sum each",
}


@pytest.mark.parametrize("text", TEXTS)
def test_texts(text: str) -> None:
    assert pasted(text, "s.", "update") == TEXTS[text]
    assert pasted(text, "", "update") == TEXTS[text].replace("s.", "") or "combination" in text
    assert pasted(None, "s.", "update") is None


RECIPE = """
def backward(s, target):
    {}
"""


def declared() -> Net:
    net = Net(2, seed=0, keep="all")
    net.force_backward = True
    ConvLayer(net, MemoryDataLayer(net, (3, 8, 8)), num_filters=4, name="conv")
    return net


def test_in_a_file(tmp_path: Path) -> None:
    """As a user would: what the error says goes into the line before the refused one."""
    path = tmp_path / "conv.py"
    path.write_text(RECIPE.format("s.parallelize('backward', 'k')"))
    net = declared()
    net.use_recipe("conv", path)
    with pytest.raises(Refused) as caught:
        net.compile(target="portable", threads=1)
    assert str(caught.value.location).endswith("conv.py:3")
    found = list(alternatives(str(caught.value.way_out)))
    assert found and all(f"({'backward'!r}, " in line for lines in found for line in lines)
    for lines in found[:3]:
        path.write_text(RECIPE.format("\n    ".join(lines)))
        other = declared()
        other.use_recipe("conv", path)
        other.compile(target="portable", threads=1)
        texts = [outcome.command.text for outcome in other.executable.plan.outcomes["conv"]]
        assert {line[2:] for line in lines} <= set(texts)


def test_commands_of_a_layer() -> None:
    """They are pasted after the layer's name."""
    net = declared()
    net["conv"].parallelize("backward", "k")
    with pytest.raises(Refused) as caught:
        net.compile(target="portable", threads=1)
    assert Path(__file__).name in str(caught.value.location) and "s." not in str(caught.value.way_out).split(" ")[0]
    for lines in list(alternatives(str(caught.value.way_out), ""))[:3]:
        other = declared()
        for line in lines:
            exec(f"layer.{line[2:]}", {"layer": other["conv"]})
        other.compile(target="portable", threads=1)


def test_reasons_of_what_was_skipped() -> None:
    schedule = schedule_of("places", "forward")
    schedule.parallelize("forward", "i", optional=True)
    (outcome,) = schedule.outcomes
    assert outcome.status == "skipped"
    for lines in alternatives(outcome.reason.splitlines()[-1]):
        exec("\n".join(lines), {"s": schedule.copy()})


def test_what_inference_does_not_follow() -> None:
    """A way out for inference names it."""
    net = Net(2, seed=0)
    BatchNormLayer(net, MemoryDataLayer(net, (3, 8, 8)), name="norm")
    net["norm"].parallelize("forward", "c")
    net["norm"].unroll_and_jam("forward", "w", 2)
    ReLULayer(net, net["norm"])
    net.compile(target="portable", threads=1)
    for outcome in net.executable.plan.outcomes["norm"]:
        if outcome.reason.startswith("for inference: "):
            for lines in alternatives(outcome.reason.splitlines()[-1], ""):
                assert all("('inference'" in line for line in lines)


def test_there_is_no_command_without_a_method() -> None:
    with pytest.raises(CommandError, match="no command named"):
        schedule_of("steps", "forward").nothing("forward")
    assert set(LAYOUT_COMMANDS) < set(COMMANDS)
