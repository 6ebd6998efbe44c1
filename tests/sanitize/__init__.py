"""What runs generated code under AddressSanitizer and UBSan."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

CHECKED = Path(__file__).with_name("checked_lanes.h")
SWITCH = "SWIRL_SANITIZE"
"""Set in the environment of a process that has the sanitizers' libraries loaded."""


def environment() -> dict[str, str]:
    """Variables for a Python process whose kernels are sanitized."""
    # Libraries of Python's packages throw exceptions: the sanitizer finds their functions only when it starts.
    preloaded = [_library(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so.6")]
    version = hashlib.sha256(CHECKED.read_bytes()).hexdigest()[:12]  # or the cache would not see a changed header
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1", f"-DCHECKED=0x{version}"]
    compiler = ["env", "-u", "LD_PRELOAD", "g++", *flags, "-include", str(CHECKED)]
    return {
        **os.environ,
        "LD_PRELOAD": ":".join(preloaded),
        "ASAN_OPTIONS": "detect_leaks=0,halt_on_error=1,abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=0,halt_on_error=1",
        "SWIRL_CXX": shlex.join(compiler),
        "PYTHONMALLOC": "malloc",
        SWITCH: "1",
    }


def _library(name: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return str(Path(found.stdout.strip()).resolve())


def exact(shape: Sequence[int], dtype: npt.DTypeLike) -> np.ndarray:
    """A zeroed array, aligned to 64 bytes, that ends where its memory ends; never freed."""
    size = prod(shape) * np.dtype(dtype).itemsize
    address = ctypes.c_void_p()
    if ctypes.CDLL(None).posix_memalign(ctypes.byref(address), ctypes.c_size_t(64), ctypes.c_size_t(size)):
        raise MemoryError(size)
    assert address.value is not None
    ctypes.memset(address.value, 0, size)
    memory = (ctypes.c_char * size).from_address(address.value)
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(tuple(shape))


class ExactArena:
    """Replaces :class:`swirl.run.memory.Arena`: every array has separate memory."""

    def __init__(self, total_bytes: int, runner: object = None):
        self.total_bytes = total_bytes

    def array(self, shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> np.ndarray:
        return exact(shape, dtype)


def sanitized(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs under the sanitizers."""
    return environ.get(SWITCH) == "1"
