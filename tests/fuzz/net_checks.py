"""What must hold for every random net: the results are those of PyTorch, whatever the recipes, target and batch."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import latte.runtime.kernels
from latte.compiling import compile_graph
from latte.net import Net
from swirl.codegen.context import Unsupported
from swirl.errors import CommandError, DataError, LayoutError
from swirl.run.runner import Runner
from swirl.target.machine import why_not
from swirl.target.targets import get_target
from tests.fuzz.net_cases import Declared, NetCase, declare
from tests.fuzz.net_reference import Arrays, Expected, expected, readable
from tests.items_of import poison

PLAIN = "def forward(s, target):\n    pass\n"
"""A recipe that does nothing."""


class NetRefused(Exception):
    """One of the case's own recipes does not apply."""


def problem_of_net(case: NetCase, way: str, optimize: str = "-O0", *, keep: bool = False) -> str | None:
    """What is wrong with a net on a target (``avx512``), or without any recipe (``plain``); None where nothing is.

    The first word is ``differs``, or the kind of an exception.

    Args:
        case: the net.
        way: it is run.
        optimize: the C++ compiler's optimisation flag.
        keep: whether its kernels stay in the cache: other processes may use them.

    Raises:
        NetRefused: one of the case's own recipes is refused.
    """
    try:
        wanted = expected(case, declare(case))
        got = computed(case, wanted, way, optimize, keep)
    except NetRefused:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        words = str(error).splitlines() or [""]
        return f"{type(error).__name__}: {words[0]} at {frame.name}, {Path(frame.filename).name}:{frame.lineno}"
    found = difference(case, wanted, got)
    return found and f"differs: {found}"


def assert_net(case: NetCase, way: str) -> None:
    """The net computes what it must, optimised as kernels are; where the target cannot run, it is compiled."""
    target = get_target("portable" if way == "plain" else way)
    if reason := why_not(target):
        with tempfile.TemporaryDirectory() as folder:
            compile_graph(declare(case, Path(folder)).net.graph, case.batch, target, Runner(1))
        pytest.skip(f"{way}: compiled, not run: {reason}")
    problem = problem_of_net(case, way, "-O3", keep=True)
    assert problem is None, f"{way}: {problem}"


def computed(case: NetCase, wanted: Expected, way: str, optimize: str, keep: bool) -> Arrays:
    """Everything that can be read of a net: after each run, after another backward, and after inference."""
    with tempfile.TemporaryDirectory() as name, _building(optimize):
        folder = Path(name)
        plain = folder / "plain.py"
        plain.write_text(PLAIN)
        declared = declare(case, folder, plain if way == "plain" else None)
        net = declared.net
        try:
            net.compile(threads=2, target="portable" if way == "plain" else way)
            found = _run(case, declared, wanted)
        except Unsupported as error:
            if case.recipes and way != "plain":  # accepted by the commands, as one iteration is parallel to itself
                raise NetRefused(str(error)) from error
            raise
        except (CommandError, LayoutError) as error:
            shipped = any("shipped" in text or "s.recipe(" in text for text in case.recipes.values())
            if way != "plain" and (str(folder) in str(error) or shipped):
                raise NetRefused(str(error)) from error  # a shipped recipe for loops that it does not know
            raise
        finally:
            if not keep:
                _remove_kernels(net)
    return found


def _run(case: NetCase, declared: Declared, wanted: Expected) -> Arrays:
    net, found = declared.net, {}
    for name, values in wanted.inputs.parameters.items():
        net.executable.write(name, values)
    for run, ((data, seeds), labels) in enumerate(zip(wanted.inputs.batches, wanted.inputs.labels, strict=True)):
        net.set_batch(data, *([labels] if declared.labels is not None else []))
        poison(net)
        net.forward()
        if case.classes:
            found[f"{run} loss"] = np.array(net.loss)
        found |= _read(declared, ("value", "state"), f"{run} ")
        if not net.executable.order["backward"]:  # no parameters, and the gradient of the data is not wanted
            continue
        for number, seed in seeds.items():
            with suppress(DataError):  # nothing below has parameters
                declared.layers[number].set_grad(seed)  # type: ignore[attr-defined]
        net.clear_grad()
        net.backward()
        found |= _read(declared, ("grad", "param_grad"), f"{run} ")
        net.backward()
        found |= _read(declared, ("param_grad",), f"{run} twice ")
    net.test()
    return found | _read(declared, ("value",), "tested ")


def _read(declared: Declared, roles: Sequence[str], prefix: str) -> Arrays:
    found = {}
    for layer in declared.layers:
        specs = layer.fields()
        for name, storage in readable(layer).items():
            if specs[name].role in roles:
                with suppress(DataError):  # fused away, or not wanted
                    found[prefix + storage] = getattr(layer, f"get_{name}")()
    return found


def difference(case: NetCase, wanted: Expected, got: Arrays) -> str | None:
    """The first array that differs and where, or None. What must be readable is."""
    for name, array in wanted.values.items():
        gradient = ".grad" in name
        if name not in got:
            if ".grad_" in name or name.endswith("loss") or case.keep == "all" and name.endswith(".value"):
                return f"{name} cannot be read"
            continue
        if gradient and not wanted.sure:
            continue
        found = np.asarray(got[name], np.float64)
        bound = wanted.bounds.get(name, 0.0)
        off = ~(np.abs(found - array) <= bound)  # NaN is off
        if off.any():
            where = tuple(int(i) for i in np.argwhere(off)[0])
            within = f", within {bound:.2g}" if bound else ""
            return f"{name}{list(where)} is {found[where]}, not {array[where]}{within}; {int(off.sum())} of {off.size}"
    return None


# --- compiling ------------------------------------------------------------------------------------------------
@contextmanager
def _building(optimize: str) -> Iterator[None]:
    """Kernels compiled with another optimisation flag; no results of passes are kept."""
    build, memo = latte.runtime.kernels.build, os.environ.get("SWIRL_MEMO")
    latte.runtime.kernels.build = functools.partial(build, optimize=optimize)  # type: ignore[assignment]
    os.environ["SWIRL_MEMO"] = "0"
    try:
        yield
    finally:
        latte.runtime.kernels.build = build
        if memo is None:
            del os.environ["SWIRL_MEMO"]
        else:
            os.environ["SWIRL_MEMO"] = memo


def _remove_kernels(net: Net) -> None:
    """Thousands of kernels, none of them needed again."""
    if net.compiled:
        for built in net.report.built.values():
            shutil.rmtree(built.path.parent, ignore_errors=True)
