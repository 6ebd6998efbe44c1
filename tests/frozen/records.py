"""The frozen record of a compiled net: its kernels, what they are bound to, outcomes of its commands, its values."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import latte.runtime.kernels
import latte.solver.updates
import swirl.target.machine
from latte.ensemble import DataEnsemble, Ensemble
from latte.errors import LatteError
from latte.net import Net
from latte.solver import SGD
from swirl.errors import DataError
from tests.frozen.specifications import CLASSES, Specification

Record = dict[str, Any]

ROOT = Path(__file__).parents[2]
RECORDS = Path(__file__).parent / "records"

LIBRARY = " ".join(platform.libc_ver())
"""Values depend on its exp and tanh, and on nothing else of the machine: kernels are compiled as written."""


def record(specification: Specification, target: str, texts: dict[str, str] | None = None) -> Record:
    """The record of a net for a target that runs here.

    Args:
        texts: gets the kernels' normalised C++ by their digests.
    """
    texts = {} if texts is None else texts
    with tempfile.TemporaryDirectory() as folder, _compiled_as_it_stands():
        net, seeded = specification.declared(Path(folder))
        found: Record = {}
        try:
            net.compile(target=target, threads=2)
            solver = _solver(net)
            for count in (specification.batch, specification.smaller):
                values = _trained(net, solver, seeded, count)
                found[f"batch of {count}"] = {**_compiled(net, texts), "values": values}
            _drop_repeats(found)
            if solver is not None:
                found["solver"] = _solver_kernels(net, texts)
        except LatteError as error:
            found["error"] = _plain(str(error), folder)
        return found if "error" in found else _with_plain_texts(found, folder)


def _solver(net: Net) -> SGD | None:
    trainable = any(buffer.role == "param_grad" for buffer in net.executable.buffers.values())
    return SGD(net, 0.05, momentum=0.9, weight_decay=0.01) if trainable else None


def _drop_repeats(found: Record) -> None:
    """What is the same for both batch sizes is recorded once."""
    first, *others = found
    for other in others:
        found[other] = {key: value for key, value in found[other].items() if value != found[first][key]}


# --- compiling --------------------------------------------------------------------------------------------
@contextmanager
def _compiled_as_it_stands() -> Iterator[None]:
    """Kernels compiled without optimisation, so that the bits are those of their text, for caches of the nominal size,
    as the machine is not part of a record; no results of passes are kept."""
    modules: tuple[Any, ...] = (latte.runtime.kernels, latte.solver.updates)
    builds, memo = [module.build for module in modules], os.environ.get("SWIRL_MEMO")
    for module, build in zip(modules, builds, strict=True):
        module.build = functools.partial(build, optimize="-O0", contract=False)
    os.environ["SWIRL_MEMO"] = "0"
    with_caches, swirl.target.machine._with_caches = swirl.target.machine._with_caches, lambda target: target
    try:
        yield
    finally:
        swirl.target.machine._with_caches = with_caches
        for module, build in zip(modules, builds, strict=True):
            module.build = build
        os.environ.pop("SWIRL_MEMO") if memo is None else os.environ.update(SWIRL_MEMO=memo)


def _compiled(net: Net, texts: dict[str, str]) -> Record:
    """The kernels in the order of each phase with what they are bound to, the storage, and the commands."""
    executable = net.executable
    kernels = {
        phase: [
            f"{step.unit.name} {step.phase}: {_digest(step.source.source, texts)} of "
            + ", ".join(step.program.buffers[name].name for name in step.source.buffers)
            for step in steps
        ]
        for phase, steps in executable.order.items()
    }
    storage = {
        name: f"{buffer.role} {buffer.dtype} {executable.arrays[name].shape}, {buffer.shape} as {buffer.layout}"
        for name, buffer in sorted(executable.buffers.items())
    }
    commands = {
        unit: [f"{o.status}: {o.command.text}" + (f"\n{o.reason}" if o.reason else "") for o in outcomes]
        for unit, outcomes in executable.plan.outcomes.items()
    }
    notes = {layer: list(told) for layer, told in executable.plan.notes.items() if told}
    return {"kernels": kernels, "storage": storage, "commands": commands, "notes": notes}


def _solver_kernels(net: Net, texts: dict[str, str]) -> list[str]:
    known = {step.source.name for executable in net.session._variants.current.values() for step in executable.compiled}
    found = sorted(built.path for built in net.report.built.values() if built.name not in known)
    return sorted({_digest((path.parent / "kernel.cpp").read_text(), texts) for path in found})


# --- values -----------------------------------------------------------------------------------------------
def _trained(net: Net, solver: SGD | None, seeded: list[Ensemble], count: int) -> dict[str, str]:
    """Digests of everything that can be read after three steps, and of the loss after them and after inference."""
    generator = np.random.default_rng(count)
    found = {}
    for _ in range(3):
        net.set_batch(*(_random(net, generator, layer, count) for layer in net.graph.data()))
        net.executable.pin_all()  # every value is compared
        net.forward()
        if not net.executable.order["backward"]:
            break
        tops = [e for e in net.ensembles if e.batched and not net.graph.readers(e) and not isinstance(e, DataEnsemble)]
        for layer in net.ensembles:
            if layer in seeded or layer in tops:
                with suppress(DataError):  # nothing below has parameters
                    layer.set_grad(generator.normal(size=(count, *layer.shape)))
        net.clear_grad()
        net.backward()
        if solver is not None:
            solver.step()
    found["loss"] = float(net.loss).hex()
    for name in sorted(net.executable.buffers):
        with suppress(DataError):  # fused away
            found[name] = hashlib.sha256(net.executable.read(name).tobytes()).hexdigest()[:12]
    net.test()
    return {**found, "tested": float(net.loss).hex()}


def _random(net: Net, generator: np.random.Generator, layer: Ensemble, count: int) -> np.ndarray:
    if any(edge.is_label for edge in net.graph.readers(layer)):
        return generator.integers(0, CLASSES, (count, *layer.shape))
    return generator.normal(size=(count, *layer.shape))


# --- texts ------------------------------------------------------------------------------------------------
WORD = re.compile(r"[A-Za-z_]\w*")
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*(?:[eE][-+]\d+f?)?|\S")
KEPT = re.compile(
    r"_\w*|void|const|float|double|int|bool|char|long|unsigned|signed|short|auto|for|while|if|else|return|static|inline"
    r"|template|typename|struct|extern|true|false|nullptr|size_t|u?int\d+_t|std"
)
"""Words that mean the same in every kernel: of the language, and the compiler's own types and functions."""


def normalised(source: str) -> str:
    """C++ up to consistent renaming of what it declares, without comments; its first line tells the flags."""
    first, _, _ = source.partition("\n")
    flag = first if first.startswith("// no load") else ""
    names: dict[str, str] = {}
    lines = [flag]
    for line in re.sub(r"//[^\n]*", "", source).splitlines():
        if line.lstrip().startswith("#"):
            lines.append(line.strip())
        else:
            lines.append(" ".join(_renamed(token, names) for token in _tokens(line)))
    return "\n".join(line for line in lines if line)


def _tokens(line: str) -> list[tuple[str, bool]]:
    """The tokens of a line, and whether each is called."""
    return [(found.group(), line[found.end() :].startswith("(")) for found in TOKEN.finditer(line)]


def _renamed(token: tuple[str, bool], names: dict[str, str]) -> str:
    word, called = token
    if not WORD.fullmatch(word) or KEPT.fullmatch(word) or (called and not word.startswith("kernel_")):
        return word
    return names.setdefault(word, f"v{len(names)}")


def _digest(source: str, texts: dict[str, str]) -> str:
    text = normalised(source)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    texts[digest] = text
    return digest


def _with_plain_texts(found: Any, folder: str) -> Any:
    if isinstance(found, dict):
        return {key: _with_plain_texts(value, folder) for key, value in found.items()}
    if isinstance(found, list):
        return [_with_plain_texts(value, folder) for value in found]
    return _plain(found, folder)


def _plain(text: str, folder: str) -> str:
    """Without what depends on the machine, and without line numbers."""
    return re.sub(r"(\.py):\d+", r"\1", text.replace(folder, "folder").replace(f"{ROOT}/", ""))


# --- kept -------------------------------------------------------------------------------------------------
def read_records(target: str) -> Record:
    """The frozen records of a target: ``records`` by specification, and the ``library`` of the values."""
    path = RECORDS / f"{target}.json.gz"
    empty: Record = {"library": LIBRARY, "records": {}}
    found: Record = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else empty
    return found


def write_records(target: str, found: Record) -> None:
    """Freeze the records of a target."""
    RECORDS.mkdir(exist_ok=True)
    text = json.dumps(found, indent=1, ensure_ascii=False)
    (RECORDS / f"{target}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
