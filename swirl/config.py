"""Settings: the only module that reads the environment.

Everything a user can steer from outside the program is a field of :class:`Settings`. Nothing is kept between
calls, so a test (or a notebook) that changes a variable sees the change at the next call of :func:`settings`.
"""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from swirl.errors import LatteError

TARGET_NAMES = ("avx512", "avx2", "portable")
INSTRUCTION_SETS = ("avx512", "avx2")

# The original's names of vector units. Its AVX and AVX-2 both had eight lanes; our eight-lane target is avx2.
VEC_CONFIGS = {"AVX": "avx2", "AVX-2": "avx2", "AVX-512": "avx512"}

# Variables of the original that steer its own code generator and mean nothing here.
IGNORED = (
    "LATTE_AUTO_FUSION",
    "LATTE_CODEGEN_STRATEGY",
    "LATTE_MODE",
    "LATTE_PARALLEL_STRATEGY",
    "LATTE_PIPELINE_BLOCK_SIZE",
    "LATTE_PREFETCH_MODE",
    "LATTE_SIMPLE_FUSION",
    "LATTE_TIMER",
    "LATTE_UNROLL",
)

MAX_THREADS = 4096

SPIN_SECONDS = 200e-6
"""How long waiting threads look for what they wait for before they sleep: longer than Python takes between two phases,
shorter than a time slice."""

SHARED_FROM = 20_000
"""Instructions in a kernel's parallel loops, a microsecond or two, from which on sharing saves more than it costs."""

# By which users say where threads run: GCC's variables, and Clang's.
PLACEMENT = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")

MEANT = ("SWIRL_", "LATTE_", "OMP_", "GOMP_", "KMP_")
"""How names of variables begin that matter here."""

_TRUE = ("1", "on", "true", "yes")
_FALSE = ("0", "off", "false", "no")


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    Attributes:
        hidden: instruction sets treated as missing on this machine (``SWIRL_HIDE``), for tests.
        target: name of the target (``SWIRL_TARGET``, else ``LATTE_VEC_CONFIG``), or None for the best that
            runs here.
        dump: folder for the stages of a compilation (``SWIRL_DUMP``), or None.
        compiler: command of the C++ compiler (``SWIRL_CXX``, else ``CXX``), or None to look for g++, then
            clang++.
        compiler_variable: the variable that named the compiler, for messages.
        cache_dir: folder of the cache of kernels and of results (``SWIRL_CACHE_DIR``, else the user's cache folder).
        threads: number of OpenMP threads (``SWIRL_THREADS``, else ``LATTE_NUM_THREADS``, else ``OMP_NUM_THREADS``,
            else the cores available).
        shared_from: instructions in a kernel's parallel loops from which on the threads share it
            (``SWIRL_SHARED_FROM``); 0: they share all kernels.
        recipes: folder of the user's recipes (``LATTE_RECIPES``), or None.
        schedule: whether nets are scheduled (``LATTE_SCHEDULE``; by default they are), or run as they are lowered.
        compatibility: compatibility mode of the original's interface (``LATTE_COMPAT``).
        memo: whether results of passes and commands are kept in the cache (``SWIRL_MEMO``; by default they are).
    """

    hidden: frozenset[str]
    target: str | None
    dump: Path | None
    compiler: tuple[str, ...] | None
    compiler_variable: str | None
    cache_dir: Path
    threads: int
    shared_from: int
    recipes: Path | None
    schedule: bool
    compatibility: bool
    memo: bool


def settings() -> Settings:
    """Read the settings from the environment, now.

    Raises:
        LatteError: a variable has a value that is not accepted; the message names both.
    """
    environment = os.environ
    ignored = [name for name in IGNORED if environment.get(name)]
    if ignored:
        # The default filter of `warnings` shows a text once for this line, so the program says this once.
        warnings.warn(f"{', '.join(ignored)}: read by the original Latte, ignored by this one", stacklevel=1)
    compiler_variable = next((name for name in ("SWIRL_CXX", "CXX") if environment.get(name, "").strip()), None)
    return Settings(
        hidden=_hidden(environment),
        target=_target(environment),
        dump=_path(environment, "SWIRL_DUMP"),
        compiler=_command(environment, compiler_variable) if compiler_variable else None,
        compiler_variable=compiler_variable,
        cache_dir=_path(environment, "SWIRL_CACHE_DIR") or Path(platformdirs.user_cache_dir("swirl", appauthor=False)),
        threads=_threads(environment),
        shared_from=_shared_from(environment),
        recipes=_folder(environment, "LATTE_RECIPES"),
        schedule=_switch(environment, "LATTE_SCHEDULE", default="1"),
        compatibility=compatibility(),
        memo=_switch(environment, "SWIRL_MEMO", default="1"),
    )


def compatibility() -> bool:
    """Whether ``LATTE_COMPAT`` asks for the original's rules; read when a net is declared, before all else is.

    Raises:
        LatteError: it has a value that is not accepted.
    """
    return _switch(os.environ, "LATTE_COMPAT")


def variable(name: str) -> str | None:
    """The value of a variable of the environment that a recipe says it reads; None where it is not set."""
    return os.environ.get(name)


def available_cores() -> int:
    """Number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def user_places_threads() -> bool:
    """Whether the user has said on which cores threads run: then nothing moves them."""
    return any(os.environ.get(name, "").strip() for name in PLACEMENT)


@contextmanager
def short_waits(pause: Callable[[], float]) -> Iterator[None]:
    """An OpenMP library that is loaded inside lets waiting threads spin for :data:`SPIN_SECONDS`, then sleep.

    By default GCC's lets them spin for milliseconds. On cores shared with other programs, the thread that all
    wait for may then not get a core for as long, at every barrier: this made training up to 20 times slower. Where the
    user has said how to wait, nothing is changed. A library that somebody has loaded before has read the environment.

    Args:
        pause: seconds of one look, of which the library counts a number.
    """
    variable = "GOMP_SPINCOUNT"
    if variable in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ[variable] = str(round(SPIN_SECONDS / pause()))
    try:
        yield
    finally:
        del os.environ[variable]


def variables() -> dict[str, str]:
    """The variables of the environment that are set and matter here: ours, those of OpenMP, and the compiler's."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(MEANT) or name == "CXX"}


def child_environment() -> dict[str, str]:
    """Environment for compilers and probes: ours, with untranslated messages."""
    return {**os.environ, "LC_ALL": "C"}


def _bad_value(variable: str, value: str, accepted: str) -> LatteError:
    return LatteError(f"{variable}={value!r} is not accepted", way_out=f"{variable} takes {accepted}")


def _target(environment: Mapping[str, str]) -> str | None:
    name = environment.get("SWIRL_TARGET", "").strip()
    if name:
        if name not in TARGET_NAMES:
            raise _bad_value("SWIRL_TARGET", name, " | ".join(TARGET_NAMES))
        return name
    vec_config = environment.get("LATTE_VEC_CONFIG", "").strip()
    if vec_config and vec_config not in VEC_CONFIGS:
        raise _bad_value("LATTE_VEC_CONFIG", vec_config, " | ".join(VEC_CONFIGS))
    return VEC_CONFIGS.get(vec_config)


def _hidden(environment: Mapping[str, str]) -> frozenset[str]:
    value = environment.get("SWIRL_HIDE", "")
    words = frozenset(word.strip() for word in value.split(",") if word.strip())
    if words - {*INSTRUCTION_SETS}:
        raise _bad_value("SWIRL_HIDE", value, f"{' | '.join(INSTRUCTION_SETS)}, or both with a comma between them")
    return words


def _command(environment: Mapping[str, str], variable: str) -> tuple[str, ...]:
    value = environment[variable]
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise _bad_value(variable, value, f"a compiler's command ({error})") from error


def _path(environment: Mapping[str, str], variable: str) -> Path | None:
    value = environment.get(variable, "").strip()
    # Absolute, so that a later change of directory does not move the cache or the dump.
    return Path(value).expanduser().absolute() if value else None


def _folder(environment: Mapping[str, str], variable: str) -> Path | None:
    path = _path(environment, variable)
    if path is not None and not path.is_dir():
        raise _bad_value(variable, str(path), "an existing folder")
    return path


def _threads(environment: Mapping[str, str]) -> int:
    for variable in ("SWIRL_THREADS", "LATTE_NUM_THREADS"):
        value = environment.get(variable, "").strip()
        if value:
            if not (value.isascii() and value.isdigit()) or not 1 <= int(value) <= MAX_THREADS:
                raise _bad_value(variable, value, f"a whole number of threads from 1 to {MAX_THREADS}")
            return int(value)
    # OpenMP's own; a list is for nested regions, and what it does not take, it ignores as well.
    outermost = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if outermost.isascii() and outermost.isdigit() and 1 <= int(outermost) <= MAX_THREADS:
        return int(outermost)
    return available_cores()


def _shared_from(environment: Mapping[str, str]) -> int:
    variable = "SWIRL_SHARED_FROM"
    value = environment.get(variable, "").strip()
    if not value:
        return SHARED_FROM
    if not (value.isascii() and value.isdigit()) or len(value) > 18:
        raise _bad_value(variable, value, "a whole number of instructions; 0: the threads share all kernels")
    return int(value)


def _switch(environment: Mapping[str, str], variable: str, default: str = "0") -> bool:
    value = environment.get(variable, "").strip().lower() or default
    if value not in _TRUE + _FALSE:
        raise _bad_value(variable, value, "1 | on | true | yes, or 0 | off | false | no")
    return value in _TRUE
