"""Measured micro-kernels: the table, its picture; ``--method ttile``."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result

from latte.tools.cli import main
from latte.tools.net_files import load_net
from latte.tools.tune import kernels as module
from latte.tools.tune.schemes import with_schemes
from latte.tools.tune.session import Machine
from latte.tools.tune.subjects import tunables
from swirl.cost.instruction_counts import count_instructions
from swirl.cost.time import Rates
from swirl.errors import LatteError
from swirl.ir.names import with_distinct_names
from swirl.target.machine import processor_name
from swirl.target.targets import TARGETS
from swirl.tune.searches import SEARCHES
from swirl.tune.spaces import Pool
from swirl.tune.ttile import measuring
from swirl.tune.ttile.microkernels import (
    KernelTable,
    MicroKernel,
    channels_in_l1,
    fitting,
    load_table,
    measured_scheme,
    measured_subject,
    operations,
    table_file,
)
from swirl.tune.ttile.schemes import parse_scheme
from swirl.tune.ttile.translation import translated
from tests.support import running_targets

TARGET = running_targets()[0]
FEW = (MicroKernel(1, 4), MicroKernel(1, 2, 2))

NET = """
from latte import ConvLayer, MemoryDataLayer, Net, TanhLayer


def net():
    net = Net(4, seed=1)
    data = MemoryDataLayer(net, (16, 6, 6))
    ConvLayer(net, TanhLayer(net, data), num_filters=32, kernel=3, stride=1, pad=1)
    return net
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["tune", *map(str, arguments)], catch_exceptions=False)


@pytest.mark.parametrize("kernel", [MicroKernel(2, 6), MicroKernel(1, 2, 3, 2, 3, 3)])
def test_a_measurement_is_the_micro_kernel_and_nothing_else(kernel: MicroKernel) -> None:
    target = TARGETS["avx2"]
    channels = channels_in_l1(kernel, target)
    program = translated(measured_subject(kernel, target, channels), measured_scheme(kernel, channels)).program
    nest = with_distinct_names(program.nests[0])
    counts = count_instructions(nest, program.buffers, target.simd_width, target.registers)
    wanted = operations(kernel, target, channels)
    # Long sums have partial sums: each repetition adds its own to those before.
    assert wanted <= 2 * counts.multiply_adds * target.simd_width <= wanted * 1.01
    assert counts.stores <= kernel.sums * 2048
    assert 4 * channels * kernel.r * kernel.s * kernel.k * target.simd_width <= target.l1_bytes // 2


def test_a_table_is_measured_written_resumed_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "microkernels", lambda registers: iter(FEW))
    result = run("--micro-kernels", "--out", tmp_path, "--target", TARGET)
    path = table_file(tmp_path, TARGET)
    assert f"wrote {path}" in result.output.replace("\n", "")
    table = KernelTable.read(path.read_text(), str(path))
    assert set(table.shares) == set(FEW)
    assert all(share > 0 for share in table.shares.values())
    assert (table.target, table.machine, table.refused) == (TARGET, processor_name(), {})

    def never(*_: object) -> object:
        raise AssertionError("measured again")

    monkeypatch.setattr(measuring, "_built", never)
    run("--micro-kernels", "--out", tmp_path, "--target", TARGET, "--resume")
    pytest.importorskip("matplotlib")
    result = run("--plot", tmp_path)
    assert "micro-kernels drawn" in result.output
    assert path.with_suffix(".png").stat().st_size > 1000


def table(machine: str, **shares: float) -> KernelTable:
    return KernelTable("avx2", machine, {MicroKernel.named(name): share for name, share in shares.items()}, {})


def test_kept_are_those_that_reach_most_of_the_peak() -> None:
    assert [k.name for k in table("", w6_k2=0.9, w4_k2=0.84, w4_k3=0.95).kept] == ["w4_k3", "w6_k2"]
    assert [k.name for k in table("", w6_k2=0.5, w4_k2=0.4).kept] == ["w6_k2"]  # of a machine with a slower clock


def test_which_table_is_used(tmp_path: Path) -> None:
    target = TARGETS["avx2"]
    first, second = tmp_path / "tuned", tmp_path / "cache"
    second.mkdir()
    path = table_file(second, "avx2")
    path.write_text(table("this", w6_k2=0.9).written())
    assert [k.name for k in load_table(target, "this", (first, second)).kept] == ["w6_k2"]
    path.write_text(table("this").written())  # nothing measured
    assert load_table(TARGETS["portable"], "this", (first, second)).kept == sorted(fitting(16))
    path.write_text('{"target": "avx2", "shares": {"w6_k2": "fast"}}')
    with pytest.raises(LatteError, match="damaged"):
        load_table(target, "this", (first, second))


def test_phases_with_a_contraction_are_searched_in_schemes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_TARGET", TARGET)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "net.py"
    file.write_text(NET)
    told = run(file, "--method", "ttile", "--dry-run", "--layer", "conv1", "--layer", "tanh1").output
    assert "tanh1 forward has no schemes" in told and "searched by regression" in told
    assert "conv1 forward has no schemes" not in told
    target = TARGETS[TARGET]
    machine = Machine(target, 2, Rates(1e11, 1e11, 5e10, 1e10), 2**25, "", "")
    found, _ = tunables(load_net(file), target, 2, ["conv1"], ["forward"])
    tunable, why = with_schemes(found[0], machine, tmp_path)
    assert not why and tunable.searched_by == "random"
    pool = Pool(tunable.space, target, machine.rates, 2, machine.level3_bytes)
    batch = next(SEARCHES[tunable.searched_by](pool, Random(1)))
    for draw in batch:
        assert str(parse_scheme(draw.point.origin)) == draw.point.origin
        assert tunable.subject.after(draw.point.candidate.commands).key == draw.point.key
    assert len(batch) > 1
