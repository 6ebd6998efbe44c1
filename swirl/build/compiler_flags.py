"""The flags that kernels are compiled with: results are those of IEEE arithmetic, and GCC's defects stay away."""

from __future__ import annotations

from collections.abc import Sequence

from swirl.build.compiler import Compiler
from swirl.build.translation_unit import IF_CONVERTIBLE, STORES_IN_ONE_PLACE, TranslationUnit
from swirl.target.targets import Target

# IEEE arithmetic holds: neither flag below changes a value. The first only drops errno (so sqrt is one
# instruction), the second only says that nothing reads the exception flags (so selects need no branches). Never
# -ffast-math. GCC 12 takes the second for leave to make `(float) (int) x` a rounding, which is -0.0 for -0.5
# (tests/regress/test_gcc_numbers_without_fraction.py): kernels that drop fractions are compiled without it.
NO_EXCEPTION_FLAGS = "-fno-trapping-math"
# In C++17, <cmath> has the special functions and with them much of the library of templates: a kernel that includes it
# takes twice as long to compile.
BASE_FLAGS = ("-std=c++14", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno", NO_EXCEPTION_FLAGS)
# GCC 12's loop distribution separates two statements that touch `y[3 - i][l]` and `y[i][l + i]`, in the wrong order
# (tests/regress/test_gcc_loop_distribution.py). Recipes have ``distribute`` instead. Its straight-line vectoriser drops
# the rounding of `(double) (float) x` where two neighbours have it (tests/regress/test_gcc_narrowed_doubles.py);
# kernels of one floating-point type keep it.
NO_STRAIGHT_LINE = "-fno-tree-slp-vectorize"
# Its loop vectoriser takes sums of whole numbers in neighbouring places, which are then added up, for one sum, and
# leaves elements out while it adds others twice (tests/regress/test_gcc_sums_of_whole_numbers.py); and it runs updates
# of neighbouring rows, `g[h][x] += s; g[h - 1][x] -= s`, out of order (tests/regress/test_gcc_neighbouring_rows.py).
# Kernels that have neither keep it.
NO_LOOP_VECTORS = "-fno-tree-loop-vectorize"
# Kernels throw nothing, so they need no library of C++: linking it takes a quarter of a kernel's time.
GCC_FLAGS = ("-fno-exceptions", "-fno-tree-loop-distribution", NO_STRAIGHT_LINE, NO_LOOP_VECTORS)
# GCC 12's loop vectoriser, where the processor has masked loads, turns `x > 0 ? g : 0` in a loop of 5 under
# another one into masked loads that all get the first mask (tests/regress/test_gcc_masked_loads.py). It makes
# masked loads out of branches only; our own vector code has no branches and needs no help.
# A kernel in which no load depends on a condition may be if-converted: otherwise its selects are branches, 20 times
# slower in a maximum over unforeseeable data.
# Predictive commoning keeps what neighbouring iterations load in registers, and unrolls for it: a register tile that
# fills the registers then spills in every iteration (weight gradients of a convolution: 24 sums and 3 rows).
NO_IF_CONVERSION = "-fno-tree-loop-if-convert"
GCC_VECTOR_FLAGS = (NO_IF_CONVERSION, "-fno-predictive-commoning")


def common_flags(
    compiler: Compiler, target: Target, contract: bool, optimize: str, extra: Sequence[str]
) -> tuple[str, ...]:
    """The flags of all units that are compiled so; see :func:`swirl.build.jit.build` for the arguments."""
    contraction = "-ffp-contract=fast" if contract else "-ffp-contract=off"
    around_defects: tuple[str, ...] = ()
    if "clang" not in compiler.version:
        around_defects = (*GCC_FLAGS, *(GCC_VECTOR_FLAGS if target.isa_flags else ()))
    return (*BASE_FLAGS, optimize, contraction, *around_defects, *target.isa_flags, *extra)


def link_flags(compiler: Compiler, target: Target) -> tuple[str, ...]:
    """The libraries of all units."""
    if "clang" in compiler.version:
        return target.link_flags
    return ("-nodefaultlibs", "-lgomp", *target.link_flags, "-lc", "-lgcc")


def flags_for(unit: TranslationUnit, common: Sequence[str]) -> tuple[str, ...]:
    """The flags without those against a defect that cannot show in this unit, or with which one shows."""
    without = set()
    if IF_CONVERTIBLE in unit.notes:
        without.add(NO_IF_CONVERSION)
    if "(double)" not in unit.source or "(float)" not in unit.source:
        without.add(NO_STRAIGHT_LINE)
    if STORES_IN_ONE_PLACE in unit.notes and "wrapped_" not in unit.source:
        without.add(NO_LOOP_VECTORS)
    if "truncated(" in unit.source:
        without.add(NO_EXCEPTION_FLAGS)
    return tuple(flag for flag in common if flag not in without)
