"""The machine code of kernels: found by name, and shown loop by loop with the nests that it comes from."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from latte import BatchNormLayer, ConvLayer, MemoryDataLayer, Net, ReLULayer
from latte.runtime.kernels import CompiledPhase
from latte.tools.bench.assembly import instructions
from latte.tools.cli import main
from latte.tools.nest_assembly import Assembly, assembly_of, paths_of_loops
from swirl.build.compiler import run_program
from swirl.target.targets import TARGETS
from tests.codegen.test_machine_code import target_named

FILE = """
from latte import FullyConnectedLayer, MemoryDataLayer, Net

def net():
    net = Net(3, seed=1)
    layer = MemoryDataLayer(net, (8,))
    for _ in range(3):
        layer = FullyConnectedLayer(net, layer, 8)
    return net
"""


def compiled(target: str) -> Net:
    net = Net(3, seed=1, keep="all")
    layer = ConvLayer(net, MemoryDataLayer(net, (4, 9, 7)), num_filters=16, kernel=3, stride=1, pad=1)
    ReLULayer(net, BatchNormLayer(net, layer))
    net.compile(target=target)
    return net


def phase_of(net: Net, layer: str, phase: str) -> CompiledPhase:
    return next(each for each in net.executable.compiled if (each.unit.name, each.phase) == (layer, phase))


def of(net: Net, layer: str, phase: str) -> Assembly:
    return assembly_of(phase_of(net, layer, phase), net.executable.plan.target)


@pytest.mark.parametrize("target", list(TARGETS))
def test_loops_are_those_of_the_nests(target: str) -> None:
    net = compiled(target_named(target, runs=True).name)
    for item in (phase_of(net, *each) for each in (("conv1", "forward"), ("conv1", "update"), ("relu1", "forward"))):
        found = assembly_of(item, net.executable.plan.target)
        assert [nest.label for nest in found.nests] == [nest.label for nest in item.program.nests]
        assert found.note == ""  # line numbers leave the code as it is
        source = (found.library.parent / "kernel.cpp").read_text().splitlines()
        for loop in (loop for nest in found.nests for loop in nest.loops):
            assert loop.path and loop.line is not None
            assert f"for (int {loop.path[-1]} = " in source[loop.line - 1]
    forward = of(net, "conv1", "forward")
    assert forward.symbol.startswith("kernel_value_")
    busiest = max(forward.nests[0].loops, key=lambda loop: loop.counts.multiply_adds + loop.counts.arithmetic)
    assert busiest.path[0] == "n" and {"y", "c"} <= set(busiest.path)
    if target != "portable":
        assert busiest.counts.multiply_adds >= 3 * 7
        spills = [loop.counts.spills for nest in forward.nests for loop in nest.loops]
        assert spills == [0] * len(spills)


def test_spills_are_counted() -> None:
    """Forty sums do not fit into 32 registers."""
    target_named("avx512", runs=True)
    net = Net(2, seed=1)
    layer = ConvLayer(net, MemoryDataLayer(net, (16, 4, 40)), num_filters=16, kernel=1, stride=1, pad=0)
    layer.tile("value", 0, 16)
    layer.tile("weights", 0, 16)
    layer.reorder("forward", ["y", "c", "x", "k_inner"])
    layer.vectorize("forward", "k_inner", 16)
    layer.unroll("forward", "x", 40)
    net.compile(target="avx512")
    loops = of(net, "conv1", "forward").nests[0].loops
    busiest = max(loops, key=lambda loop: loop.counts.multiply_adds)
    assert busiest.counts.multiply_adds >= 40 and busiest.counts.spills >= 8
    assert f"{busiest.counts.spills} spills" in str(busiest)


def test_a_kernel_is_found_by_its_name() -> None:
    """In the table of symbols that ``perf`` and ``gdb`` read; equal layers share one."""
    target_named("portable")
    net = compiled("portable")
    for item in net.executable.compiled:
        symbols = run_program(["objdump", "--syms", str(item.built.path)]).stdout
        (line,) = [line for line in symbols.splitlines() if line.endswith(f" {item.built.name}")]
        assert " F .text" in line and instructions(item.built.path, item.built.name)
    names = {f"{item.unit.name}.{item.phase}": item.built.name for item in net.executable.compiled}
    assert names["relu1.backward"].startswith("kernel_grad_inputs_")
    assert "grad_weights" in names["conv1.update"]
    assert names["relu1.forward"] == names["relu1.inference"]


def test_lines_of_loops() -> None:
    source = textwrap.dedent("""\
        void kernel(void *const *buffers) {
            #pragma omp for collapse(2)
            for (int n = 0; n < 8; n++) {
                for (long long k = 0; k < 4; k++)  {
                    y[n][k] = 0.0f;
                }
                float t = 1.0f;
            }
            z[0] = 1.0f;
        }
        """)
    assert paths_of_loops(source) == {
        3: (("n",), 3),
        4: (("n", "k"), 4),
        5: (("n", "k"), 4),
        6: (("n",), 3),
        7: (("n",), 3),
    }


# --- the command line ---------------------------------------------------------------------------------------
def call(tmp_path: Path, *options: str) -> Result:
    file = tmp_path / "net.py"
    file.write_text(FILE)
    return CliRunner().invoke(main, ["show", str(file), "--target", "portable", *options])


def test_show_assembly(tmp_path: Path) -> None:
    target_named("portable")
    shown = call(tmp_path, "--layer", "fully_connected1", "--assembly")
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert lines[0].startswith("fully_connected1.inference: kernel_value_") and lines[1].endswith("kernel.so")
    assert "fully_connected1_inference_0" in lines and "fully_connected1_update_0" in lines
    assert any(" instructions: 0 multiply-adds, " in line and line.endswith(" spills") for line in lines)
    (same,) = [line for line in lines if line.startswith("fully_connected1.forward")]
    assert same.endswith(", the kernel of fully_connected1.inference")
    one = call(tmp_path, "--layer", "fully_connected1", "--phase", "update", "--assembly")
    assert "fully_connected1.update" in one.output and "fully_connected1.forward" not in one.output


def test_show_kernels(tmp_path: Path) -> None:
    every = call(tmp_path, "--kernels")
    assert every.exit_code == 0, every.output
    (line,) = [line for line in every.output.splitlines() if "fully_connected2.forward" in line]
    name, users = line.split("  ")
    assert name.startswith("kernel_value_")
    assert {f"fully_connected{number}.forward" for number in (1, 2, 3)} < set(users.split(", "))  # they are equal
    one = call(tmp_path, "--kernels", "--layer", "fully_connected2", "--phase", "backward")
    assert one.output.splitlines()[0].endswith("  fully_connected2.backward") and len(one.output.splitlines()) == 2


def test_wrong_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = call(tmp_path, "--assembly")
    assert alone.exit_code == 1 and "--recipe and --assembly are about one layer" in alone.output
    both = call(tmp_path, "--layer", "fully_connected1", "--assembly", "--list")
    assert both.exit_code == 1 and "--assembly and --kernels show different things" in both.output
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *more: None if name == "objdump" else which(name, *more))
    missing = call(tmp_path, "--layer", "fully_connected1", "--assembly")
    assert missing.exit_code == 1 and missing.output.startswith(
        "Error: objdump is not installed\n  it is a part of binutils"
    )
