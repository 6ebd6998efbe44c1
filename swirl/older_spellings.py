"""Older names of modules: they can still be imported, with a warning that says the name of today."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "swirl.alone": "swirl.build.process_lock",
        "swirl.building": "swirl.schedule.layer_recipes",
        "swirl.cache": "swirl.build.cache",
        "swirl.command_methods": "swirl.schedule.command_methods",
        "swirl.compiler": "swirl.build.compiler",
        "swirl.compiler_flags": "swirl.build.compiler_flags",
        "swirl.declared": "swirl.schedule.declared",
        "swirl.demand": "swirl.cost.time",
        "swirl.inference": "swirl.schedule.inference",
        "swirl.into_caches": "swirl.cost.traffic",
        "swirl.ir.accesses": "swirl.analysis.accesses",
        "swirl.ir.congruence": "swirl.analysis.congruence",
        "swirl.ir.coverage": "swirl.analysis.coverage",
        "swirl.ir.deps": "swirl.analysis.dependences",
        "swirl.ir.footprint": "swirl.analysis.footprints",
        "swirl.ir.integers": "swirl.analysis.integers",
        "swirl.ir.isl_notation": "swirl.analysis.isl_notation",
        "swirl.ir.items": "swirl.analysis.items",
        "swirl.ir.needs": "swirl.analysis.needs",
        "swirl.ir.points": "swirl.analysis.enumeration",
        "swirl.ir.sets": "swirl.analysis.sets",
        "swirl.ir.statements": "swirl.analysis.statements",
        "swirl.ir.touches": "swirl.analysis.touches",
        "swirl.ir.trips": "swirl.analysis.trips",
        "swirl.ir.uniform": "swirl.analysis.uniform",
        "swirl.ir.work": "swirl.analysis.work",
        "swirl.issued": "swirl.cost.instruction_counts",
        "swirl.jit": "swirl.build.jit",
        "swirl.kept_schedules": "swirl.schedule.kept_schedules",
        "swirl.later": "swirl.schedule.later",
        "swirl.libraries": "swirl.build.libraries",
        "swirl.loop_facts": "swirl.analysis.loop_facts",
        "swirl.memo": "swirl.schedule.memo",
        "swirl.memory": "swirl.run.memory",
        "swirl.pauses": "swirl.run.pauses",
        "swirl.phases": "swirl.ir.phases",
        "swirl.pipeline": "swirl.schedule.pipeline",
        "swirl.plan_layouts": "swirl.schedule.plan_layouts",
        "swirl.plan_state": "swirl.schedule.plan_state",
        "swirl.precompiled": "swirl.build.precompiled",
        "swirl.questions": "swirl.schedule.queries",
        "swirl.recipe": "swirl.schedule.recipe",
        "swirl.recipe_files": "swirl.schedule.files",
        "swirl.recipe_identity": "swirl.schedule.identity",
        "swirl.recipe_imports": "swirl.schedule.imports",
        "swirl.recorded": "swirl.schedule.command_log",
        "swirl.runner": "swirl.run.runner",
        "swirl.translation_unit": "swirl.build.translation_unit",
        "swirl.values": "swirl.schedule.values",
        "swirl.codegen.turned": "swirl.codegen.register_transpose",
        "swirl.transforms.rewrites.borders": "swirl.transforms.rewrites.loops.borders",
        "swirl.transforms.rewrites.bounds": "swirl.transforms.rewrites.loops.bounds",
        "swirl.transforms.rewrites.candidates": "swirl.transforms.rewrites.storage.candidates",
        "swirl.transforms.rewrites.checked": "swirl.transforms.rewrites.checks.checked",
        "swirl.transforms.rewrites.contraction": "swirl.transforms.rewrites.storage.contraction",
        "swirl.transforms.rewrites.copies": "swirl.transforms.rewrites.loops.copies",
        "swirl.transforms.rewrites.decided_guards": "swirl.transforms.rewrites.loops.decided_guards",
        "swirl.transforms.rewrites.dependence_order": "swirl.transforms.rewrites.checks.dependence_order",
        "swirl.transforms.rewrites.dimensions": "swirl.transforms.rewrites.storage.dimensions",
        "swirl.transforms.rewrites.filling": "swirl.transforms.rewrites.storage.filling",
        "swirl.transforms.rewrites.halo": "swirl.transforms.rewrites.loops.halo",
        "swirl.transforms.rewrites.invariants": "swirl.transforms.rewrites.values.invariants",
        "swirl.transforms.rewrites.iterations": "swirl.transforms.rewrites.loops.iterations",
        "swirl.transforms.rewrites.joining": "swirl.transforms.rewrites.loops.fusion",
        "swirl.transforms.rewrites.local_arrays": "swirl.transforms.rewrites.storage.local_arrays",
        "swirl.transforms.rewrites.mean_sums": "swirl.transforms.rewrites.sums.mean_sums",
        "swirl.transforms.rewrites.moving": "swirl.transforms.rewrites.values.loop_variance",
        "swirl.transforms.rewrites.nesting": "swirl.transforms.rewrites.loops.nesting",
        "swirl.transforms.rewrites.one_pass_moments": "swirl.transforms.rewrites.sums.one_pass_moments",
        "swirl.transforms.rewrites.permutation": "swirl.transforms.rewrites.loops.permutation",
        "swirl.transforms.rewrites.projection": "swirl.transforms.rewrites.loops.projection",
        "swirl.transforms.rewrites.reciprocals": "swirl.transforms.rewrites.values.reciprocals",
        "swirl.transforms.rewrites.reductions": "swirl.transforms.rewrites.sums.reductions",
        "swirl.transforms.rewrites.refusals": "swirl.transforms.rewrites.checks.refusals",
        "swirl.transforms.rewrites.scalar_replacement": "swirl.transforms.rewrites.storage.scalar_replacement",
        "swirl.transforms.rewrites.shared_loops": "swirl.transforms.rewrites.loops.shared_loops",
        "swirl.transforms.rewrites.sink": "swirl.transforms.rewrites.loops.sink",
        "swirl.transforms.rewrites.strips": "swirl.transforms.rewrites.loops.strips",
        "swirl.transforms.rewrites.sum_loops": "swirl.transforms.rewrites.sums.sum_loops",
        "swirl.transforms.rewrites.tile_sizes": "swirl.transforms.rewrites.loops.tile_sizes",
        "swirl.transforms.rewrites.tiling": "swirl.transforms.rewrites.loops.tiling",
        "swirl.transforms.rewrites.ways_out": "swirl.transforms.rewrites.checks.ways_out",
        "swirl.transforms.rewrites.winners": "swirl.transforms.rewrites.sums.argmax_lanes",
        "swirl.transforms.rewrites.without_hints": "swirl.transforms.rewrites.storage.without_hints",
    }
)
"""A module's name until version 0.1 → its name."""


class _Renamed(MetaPathFinder, Loader):
    """Finds a module of an older name: its attributes are those of the module that there is."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, origin=RENAMED[fullname]) if fullname in RENAMED else None

    def exec_module(self, module: ModuleType) -> None:
        name = RENAMED[module.__name__]
        now = import_module(name)
        warnings.warn(f"{module.__name__} is called {name}", DeprecationWarning, stacklevel=2)

        def attribute(wanted: str) -> Any:
            return getattr(now, wanted)

        module.__dict__.update(__doc__=now.__doc__, __getattr__=attribute, __dir__=lambda: dir(now))


def older_place(package: str, module: str, names: Collection[str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that was a module: finds its names in one of its modules, with a warning."""

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        warnings.warn(f"{package}.{name} is in {package}.{module}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(f"{package}.{module}"), name)

    return attribute


def find_renamed() -> None:
    """From here on, imports find modules by their older names, too."""
    sys.meta_path.append(_Renamed())
