"""Names that Python takes and ASCII has not, wherever a user writes one: they mean what the same names in ASCII mean.
A loop of such a name was an internal error of the compiler, dimensions, fields and layers were refused."""

from __future__ import annotations

import importlib
import itertools
import linecache
import pickle
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from latte import Ensemble, FullyConnectedLayer, MemoryDataLayer, Net, ReLULayer
from latte.ensemble import ActivationEnsemble
from latte.errors import CommandError, DeclarationError, LatteError
from latte.neuron import Neuron
from latte.solver import SGD
from latte.tools.cli import main
from swirl.codegen.emit import emit
from swirl.dump.bisect import bisect_stages, dumped_layers, stage_folders
from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program
from swirl.ir.spelling import in_ascii, normalised, text_in_ascii
from swirl.ir.validate import validate
from swirl.schedule.files import read_recipe
from swirl.target.targets import TARGETS, Target
from swirl.transforms import COMMANDS
from tests.support import running_targets
from tests.transforms.test_odd_programs import BUFFERS, MAKERS, ODD, Arguments

# --- commands ------------------------------------------------------------------------------------------------
GREEK = dict(zip("acdijkmnqrsvxy", "αγδικλμνθρσωξψ", strict=True))
KEPT = {"in", "is", "if", "or", "and", "not"}


def greek(value: Any) -> Any:
    """Names of one or two letters in Greek, in a text or an argument."""
    if isinstance(value, str):
        short = re.compile(r"(?<![^\W\d_])[a-z]{1,2}(?![^\W\d_])")
        return short.sub(lambda m: m[0] if m[0] in KEPT else "".join(GREEK.get(c, c) for c in m[0]), value)
    return type(value)(map(greek, value)) if isinstance(value, (list, tuple)) else value


def applied(
    text: str, buffers: dict[str, Buffer], command: str, given: tuple[Any, Any], target: Target
) -> tuple[str | None, str]:
    """The program after a command, and its C++; None where it is refused, nothing where the target has no code."""
    arguments, options = given
    try:
        after = COMMANDS[command](validate(parse_program(text, buffers)), *arguments, **options)
    except LatteError:
        return None, ""
    try:
        return after.text, emit(after, target).source
    except LatteError:
        return after.text, ""


@pytest.mark.parametrize("command", MAKERS)
def test_commands(command: str) -> None:
    """They do not look at the letters of names."""
    buffers = {greek(name): buffer for name, buffer in BUFFERS.items()}
    first, targets = list(MAKERS).index(command), itertools.cycle(TARGETS.values())
    for seed, text in list(enumerate(ODD.values()))[first % 3 :: 3]:
        target = next(targets)
        plain = validate(parse_program(text, BUFFERS))
        arguments, options = MAKERS[command](Arguments(plain, seed))
        words = {"strided", "tail"}
        translated = {key: value if key in words else greek(value) for key, value in options.items()}
        if command == "reindex":
            translated = {greek(key): value for key, value in translated.items()}
        after, code = applied(text, BUFFERS, command, (arguments, options), target)
        other, other_code = applied(greek(text), buffers, command, (greek(arguments), translated), target)
        assert other == (after and greek(after)), f"{command}(*{arguments}, **{options})"
        assert other_code.isascii() and len(other_code.splitlines()) == len(code.splitlines())


# --- layers --------------------------------------------------------------------------------------------------
BODY = """
from latte import Ensemble, Neuron, Param, Field, State
from latte.neuron import exp, given, ones

rate = 0.5

def times(x, factor=2.0):
    part = x * factor
    return part + rate

class Mixed(Ensemble):
    weight = Param("k", shape=(3,), init=ones)
    total = Field("n")
    seen = State("k")

    def own(self, x):
        return exp(-x)

    def forward(self, inputs, other, value, weight, total, seen):
        N, C = inputs.shape
        for i in range(N):
            total[i] = 0.0
            for j in range(C):
                total[i] += inputs[i, j] * inputs[i, j]
        for i in range(N):
            for k in range(4):
                part = self.own(total[i] / 9.0)
                for j in range(3):
                    c = j + 1
                    part += weight[k, j] * times(inputs[i, c]) * other[i, c] if inputs[i, j] > 0.25 else rate
                value[i, k] = part
        for k in range(4):
            seen[k] = 0.0
            for i in range(N):
                seen[k] += value[i, k]
"""
NAMES = {
    "Greek": {
        "rate": "ρυθμός", "times": "φορές", "factor": "παράγων", "part": "μέρος", "Mixed": "Μείγμα", "weight": "βάρος",
        "total": "Σ", "seen": "ίδε", "own": "δικό", "other": "άλλο", "N": "Ν", "C": "Γ", "i": "ι", "j": "ξ", "k": "κ",
        "c": "χ", "x": "υ",
    },
    "Latin": {
        "rate": "été", "times": "größe", "factor": "façon", "part": "naïve", "Mixed": "Mélange", "weight": "poids_é",
        "total": "Ø", "seen": "œuvre", "own": "à_moi", "other": "ötödik", "N": "Ñ", "C": "Č", "i": "ı", "j": "ĵ",
        "k": "ķ", "c": "ç", "x": "ẍ",
    },
    "of other places": {
        "rate": "скорость", "times": "раз", "factor": "множитель", "part": "часть", "Mixed": "Смесь",
        "weight": "重み", "total": "合計", "seen": "نظر", "own": "自分", "other": "अन्य", "N": "数", "C": "频道",
        "i": "и", "j": "ジ", "k": "ק", "c": "ц", "x": "х",
    },
    "alike in ASCII": {
        "rate": "é", "times": "è", "factor": "ê", "part": "e", "Mixed": "Mixed", "weight": "ν", "total": "nu",
        "seen": "Nu", "own": "ë", "other": "ě", "N": "Ν", "C": "N", "i": "ñ", "j": "n_", "k": "ń", "c": "ņ", "x": "ň",
    },
    "mathematical": {
        "rate": "ϱ", "times": "𝛕", "factor": "𝜑", "part": "𝑝", "Mixed": "𝕄", "weight": "𝑊", "total": "𝚺", "seen": "ℯ",
        "own": "𝔣", "other": "ℎ", "N": "ℕ", "C": "ℂ", "i": "𝑖", "j": "𝑗", "k": "𝑘", "c": "𝚌", "x": "𝒙",
    },
}  # fmt: skip

NUMBER = itertools.count()


def named(names: dict[str, str], text: str) -> str:
    return re.sub(r"\b[a-zA-Z]+\b", lambda word: names.get(word[0], word[0]), text)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    def write(text: str) -> ModuleType:
        monkeypatch.syspath_prepend(tmp_path)
        path = tmp_path / f"schicht_ä_{next(NUMBER)}.py"
        path.write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        module = importlib.import_module(path.stem)
        monkeypatch.delitem(sys.modules, path.stem)
        monkeypatch.setitem(sys.modules, path.stem, module)
        return module

    return write


def declared(module: ModuleType, names: dict[str, str], batch_size: int = 6) -> Net:
    def own(name: str) -> str:
        return names.get(name, name)

    net = Net(batch_size, seed=3, keep="all")
    net.force_backward = True
    first, second = (MemoryDataLayer(net, (4,), name=own(name)) for name in ("x", "other"))
    kind = vars(module)[normalised(own("Mixed"))]
    layer = net.add_ensemble(kind(shape=(4,), dims=(own("k"),), name=own("part"), kind=own("times")))
    net.add_connections(first, layer)
    net.add_connections(second, layer, name=own("other"))
    FullyConnectedLayer(net, layer, 3, name=own("c"))
    return net


def run(net: Net, names: dict[str, str]) -> list[np.ndarray]:
    def own(name: str) -> str:
        return names.get(name, name)

    draw = np.random.default_rng(0)
    for name in ("x", "other"):
        net[own(name)].set_value(draw.normal(size=(6, 4)))
    layer = net[own("part")]
    weight, total, seen = (normalised(own(name)) for name in ("weight", "total", "seen"))
    getattr(layer, f"set_{weight}")(draw.normal(size=(4, 3)))
    net.forward()
    net[own("c")].set_grad(draw.normal(size=(6, 3)))
    net.backward()
    getters = [weight, f"grad_{weight}", total, seen, "value", "grad", f"grad_{normalised(own('other'))}"]
    found = [getattr(layer, f"get_{name}")() for name in getters]
    assert np.array_equal(getattr(layer, f"get_{weight}_view")(), found[0])
    net.test()
    return [*found, net[own("x")].get_grad(), net[own("c")].get_value()]


@pytest.mark.parametrize("target", running_targets())
def test_layers(target: str, written: Callable[[str], ModuleType]) -> None:
    """All that is compiled gives the same bits under each name, and the same C++ apart from names."""
    net = declared(written(BODY), {})
    net.compile(target=target, threads=1)
    expected = run(net, {})
    for names in NAMES.values() if target == "portable" else [NAMES["alike in ASCII"]]:
        other = declared(written(named(names, BODY)), names)
        other.compile(target=target, threads=1)
        for got, wanted in zip(run(other, names), expected, strict=True):
            assert np.array_equal(got, wanted)
        assert all(path.with_name("kernel.cpp").read_bytes().isascii() for path in other.report.built)


@pytest.mark.parametrize("language", ["of other places", "mathematical"])
def test_what_looks_at_names(
    language: str, written: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training, files, copies, other batch sizes, reports, dumps."""
    names = NAMES[language]
    part, c = normalised(names["part"]), normalised(names["c"])
    monkeypatch.setenv("SWIRL_DUMP", str(tmp_path / "dümp"))
    net = declared(written(named(names, BODY)), names)
    net.keep(net[part])
    net.compile(target="portable", threads=1)
    expected = run(net, names)
    folders = [folder for folder in stage_folders(tmp_path / "dümp") if folder.parent.name == part]
    assert {folder.name for folder in folders} >= {"forward", "backward", "update"}
    assert dumped_layers(folders[0]) == {part}
    assert bisect_stages(next(folder for folder in folders if folder.name == "forward")).wrong is None
    monkeypatch.delenv("SWIRL_DUMP")
    explanation = str(net.explain(part))
    assert part in explanation and normalised(names["weight"]) in explanation and part in str(net.summary())
    net.save(tmp_path / "größe.st", solver=SGD(net, 0.1, momentum=0.9))
    other = declared(written(named(names, BODY)), names)
    other.compile(target="portable", threads=1)
    other.load(tmp_path / "größe.st")
    assert f"{part}.{normalised(names['weight'])}" in net.state_dict()
    assert net.state_dict().keys() == other.state_dict().keys()
    copied = pickle.loads(pickle.dumps(net))
    for each in (other, copied):
        for got, wanted in zip(run(each, names), expected, strict=True):
            assert np.array_equal(got, wanted)
    assert other.predict(np.ones((2, 4)), np.ones((2, 4))).shape == (2, 3)
    assert net[c] is net.graph.find(names["c"])


def looped(loop: str, more: Sequence[tuple[Any, ...]] = ()) -> Net:
    text = f"""
class Doubled(Ensemble):
    def forward(self, inputs, value):
        for n in range(inputs.shape[0]):
            for {loop} in range(inputs.shape[1]):
                value[n, {loop}] = 2.0 * inputs[n, {loop}]
"""
    name = f"<test {loop}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {"Ensemble": Ensemble, "__name__": "test"}
    exec(compile(text, name, "exec"), scope)
    net = Net(4)
    layer = net.add_ensemble(scope["Doubled"](shape=(32,), dims=("c",), kind="größe", name="α"))
    net.add_connections(MemoryDataLayer(net, (32,)), layer)
    for command, *arguments in more:
        getattr(layer, command)(*arguments)
    return net


def commands_of(net: Net, name: str = "α") -> list[str]:
    return [outcome.command.text for outcome in net.executable.plan.outcomes[name] if outcome.status == "applied"]


@pytest.mark.parametrize("loop", ["ν", "µ", "μ", "ﬁ", "𝑖", "größe", "grosse", "o\u0308", "日"])
def test_commands_of_layers(loop: str) -> None:
    """By the name as it was written, also where Python's parser has another form of it."""
    net = looped(loop, [("tile_loop", "forward", loop, 16), ("vectorize", "forward", f"{loop}_inner", 16)])
    net.compile(target="portable", threads=1)
    own = normalised(loop)
    assert commands_of(net)[:2] == [f"tile_loop('forward', '{own}', 16)", f"vectorize('forward', '{own}_inner', 16)"]
    net = looped(loop, [("tile_loop", "forward", f"{loop}x", 16)])
    with pytest.raises(CommandError, match=rf"no loop named '{own}x'(?s:.*){own}"):
        net.compile(target="portable", threads=1)


@pytest.mark.parametrize("loop", ["µ", "ﬁ", "größe"])
def test_recipes(loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""
def forward(s, target):
    assert s.extent("forward", "{loop}") == 32 and "{normalised(loop)}" in s.loops("forward")
    s.tile_loop("forward", "{loop}", 16)
    s.reindex("forward", "{loop}_inner", {loop}="15 - {loop}_inner")
    assert s.strides("forward", "{loop}")
"""
    for name in ("größe.py", unicodedata.normalize("NFD", "größe.py")):
        folder = tmp_path / name[-7:]
        folder.mkdir()
        (folder / name).write_text(text, encoding="utf-8")
        net = looped(loop)
        net.use_recipe("größe", folder / name)
        net.compile(target="portable", threads=1)
        expected = commands_of(net)
        assert len(expected) >= 2
        monkeypatch.setenv("LATTE_RECIPES", str(folder))
        net = looped(loop)
        net.compile(target="portable", threads=1)
        assert commands_of(net) == expected
        monkeypatch.delenv("LATTE_RECIPES")


def test_recipes_of_chains(tmp_path: Path) -> None:
    text = "chain = ('größe', 'relu')\n\ndef forward(s, target):\n    s.parallelize('forward', 'n')\n"
    (tmp_path / "größe_relu.py").write_text(text, encoding="utf-8")
    assert read_recipe(tmp_path / "größe_relu.py").chain == ("größe", "relu")
    net = looped("ν")
    ReLULayer(net, net["α"], name="β")
    net.use_recipe(["α", "β"], tmp_path / "größe_relu.py")
    net.compile(target="portable", threads=1)
    assert "parallelize('forward', 'n')" in commands_of(net, "α_β")


def test_the_command_line(tmp_path: Path) -> None:
    text = "from latte import *\nnet = Net(4)\nReLULayer(net, MemoryDataLayer(net, (32,), name='δ'), name='größe')\n"
    (tmp_path / "nätz.py").write_text(text, encoding="utf-8")
    for arguments in (["--layer", "größe", "--recipe"], ["--layer", "gro\u0308ße", "--phase", "forward"], []):
        result = CliRunner().invoke(main, ["show", str(tmp_path / "nätz.py"), *arguments])
        assert result.exit_code == 0 and "größe" in result.output, result.output


class Doubled(Neuron):
    def forward(self) -> None:
        self.value = 2.0 * self.input


REFUSED = {
    "a name that is the batch's": lambda net: Ensemble(Doubled, (3,), dims=("ｎ",)),
    "two that are one": lambda net: Ensemble(Doubled, (3, 4), dims=("ﬁ", "fi")),
    "a word of the language": lambda net: Ensemble(Doubled, (3,), dims=("ｍａｘ",)),
    "not a name": lambda net: Ensemble(Doubled, (3,), dims=("a·b c",)),
    "a sign": lambda net: Ensemble(Doubled, (3,), dims=("∑",)),
    "not a string": lambda net: Ensemble(Doubled, (3,), dims=(3,)),  # type: ignore[arg-type]
    "one string": lambda net: Ensemble(Doubled, (3,), dims="c"),
    "a layer's name twice": lambda net: [ReLULayer(net, net["α"], name=name) for name in ("ﬁ", "fi")],
    "a layer's name that is not one": lambda net: ReLULayer(net, net["α"], name="a→b"),
    "a kind that is a path": lambda net: ActivationEnsemble(Doubled, (3,), kind="../größe"),
    "a kind that is a number": lambda net: ActivationEnsemble(Doubled, (3,), kind=3),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_a_name(what: str) -> None:
    net = looped("ν")
    with pytest.raises(DeclarationError) as caught:
        REFUSED[what](net)
    assert __file__ in str(caught.value.location)


def test_spelling() -> None:
    for name, spelt in {
        "अन्य": "u905u928u94du92f",
        "ν": "nu", "Σ": "Sigma", "ς": "sigma", "ά": "alpha", "größe": "grosse", "naïve": "naive", "x_é": "x_e",
        "日": "u65e5", "plain": "plain", "a.b": "a_b", "Ł": "l", "é1": "e1", "ü_outer": "u_outer",
    }.items():  # fmt: skip
        assert in_ascii(name) == spelt
    text = "{ [ν_a, nu_a, é_a, e_a, ê_a, ν_b, अन्य_a] : 0 <= ν_a < 4 and é_a = nu_a and ê_a = ν_b }"
    spelt = text_in_ascii(text)
    words, others = re.findall(r"[^\[\], <=:{}]+", text), re.findall(r"\w+", spelt)
    assert spelt.isascii() and len(set(zip(words, others, strict=True))) == len(set(words)) == len(set(others))
    assert text_in_ascii("{ [a] }") == "{ [a] }"
