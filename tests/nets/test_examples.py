"""The examples run and keep what they promise; the README's first block is the first example."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from latte import ConvLayer, MemoryDataLayer, Net
from tests.codegen.test_machine_code import target_named

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]

# Runs a script as `python script` does, then writes as JSON what the script's variables of these names hold.
RUN = """
import json, runpy, sys
facts = runpy.run_path(sys.argv[1], run_name="__main__")
report, history, test = facts["report"], facts["history"], facts["test"]
print("\\n" + json.dumps({
    "compiled": report.compiled, "kernels": report.kernels, "seconds": report.compiler_seconds,
    "losses": history.losses, "accuracy": test.accuracy, "items": test.items,
}))
"""


def run(*arguments: str, folder: Path) -> str:
    """Run Python in ``folder``; what it printed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def example(name: str) -> str:
    return str(ROOT / "examples" / name)


def smaller(name: str, text: str, less: str, folder: Path) -> str:
    """A copy of the example that asks for less in this place, for fewer kernels and steps."""
    script = Path(example(name)).read_text(encoding="utf-8")
    assert text in script
    (folder / name).write_text(script.replace(text, less), encoding="utf-8")
    return str(folder / name)


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_readme_begins_with_the_first_example():
    """The block is the script without its docstring."""
    script = Path(example("01_digits_cnn.py")).read_text(encoding="utf-8")
    body = script.split('"""', 2)[2].strip()
    assert python_blocks(ROOT / "README.md")[0].strip() == body


def test_the_readme_shows_the_recipe_of_the_third_example():
    recipe = Path(example("recipes/conv_channels.py")).read_text(encoding="utf-8")
    body = recipe.split('"""', 2)[2].strip()
    assert body in [block.strip() for block in python_blocks(ROOT / "README.md")]


def test_the_readme_shows_the_code_of_the_third_example(monkeypatch):
    """All lines, in their order, except those said to be left out."""
    monkeypatch.setenv("SWIRL_TARGET", target_named("avx512", runs=True).name)
    net = Net(64)
    data = MemoryDataLayer(net, (16, 8, 8))
    conv = ConvLayer(net, data, num_filters=32, kernel=3, pad=1)
    net.use_recipe(conv, example("recipes/conv_channels.py"))
    net.compile()
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```cpp\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shown = [line.strip() for line in block.splitlines() if not line.strip().startswith("// …")]
    made = iter([line.strip() for line in str(net.explain(conv, "forward")).splitlines()])
    missing = [line for line in shown if line not in made]  # each search continues after what it has found
    assert len(shown) > 30 and not missing


@pytest.mark.slow
def test_digits_are_learned_and_a_second_run_compiles_nothing(tmp_path):
    """The main job as it is."""
    first, second = (
        json.loads(run("-c", RUN, example("01_digits_cnn.py"), folder=tmp_path).splitlines()[-1]) for _ in range(2)
    )
    assert first["items"] == 360
    assert first["accuracy"] >= 0.98
    assert second["compiled"] == 0
    assert second["kernels"] == first["kernels"] > 0
    assert second["seconds"] > 0  # of the compiler when the cache was cold, kept with the kernels
    assert second["losses"] == first["losses"]  # the same bits
    assert (tmp_path / "out" / "digits_loss.png").stat().st_size > 1000


# One seed of the three, with the layer; the gradient is checked as the script does.
OWN_LAYER = """
import json, runpy, sys
scope = runpy.run_path(sys.argv[1], run_name="own_layer")
print(json.dumps([scope["check_gradient"](), scope["train"](with_contrast=True, seed=0)]))
"""


@pytest.mark.slow
def test_a_layer_of_ones_own_is_differentiated_and_trained(tmp_path):
    script = smaller("02_own_layer.py", "test_size=0.2", "train_size=1440, test_size=300", tmp_path)  # whole batches
    printed = run("-c", OWN_LAYER, script, folder=tmp_path)
    difference, accuracy = json.loads(printed.splitlines()[-1])
    assert difference < 1e-3
    assert accuracy > 0.95


@pytest.mark.slow
def test_a_recipe_of_ones_own_gives_the_same_values_and_a_wrong_one_is_refused(tmp_path):
    printed = run(example("03_own_recipe.py"), folder=tmp_path)
    assert float(re.search(r"differ by (\S+) at most", printed)[1]) < 1e-4
    refused = printed[printed.index("examples/recipes/conv_race.py:5") :].rstrip()
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = page[page.index("examples/recipes/conv_race.py:5") :].split("\n```")[0]
    assert re.sub(r"\d+", "#", refused) == re.sub(r"\d+", "#", shown)  # of other vectors, blocks are of other sizes
    assert "for k_outer in parallel" in printed


# Runs the Python blocks of a page one after the other; what each prints or raises, as JSON. Blocks are files,
# as bodies of layers are read from their files.
BLOCKS = """
import contextlib, io, json, sys
from pathlib import Path
from latte.errors import LatteError

results, scope = [], {"__name__": Path(sys.argv[1]).stem}
for number, block in enumerate(json.loads(Path("blocks.json").read_text(encoding="utf-8"))):
    path = Path(str(number)).absolute() / sys.argv[1]
    path.parent.mkdir()
    path.write_text(block, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            exec(compile(block, str(path), "exec"), scope)
        except LatteError as error:
            print(str(error).replace(f"{path.parent}/", ""))
    results.append(printed.getvalue().strip())
print(json.dumps(results))
"""


@pytest.mark.parametrize(
    ("name", "file"), [("layers.md", "my_layer.py"), ("using.md", "train.py"), ("pytorch.md", "train.py")]
)
def test_a_page_is_true(name, file, tmp_path):
    if name == "pytorch.md":
        pytest.importorskip("torch")
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.count("```python")
    (tmp_path / "blocks.json").write_text(json.dumps([code for code, _ in blocks]), encoding="utf-8")
    results = json.loads(run("-c", BLOCKS, file, folder=tmp_path).splitlines()[-1])
    assert results == [expected.strip() for _, expected in blocks]


@pytest.mark.slow
def test_killed_training_goes_on_to_the_last_bit(tmp_path):
    script = smaller("04_save_and_resume.py", "1500:", "1500:1740", tmp_path)  # whole batches
    text = run(script, folder=tmp_path)
    assert "ended by signal 9" in text
    assert "equal to the last bit: True" in text


@pytest.mark.slow
def test_a_residual_net_learns(tmp_path):
    text = run(smaller("05_residual_net.py", "EPOCHS, BATCH = 15", "EPOCHS, BATCH = 6", tmp_path), folder=tmp_path)
    (accuracy,) = re.findall(r"test accuracy +([\d.]+)% of 270 images", text)
    assert float(accuracy) >= 97


@pytest.mark.slow
def test_a_layer_in_pytorch_trains(tmp_path):
    pytest.importorskip("torch")
    text = run(smaller("07_layer_in_pytorch.py", "epochs: int = 10", "epochs: int = 3", tmp_path), folder=tmp_path)
    assert float(re.findall(r"accuracy ([\d.]+)%", text)[-1]) > 85


@pytest.mark.slow
def test_an_lstm_writes(tmp_path):
    sizes = "STEPS, HIDDEN, EPOCHS = "
    text = run(smaller("06_character_lstm.py", f"{sizes}32, 128, 3", f"{sizes}12, 96, 3", tmp_path), folder=tmp_path)
    alone, learned = map(float, re.findall(r"bits a character, .* ([\d.]+)", text))
    assert alone > 4.5
    assert learned < 3
