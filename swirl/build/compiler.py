"""The C++ compiler of this machine: finding it, and running it as a subprocess."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from swirl.config import child_environment, settings
from swirl.errors import CompilerMissing

INSTALL = "install one (Debian: apt install g++), or name it in SWIRL_CXX"


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler.

    Attributes:
        command: absolute path of the program, then the arguments that SWIRL_CXX or CXX gave it.
        version: everything it prints for ``--version``; part of every cache key.
    """

    command: tuple[str, ...]
    version: str

    def run(self, arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run the compiler in `folder`; its exit status and output are in the result."""
        return run_program((*self.command, *arguments), folder)


def run_program(command: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program without a terminal, its output captured as text."""
    return subprocess.run(
        command,
        cwd=folder,
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def find_compiler() -> Compiler:
    """The compiler that SWIRL_CXX or CXX names, else g++, else clang++.

    Raises:
        CompilerMissing: there is none, or the one named does not run.
    """
    wanted = settings()
    if wanted.compiler:
        program, *arguments = wanted.compiler
        path = shutil.which(program)
        if path is None:
            raise CompilerMissing(
                f"{wanted.compiler_variable} names {program!r}, which is not a program here", way_out=INSTALL
            )
    else:
        arguments = []
        path = shutil.which("g++") or shutil.which("clang++")
        if path is None:
            raise CompilerMissing("no C++ compiler found: neither g++ nor clang++ is in PATH", way_out=INSTALL)
    file = Path(path).absolute()
    facts = file.stat()
    return _compiler_of((str(file), *arguments), facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=16)
def _compiler_of(command: tuple[str, ...], modified: int, size: int) -> Compiler:
    """The compiler with its version, which it is asked for once, until the program's file is another one."""
    try:
        answer = run_program((*command, "--version"))
    except OSError as error:
        raise CompilerMissing(f"{command[0]} does not run: {error}", way_out=INSTALL) from error
    if answer.returncode != 0:
        raise CompilerMissing(f"{command[0]} --version fails: {answer.stderr.strip()}", way_out=INSTALL)
    return Compiler(command, answer.stdout.strip())
