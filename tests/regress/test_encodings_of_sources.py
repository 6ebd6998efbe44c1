"""Recipes, layers and dumped stages in all encodings that Python reads: with a byte-order mark, with an encoding line,
with lines of another system. A recipe with a byte-order mark was not Python."""

from __future__ import annotations

import codecs
import importlib
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from latte import MemoryDataLayer, Net, SiLULayer
from latte.errors import RecipeError
from latte.tools.cli import main as cli
from swirl.dump.bisect import bisect_stages, dumped_layers, stage_folders
from swirl.dump.read import read_stage
from swirl.errors import LatteError
from swirl.schedule.files import read_recipe
from swirl.schedule.imports import recipe_sources

RECIPE = """# für die Schleife {sign}
def forward(s, target):
    s.tile_loop("forward", "x", 4)  # {sign}
"""

ENCODED = {
    "UTF-8": ("", "utf-8", "ν"),
    "a byte-order mark": ("", "utf-8-sig", "ν"),
    "a byte-order mark and its name": ("# -*- coding: utf-8 -*-\n", "utf-8-sig", "ν"),
    "latin-1": ("# -*- coding: latin-1 -*-\n", "latin-1", "é"),
    "latin-1 in the second line": (
        "#!/usr/bin/env python3\n# vim: set fileencoding=iso-8859-15 :\n",
        "iso8859-15",
        "€",
    ),
    "of Windows": ("# coding=cp1252\n", "cp1252", "„"),
    "of Japan": ("# coding: shift_jis\n", "shift_jis", "日"),
    "of Russia": ("# coding: koi8-r\n", "koi8-r", "ж"),
    "UTF-16 by its name": ("# coding: utf-8\n", "utf-8", "𝛼"),
}
NEW_LINES = {"Unix": "\n", "Windows": "\r\n", "old Macintosh": "\r"}


def encoded(case: str, text: str, new_line: str = "\n") -> bytes:
    first, encoding, sign = ENCODED[case]
    text = text if encoding.startswith(("utf", "lat", "iso", "cp")) else text.replace("ü", "ue")
    return (first + text.replace("{sign}", sign)).replace("\n", new_line).encode(encoding)


def scheduled(path: Path | str) -> list[str]:
    """The commands that a layer has by a recipe."""
    net = Net(batch_size=4)
    SiLULayer(net, MemoryDataLayer(net, (3, 8)), name="l")
    net.use_recipe("l", path)
    net.compile(target="portable", threads=1)
    return [outcome.command.text for outcome in net.executable.plan.outcomes["l"] if outcome.status == "applied"]


@pytest.mark.parametrize("new_line", NEW_LINES)
@pytest.mark.parametrize("case", ENCODED)
def test_recipes(case: str, new_line: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes(encoded(case, RECIPE, NEW_LINES[new_line]))
    assert list(read_recipe(path).functions) == ["forward"]
    exec(compile(path.read_bytes(), str(path), "exec"), {})  # as Python has it
    if new_line == "Unix":
        assert scheduled(path)[0] == "tile_loop('forward', 'x', 4)"


@pytest.mark.parametrize("case", ENCODED)
def test_what_a_recipe_imports(case: str, tmp_path: Path) -> None:
    """It is found, read again after an edit, and named by errors."""
    helper, other = tmp_path / "sizes.py", tmp_path / "more.py"
    other.write_bytes(encoded(case, "FACTOR = 4  # {sign}\n"))
    helper.write_bytes(encoded(case, "from more import FACTOR  # {sign}\n\ndef by():\n    return FACTOR\n"))
    path = tmp_path / "mine.py"
    text = "from sizes import by  # {sign}\n\ndef forward(s, target):\n    s.tile_loop('forward', 'x', by())\n"
    path.write_bytes(encoded(case, text))
    assert recipe_sources(path) == (path, helper, other)
    assert "tile_loop('forward', 'x', 4)" in scheduled(path)
    other.write_bytes(encoded(case, "FACTOR = 2  # {sign}\n"))
    assert "tile_loop('forward', 'x', 2)" in scheduled(path)
    lines = encoded(case, "").count(b"\n")
    helper.write_bytes(encoded(case, "# {sign}\n1 / 0\n"))
    with pytest.raises(RecipeError, match="ZeroDivisionError") as caught:
        scheduled(path)
    assert str(caught.value.location).endswith(f"sizes.py:{2 + lines}")


@pytest.mark.parametrize("case", ENCODED)
def test_a_folder_of_recipes(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silu.py").write_bytes(encoded(case, RECIPE))
    monkeypatch.setenv("LATTE_RECIPES", str(tmp_path))
    net = Net(batch_size=4)
    SiLULayer(net, MemoryDataLayer(net, (3, 8)), name="l")
    net.compile(target="portable", threads=1)
    applied = [outcome.command.text for outcome in net.executable.plan.outcomes["l"] if outcome.status == "applied"]
    assert "tile_loop('forward', 'x', 4)" in applied


CODE = RECIPE.replace("# {sign}", "; '{sign}'")
UNREADABLE = {
    "latin-1 that is not named": (CODE.replace("{sign}", "é").encode("latin-1"), 1, r"b'\\xfc' is not UTF-8"),
    "in a later line": (b"\n\n\nx = '\xe9'\n", 4, r"b'\\xe9' is not UTF-8"),
    "and in the lines of Windows": (b"\r\n\r\n\r\nx = '\xe9'\r\n", 4, r"b'\\xe9' is not UTF-8"),
    "and of an old Macintosh": (b"\r\r\rx = '\xe9'\r", 4, r"b'\\xe9' is not UTF-8"),
    "UTF-16": (RECIPE.encode("utf-16"), 1, r"b'\\xff' is not UTF-8"),
    "UTF-16 that it names": (b"# coding: utf-16\n", 1, "is not utf-16"),
    "UTF-16 without a mark": (RECIPE.encode("utf-16-le"), 1, "is not UTF-8"),
    "named wrongly": (b"#!/usr/bin/python\n# coding: utf-9\n", 2, "unknown encoding: utf-9"),
    "two names": (codecs.BOM_UTF8 + b"# coding: latin-1\n", 1, "mark of UTF-8, and names latin-1"),
    "not of texts": (b"# coding: rot13\nqrs sbejneq(f, g): cnff\n", 1, "not a text encoding"),
    "numbers": (bytes(range(256)), 3, r"b'\\x80' is not UTF-8"),
    "a library": (b"\x7fELF\2\1\1\0\0\0\0", None, "null bytes"),
    "ASCII, and a letter": (b"# coding: ascii\n\n# \xc3\xa9\n", 3, r"b'\\xc3' is not ascii"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_python_does_not_read(case: str, tmp_path: Path) -> None:
    data, line, words = UNREADABLE[case]
    path = tmp_path / "mine.py"
    path.write_bytes(data)
    with pytest.raises((SyntaxError, ValueError)):
        compile(data, "f", "exec")
    with pytest.raises(RecipeError, match=words) as caught:
        scheduled(path)
    assert caught.value.location == (str(path) if line is None else f"{path}:{line}")
    assert line is None or str(caught.value.way_out).startswith("save it as UTF-8")
    with pytest.raises(LatteError, match=words):  # as a stage
        read_stage(path)


def test_a_comment_that_is_not_text(tmp_path: Path) -> None:
    """Imports of Python take it."""
    path = tmp_path / "mine.py"
    path.write_bytes(RECIPE.replace("{sign}", "é").encode("latin-1"))
    compile(path.read_bytes(), "f", "exec")
    assert scheduled(path)[0] == "tile_loop('forward', 'x', 4)"


NUMBER = itertools.count()
LAYER = """
from latte import Neuron

def helper(x, grosse=2.0):  # {sign}
    return x * grosse

class Layer(Neuron):
    def forward(self):
        # für {sign}
        self.value = helper(self.input)
"""


@pytest.mark.parametrize("new_line", ["Unix", "Windows"])
@pytest.mark.parametrize("case", ENCODED)
def test_layers_and_their_helpers(case: str, new_line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / f"encoded_layer_{next(NUMBER)}.py"
    path.write_bytes(encoded(case, LAYER, NEW_LINES[new_line]))
    importlib.invalidate_caches()
    module = importlib.import_module(path.stem)
    monkeypatch.delitem(sys.modules, path.stem)
    monkeypatch.setenv("LATTE_SCHEDULE", "0")
    net = Net(1)
    data = MemoryDataLayer(net, (3,))
    layer = net.init_activation_ensemble(module.Layer, data)
    net.compile(target="portable", threads=1)
    data.set_value(np.ones((1, 3)))
    net.forward()
    assert layer.get_value().tolist() == [[2.0, 2.0, 2.0]]


NET = """# {sign}
from latte import MemoryDataLayer, Net, ReLULayer
net = Net(2)
ReLULayer(net, MemoryDataLayer(net, (3,)))  # für {sign}
"""


@pytest.mark.parametrize("case", ["a byte-order mark", "latin-1", "of Japan"])
def test_the_command_line(case: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_bytes(encoded(case, NET, "\r\n"))
    assert "relu1" in CliRunner().invoke(cli, ["show", str(path)]).output
    path.write_bytes(b"\n\nx = '\xe9'\n")
    result = CliRunner().invoke(cli, ["show", str(path)])
    assert result.exit_code == 1 and "net.py" in result.output and "SyntaxError" in result.output


def test_stages_that_an_editor_has_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_DUMP", str(tmp_path))
    monkeypatch.setenv("LATTE_SCHEDULE", "0")
    net = Net(batch_size=2)
    SiLULayer(net, MemoryDataLayer(net, (3,)), name="l")
    net.compile(target="portable", threads=1)
    folder = next(folder for folder in stage_folders(tmp_path) if folder.name == "forward")
    first, second, *_ = sorted(folder.glob("*.py"))
    first.write_bytes(codecs.BOM_UTF8 + first.read_bytes().replace(b"\n", b"\r\n"))
    second.write_bytes("# -*- coding: latin-1 -*- für é\n".encode("latin-1") + second.read_bytes())
    assert dumped_layers(folder) == {"l"}
    assert bisect_stages(folder).wrong is None
    second.write_bytes(b"#\n\nx = '\xe9'\n" + second.read_bytes())
    with pytest.raises(LatteError, match=rf"{second}:3: is not text"):
        bisect_stages(folder)
    first.write_bytes(b"#\n\nx = '\xe9'\n")
    with pytest.raises(LatteError, match=rf"{first}:3: is not text"):
        dumped_layers(folder)
