"""Files of layers that are edited while the program runs: what was imported is compiled, or an error names the file.
The text that the file had by the time of compile() was compiled, or another function at the old line."""

from __future__ import annotations

import importlib
import inspect
import itertools
import linecache
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net
from latte.errors import BodyError
from latte.model import sources
from latte.model.body import read_function
from latte.solver import SGD, Solver

pytestmark = pytest.mark.usefixtures("as_lowered")

LAYER = '''
import functools
from latte import Neuron
from latte.ensemble import ActivationEnsemble
from latte.neuron import exp

SLOPE = 3.0


def helper(x, by=2.0):
    return x * by


class Before(Neuron):
    def forward(self):
        self.value = 7.0 * self.input


class Layer(Neuron):
    """A layer."""

    def scaled(self, x):
        return SLOPE * x

    def forward(self):
        """The body."""
        # twice that
        self.value = self.scaled(helper(self.input))
'''
RIGHT = 6.0

NUMBER = itertools.count()
Import = Callable[[str], tuple[ModuleType, Path]]


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> tuple[ModuleType, Path]:
        path = tmp_path / f"layer_{next(NUMBER)}.py"
        path.write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        module = importlib.import_module(path.stem)
        monkeypatch.delitem(sys.modules, path.stem)
        monkeypatch.setitem(sys.modules, path.stem, module)
        return module, path

    return write


def said(kind: Any) -> float:
    """What a layer of a neuron class makes of 1."""
    net = Net(1)
    data = MemoryDataLayer(net, (3,))
    layer = net.init_activation_ensemble(kind, data)
    net.compile(target="portable", threads=1)
    data.set_value(np.ones((1, 3)))
    net.forward()
    return float(layer.get_value()[0, 0])


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


MEANS_THE_SAME = {
    "nothing": ("SLOPE = 3.0", "SLOPE = 3.0"),
    "lines before": ("import functools", "import functools\n\n# more\n# lines\n"),
    "as many lines before as make it another function's": ("class Before(", "\n" * 4 + "class Before("),
    "lines are gone": ("import functools\n", ""),
    "a layer before is gone": (
        "class Before(Neuron):\n    def forward(self):\n        self.value = 7.0 * self.input",
        "",
    ),
    "a comment": ("# twice that", "# twice and again"),
    "a documentation": ('"""The body."""', '"""The body, which was documented."""'),
    "no documentation": ('        """The body."""\n', ""),
    "documentation of a helper": ("    return x * by", '    """Times."""\n    return x * by'),
    "a comment that is not ASCII": ("# twice that", "# zweimal, für ν"),
    "another function": ("7.0 * self.input", "70.0 * self.input"),
    "a number that was looked up": ("SLOPE = 3.0", "SLOPE = 4.0"),
    "a default that was computed": ("by=2.0", "by=20.0"),
    "the name of the class": ("class Layer", "class Other"),
    "a function of the same name": ("class Layer", "class New:\n    def forward(self):\n        pass\n\n\nclass Layer"),
}


@pytest.mark.parametrize("what", MEANS_THE_SAME)
def test_what_was_imported_is_compiled(what: str, imported: Import) -> None:
    module, path = imported(LAYER)
    edit(path, *MEANS_THE_SAME[what])
    assert said(module.Layer) == RIGHT


CHANGED = {
    "a number in a helper's expression": ("x * by", "x * by * 1.0", "helper"),
    "a number": ("self.scaled(helper(self.input))", "2.0 * self.scaled(helper(self.input))", "Layer.forward"),
    "a name": ("SLOPE * x", "SLOP * x", "Layer.scaled"),
    "an operation": ("x * by", "x + by", "helper"),
    "the name of an argument": (
        "def helper(x, by=2.0):\n    return x * by",
        "def helper(y, by):\n    return y * by",
        "",
    ),
    "the name of a method": ("def scaled", "def twice", "Layer.scaled"),
    "a decorator and a number": ("    def scaled(self, x):", "    @functools.cache\n    def other(self, x):", "scaled"),
    "the layer is gone": (LAYER[LAYER.index("class Layer") :], "", "Layer.forward"),
    "not Python": (LAYER[LAYER.index("class Layer") :], "class Layer(Neuron:\n", "Layer.forward"),
    "an open string": ("# twice that", "x = '''", "Layer.forward"),
    "nothing is left": (LAYER, "#\n", "Layer.forward"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_an_error_names_the_file(what: str, imported: Import) -> None:
    module, path = imported(LAYER)
    old, new, name = CHANGED[what]
    edit(path, old, new)
    with pytest.raises(BodyError, match="changed since it was imported") as caught:
        said(module.Layer)
    assert name in str(caught.value) and "run the program again" in str(caught.value)
    file, line = str(caught.value.location).rsplit(":", 1)
    assert file == str(path) and LAYER.splitlines()[int(line) - 1].lstrip().startswith("def ")


BODIES = {  # body → a body that looks alike
    "self.value = 2 * self.input": "self.value = 2.0 * self.input",
    "self.value = 1.0 * self.input": "self.value = True * self.input",
    "self.value = 0.0 - self.input": "self.value = -0.0 - self.input",
    "self.value = self.input - 1.0 - 2.0": "self.value = self.input - (1.0 - 2.0)",
    "self.value = max(self.input, 0.0)": "self.value = max(0.0, self.input)",
    "self.value = self.input if self.input < 2.0 else 1.0": "self.value = self.input if self.input <= 2.0 else 1.0",
    "x = self.input\n        self.value = x": "y = self.input\n        self.value = y",
}


@pytest.mark.parametrize("body", BODIES)
def test_bodies_that_look_alike(body: str, imported: Import) -> None:
    text = f"from latte import Neuron\n\nclass A(Neuron):\n    def forward(self):\n        {body}\n"
    module, path = imported(text)
    edit(path, body, BODIES[body])
    with pytest.raises(BodyError, match="changed since it was imported"):
        read_function(module.A.forward)


def test_times_of_the_file_do_not_matter(imported: Import) -> None:
    module, path = imported(LAYER)
    facts = path.stat()
    edit(path, "7.0 * self.input", "7.5 * self.input")
    os.utime(path, (facts.st_atime, facts.st_mtime + 100))
    assert said(module.Layer) == RIGHT
    module, path = imported(LAYER)
    facts = path.stat()
    edit(path, "x * by", "x + by")  # as many bytes
    os.utime(path, (facts.st_atime, facts.st_mtime))
    with pytest.raises(BodyError, match="changed since"):
        said(module.Layer)


def test_a_file_that_is_gone(imported: Import) -> None:
    module, path = imported(LAYER)
    path.unlink()
    with pytest.raises(BodyError, match=rf"(?s){path}.*is not available.*is it gone"):
        said(module.Layer)


def test_a_file_in_an_encoding_that_it_does_not_have(imported: Import) -> None:
    module, path = imported(LAYER)
    path.write_bytes(LAYER.replace("twice that", "für ν").encode("utf-16"))
    with pytest.raises(BodyError, match=rf"{path}.*(?s:.*)saved in another encoding"):
        said(module.Layer)


def test_a_module_that_is_loaded_again(imported: Import) -> None:
    module, path = imported(LAYER)
    edit(path, "return x * by", "return x * by * by")
    module = importlib.reload(module)
    assert said(module.Layer) == 12.0


def test_code_that_a_tool_has_changed_as_it_was_imported(imported: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    """As typeguard does, which inserts checks. The file is older than the program, so it did not change since."""
    module, _ = imported(LAYER)
    checked = compile("def f(self):\n    assert self\n    self.value = 6.0 * self.input\n", "f", "exec").co_consts[0]
    module.Layer.forward.__code__ = checked.replace(
        co_filename=module.__file__,
        co_firstlineno=module.Layer.forward.__code__.co_firstlineno,
        co_name="forward",
    )
    with pytest.raises(BodyError, match="changed since"):
        read_function(module.Layer.forward)
    sources._first_read.cache_clear()
    monkeypatch.setattr(sources, "_STARTED", float("inf"))
    assert said(module.Layer) == RIGHT


SURROUNDINGS = """
from latte import Neuron

factor = 2.0

def made(factor, other):
    local = other
    class Base(Neuron):
        def part(self, x):
            return factor * x

        def __private(self, x):
            return x + local

        def own(self, x):
            return self.__private(x)

    class Layer(Base):
        @staticmethod
        def twice(x):
            y = x
            return y + y

        def part(self, x):
            return super().part(x) * __other

        def forward(self):
            def inner(): pass
            self.value = self.own(self.part(self.input))

    def unused():
        return Layer
    return Layer

__other = 1.5
class Outer:
    __name = 2.0
    class Inner(Neuron):
        def forward(self): self.value = self.input * factor; x = __class__
        def lines(self, a, *b,
                  **c): return [a * d for d in b if (lambda e: e * factor)(d)]
        async def later(self): pass
if True:
        class Deep(Neuron):
                # comments
            # of all kinds

                def forward(self, /, *, x: int = 3) -> None:
                    global factor
                    \"\"\"
  not indented\"\"\"
                    yield x
"""


def test_functions_in_all_surroundings(imported: Import) -> None:
    """Closures, ``super()``, private names, one line, several: the text by itself gives the code that was imported."""
    for before in ("", "# a line\n"):
        module, path = imported(SURROUNDINGS)
        path.write_text(before + SURROUNDINGS)
        kinds = [module.made(2.0, 3.0), module.made(2.0, 3.0).__mro__[1], module.Outer.Inner, module.Deep]
        functions = [f for kind in kinds for f in vars(kind).values()]
        functions = [f.__func__ if isinstance(f, staticmethod) else f for f in functions]
        functions = [f for f in functions if inspect.isfunction(f)]
        assert len(functions) == 10
        for function in [*functions, module.made]:
            found = sources.source_of(function.__code__, function.__qualname__)
            assert found.definition.name == function.__name__ and "".join(found.lines) in before + SURROUNDINGS
            line = (before + SURROUNDINGS).splitlines()[found.definition.lineno - 1]
            assert f"def {function.__name__}" in line or function is kinds[0].twice


def test_every_function_of_the_library() -> None:
    files = sorted((Path(__file__).parents[2] / "layers").glob("*.py"))
    codes = [code for file in files for code in functions_of(compile(file.read_bytes(), str(file), "exec"))]
    assert len(codes) > 150
    for code in codes:
        assert sources.source_of(code, code.co_name).first == code.co_firstlineno


def functions_of(code: Any) -> list[Any]:
    inner = [each for each in code.co_consts if inspect.iscode(each)]
    own = [each for each in inner if each.co_name.isidentifier() and each.co_flags & inspect.CO_OPTIMIZED]
    return [*own, *(found for each in inner for found in functions_of(each))]


CELL = """
from latte import Neuron
class Cell(Neuron):
    def forward(self):
        self.value = 2.0 * self.input
"""


def test_cells_of_notebooks() -> None:
    """Text that only linecache has, as IPython's; a cell's next run has its own."""
    values = []
    for number in (2.0, 3.0):
        text = CELL.replace("2.0", str(number))
        name = f"<ipython-input-{number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, name, "exec"), scope)
        values.append(said(scope["Cell"]))
    assert values == [2.0, 3.0]
    scope = {"__name__": "__main__"}
    exec(compile(text, "<nowhere>", "exec"), scope)
    with pytest.raises(BodyError, match=r"is not available.*(?s:.*)interactive sessions"):
        said(scope["Cell"])


def test_a_cell_with_a_command_of_ipython() -> None:
    """A text that is not Python as a whole."""
    text = f"%matplotlib inline\n{CELL}"
    linecache.cache["<cell>"] = (len(text), None, text.splitlines(True), "<cell>")
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text.replace("%", "#"), "<cell>", "exec"), scope)
    assert said(scope["Cell"]) == 2.0


STEP = """
from latte.solver import Solver
from latte.solver.settings import Setting

class Mine(Solver):
    learning_rate = Setting(0.1)

    def update(self):
        self.parameter -= self.learning_rate * self.gradient
"""


def test_a_solver(imported: Import) -> None:
    net = Net(2, seed=0)
    FullyConnectedLayer(net, MemoryDataLayer(net, (3,)), 4)
    net.compile(target="portable", threads=1)
    module, path = imported(STEP)
    edit(path, "class", "# a comment\nclass")
    assert isinstance(module.Mine(net), Solver)
    module, path = imported(STEP)
    edit(path, "-= self.learning_rate", "-= 10.0 * self.learning_rate")
    with pytest.raises(BodyError, match=f"{path}.*update.*changed since"):
        module.Mine(net)
    assert SGD(net, 0.1)


MAPPED = """
from latte import Ensemble, Neuron

class Shifted(Neuron):
    def forward(self):
        self.value = self.inputs[0]

def mapping(c):
    return range(c + 1, c + 2)

def loss(net):
    return net
"""


def test_a_mapping_is_called_not_read(imported: Import) -> None:
    module, path = imported(MAPPED)
    edit(path, "c + 1, c + 2", "c, c + 1")
    net = Net(1)
    data = MemoryDataLayer(net, (4,))
    layer = net.init_ensemble(np.full(3, module.Shifted(), dtype=object))
    net.add_connections(data, layer, module.mapping)
    net.compile(target="portable", threads=1)
    data.set_value([[0.0, 1.0, 2.0, 3.0]])
    net.forward()
    assert layer.get_value().tolist() == [[1.0, 2.0, 3.0]]


def test_pickling_keeps_what_was_imported(imported: Import) -> None:
    module, path = imported(
        LAYER.replace("class Layer", "def made():\n  class Layer", 1).replace("\n    ", "\n      ") + "  return Layer\n"
    )
    kind = module.made()
    net = Net(1)
    data = MemoryDataLayer(net, (3,))
    net.init_activation_ensemble(kind, data)
    edit(path, "import functools", "\n\nimport functools")
    kept = pickle.dumps(net)
    edit(path, "self.scaled(", "9.0 * self.scaled(")
    path.unlink()
    again = pickle.loads(kept)
    again.compile(target="portable", threads=1)
    assert again.predict(np.ones((1, 3)))[0, 0] == RIGHT


def test_pickling_does_not_mind_functions_that_are_no_bodies(imported: Import) -> None:
    module, path = imported(MAPPED.replace("from", "import sys\nfrom", 1))
    edit(path, "return net", "return None")
    net = Net(1)
    MemoryDataLayer(net, (3,))
    del sys.modules[module.__name__]
    net.own = module.loss  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(net)).own(3) == 3
