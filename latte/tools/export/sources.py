"""The texts of an exported net: C++ and C from templates, and build files with the flags that kernels are compiled with
in Latte, so that results are the same bits."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from math import prod

import jinja2

from latte.tools.export.inference import Arrays, Inference, Tensor
from latte.tools.export.weights import BLOCK, MAGIC, NAME_BYTES, ORDER, VERSION
from swirl.build.compiler import Compiler
from swirl.build.compiler_flags import BASE_FLAGS, common_flags, flags_for
from swirl.build.libraries import divided
from swirl.build.translation_unit import TranslationUnit
from swirl.target.targets import Target

GNU, CLANG = Compiler(("g++",), "GCC"), Compiler(("clang++",), "clang")
OPTIMISE = "-O3"
OWN_NAME = "latte"
"""What names in the templates begin with."""
FILES_FOR = 8
"""Compilers that may run at once: kernels are in as many files that each has something to do."""
COMMON = frozenset(("-std=c++14", "-fopenmp", "-fPIC", "-shared", OPTIMISE, "-fno-exceptions"))
"""Flags that do not concern kernels alone: the build files say them, or the same of C++17."""


@dataclass(frozen=True)
class TargetCode:
    """What there is for a target.

    Args:
        target: itself.
        plans: inference for each batch size, the smallest first.
        arrays: their weights and memory.
    """

    target: Target
    plans: Sequence[Inference]
    arrays: Arrays

    @cached_property
    def kernels(self) -> dict[str, TranslationUnit]:
        """All kernels by name, in the order in which they run first."""
        return {step.kernel.name: step.kernel for plan in self.plans for step in plan.steps}


@dataclass(frozen=True)
class Group:
    """Flags of files of kernels.

    Args:
        number: of the group.
        gnu, clang: of g++ and of clang++.
        optimise: the variable of the build files that says how the files are optimised.
    """

    number: int
    gnu: tuple[str, ...]
    clang: tuple[str, ...]
    optimise: str


@dataclass(frozen=True)
class SourceFile:
    """A C++ file of a target.

    Args:
        stem: its name without ``.cpp``.
        text: its content.
        vectors: whether only some kind of processor has the instructions.
        group: of its flags, if it has kernels.
    """

    stem: str
    text: str
    vectors: bool
    group: Group | None = None


def texts(
    name: str, title: str, targets: Sequence[TargetCode], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> tuple[dict[str, str], bytes]:
    """The files of an export but for the weights, by their paths, and the identity of the sources.

    Args:
        name: what all names of the interface begin with.
        title: what the header begins with.
        targets: the best one first.
        inputs, outputs: as callers see them.
    """
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], Group] = {}
    files = [file for code in targets for file in _files(name, code, groups)]
    shown = {
        "name": name,
        "upper": name.upper(),
        "title": title,
        "targets": [_of_target(code) for code in targets],
        "targets_text": ", ".join(code.target.name for code in targets),
        "inputs": [_of_tensor(tensor) for tensor in inputs],
        "outputs": [_of_tensor(tensor) for tensor in outputs],
        "inputs_text": _words(inputs),
        "outputs_text": _words(outputs),
        "batch": targets[0].plans[-1].batch_size,
        "vectors": any(file.vectors for file in files),
        "files": files,
        "groups": list(groups.values()),
        "optimise": OPTIMISE,
    }
    tensors = [(tensor.name, tensor.dtype, tensor.shape, tensor.below) for tensor in (*inputs, *outputs)]
    hashed = json.dumps([VERSION, tensors, [[file.stem, file.text] for file in files]])
    identity = hashlib.sha256(hashed.encode()).digest()
    shown["identity"] = list(identity)
    shown["file"] = {
        "magic": list(MAGIC),
        "order": f"{ORDER:#010x}",
        "version": VERSION,
        "block": BLOCK,
        "name_bytes": NAME_BYTES,
    }
    found = {
        f"{name}.h": _rendered(name, "api.h.j2", shown),
        "main.c": _rendered(name, "main.c.j2", shown),
        "Makefile": _rendered(name, "Makefile.j2", shown),
        "CMakeLists.txt": _rendered(name, "CMakeLists.txt.j2", shown),
        "README.md": _rendered(name, "README.md.j2", shown),
        f"src/{name}.cpp": _rendered(name, "model.cpp.j2", shown),
        "src/parts.h": _rendered(name, "parts.h.j2", shown),
        "src/runner.h": (resources.files("swirl") / "codegen" / "templates" / "runner.cpp").read_text("utf-8"),
    }
    return found | {f"src/{file.stem}.cpp": file.text for file in files}, identity


def _files(
    name: str, code: TargetCode, groups: dict[tuple[tuple[str, ...], tuple[str, ...]], Group]
) -> list[SourceFile]:
    """The C++ files of a target: its tables, and its kernels, those with the same flags together.

    Args:
        name: of the export.
        code: of the target.
        groups: flags of g++ and clang++ → the group; new ones are added.
    """
    target, vectors = code.target, bool(code.target.isa_flags)
    alike: dict[Group, dict[str, TranslationUnit]] = {}
    for unit in code.kernels.values():
        gnu, clang = (_flags(unit, compiler, target) for compiler in (GNU, CLANG))
        optimise = "OPTIMISE" if vectors else "OPTIMISE_PORTABLE"
        group = groups.setdefault((gnu, clang), Group(len(groups) + 1, gnu, clang, optimise))
        alike.setdefault(group, {})[unit.name] = unit
    group_of = {kernel: group for group, units in alike.items() for kernel in units}
    tables = _rendered(name, "target.cpp.j2", {"name": name, "target": _of_target(code)})
    found = [SourceFile(target.name, tables, vectors)]
    for number, units in enumerate(divided(list(alike.values()), FILES_FOR), start=1):
        ordered = [units[kernel] for kernel in code.kernels if kernel in units]
        shown = {
            "name": name,
            "target": _of_target(code),
            "headers": sorted({header for unit in ordered for header in unit.headers}, reverse=True),
            "units": [{"name": unit.name, "text": _inside(unit)} for unit in ordered],
        }
        text = _rendered(name, "kernels.cpp.j2", shown)
        found.append(SourceFile(f"{target.name}_{number}", text, vectors, group_of[ordered[0].name]))
    return found


def _flags(unit: TranslationUnit, compiler: Compiler, target: Target) -> tuple[str, ...]:
    """The flags of a kernel that are its own."""
    common = common_flags(compiler, target, True, OPTIMISE, ())
    assert {"-std=c++14", "-fopenmp", "-fPIC", "-shared"} <= set(BASE_FLAGS), "what the build files say otherwise"
    return tuple(flag for flag in flags_for(unit, common) if flag not in COMMON)


def _inside(unit: TranslationUnit) -> str:
    """A kernel's text for a namespace: the linker sees no name that another program could have, too."""
    exported = f'extern "C" void {unit.name}('
    text = unit.without_headers
    assert text.count(exported) == 1, "as the frame of translation units has it"
    return text.replace(exported, f"void {unit.name}(")


def _of_target(code: TargetCode) -> dict[str, object]:
    plans = [
        {
            "batch_size": plan.batch_size,
            "whole": plan.whole,
            "steps": plan.steps,
            "places": sum(len(step.places) for step in plan.steps),
            "sections": plan.sections,
            "inputs": plan.inputs,
            "outputs": plan.outputs,
            "numbers": plan.numbers,
        }
        for plan in code.plans
    ]
    return {
        "name": code.target.name,
        "vectors": bool(code.target.isa_flags),
        "features": features(code.target),
        "kernels": list(code.kernels),
        "plans": plans,
        "begun": code.arrays.begun,
        "weight_bytes": code.arrays.weight_bytes,
        "memory_bytes": code.arrays.memory_bytes,
    }


def features(target: Target) -> list[str]:
    """The instruction sets of a target, by the names that compilers ask the processor for."""
    return [flag.removeprefix("-m") for flag in target.isa_flags if "=" not in flag]


def _of_tensor(tensor: Tensor) -> dict[str, object]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "count": prod(tensor.shape),
        "below": tensor.below,
    }


def _words(tensors: Sequence[Tensor]) -> str:
    """``fc (1000)``."""
    return ", ".join(f"{tensor.name} ({' × '.join(map(str, tensor.shape))})" for tensor in tensors)


def quoted(text: str) -> str:
    """A literal of C with a text, in ASCII: UTF-8 beyond it, in octal."""
    found = []
    for byte in text.encode("utf-8"):
        plain = 32 <= byte < 127 and chr(byte) not in '"\\?'
        found.append(chr(byte) if plain else f"\\{byte:03o}")
    return f'"{"".join(found)}"'


def _rendered(name: str, template: str, shown: Mapping[str, object]) -> str:
    """A template filled in. Names of its own that begin with ``latte_`` begin with the name of the export."""
    loader = jinja2.PackageLoader("latte.tools.export", "templates")
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    environment.filters["quoted"] = quoted
    source, _, _ = loader.get_source(environment, template)
    for own, other in ((OWN_NAME, name), (OWN_NAME.upper(), name.upper())):
        source = re.sub(rf"\b{own}_", f"{other}_", source)
    return environment.from_string(source).render(shown)
