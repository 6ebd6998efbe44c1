"""Precompiled headers: reading ``immintrin.h`` takes four times as long as compiling a kernel that includes it.

An entry of the cache holds a header as GCC keeps it. A kernel says ``#include <immintrin.h>`` as usual, and is compiled
with ``-I`` of the entry's folder: GCC takes ``immintrin.h.gch`` from there if it was made by the same compiler with the
same flags, and the system's header otherwise, or if the entry is gone. The library is the same, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from swirl.cache import cache_folder, cache_key, draft_folder, entry_lock, publish, read_entry
from swirl.compiler import Compiler

Headers = tuple[str, ...]

_PRECOMPILED = {"immintrin.h", "cmath"}

_INCLUDES = re.compile(r"(?:(?:\s|//.*\n)*#include <[\w.]+>)*")
_ready: set[tuple[str, str]] = set()


def headers_of(source: str) -> Headers:
    """The headers with which a kernel begins, if precompiling them pays."""
    start = _INCLUDES.match(source)
    assert start is not None, "it matches nothing, too"
    found = tuple(re.findall(r"#include <([\w.]+)>", start[0]))
    return found if _PRECOMPILED.issuperset(found) else ()


def precompiled_key(headers: Headers, compiler: Compiler, flags: Sequence[str]) -> str | None:
    """The cache's key of headers read with these flags, or None where the compiler finds none by ``-I`` (clang)."""
    if not headers or "clang" in compiler.version:
        return None
    return cache_key("precompiled", _text(headers), *compiler.command, compiler.version, *flags)


def include_flag(key: str) -> str:
    """The flag by which a kernel finds the headers, from its own entry's folder."""
    return f"-I../{key}"


def precompile(headers: Headers, key: str, compiler: Compiler, flags: Sequence[str]) -> None:
    """Make the entry, if it does not exist; if the compiler refuses, kernels are compiled without.

    Raises:
        LatteError: the cache folder is not usable.
    """
    known = (str(cache_folder()), key)
    if known in _ready:  # reading the whole file again to see that it is not damaged takes as long as a kernel
        return
    with entry_lock(key):
        if read_entry(key) is None:
            with draft_folder(key) as draft:
                # A compilation can use one precompiled header, its first: all of them are in that one.
                header = headers[0]
                (draft / "headers.h").write_text(_text(headers))
                # Read if the compiler refuses the precompiled one: a user ran the command with other flags.
                (draft / header).write_text(f"#include_next <{header}>\n")
                made = f"{header}.gch"
                result = compiler.run((*flags, "-x", "c++-header", "headers.h", "-o", made), draft)
                if result.returncode == 0 and (draft / made).is_file():
                    publish(draft, key, {"header": header}, verified=(made,))
    _ready.add(known)


def _text(headers: Headers) -> str:
    return "".join(f"#include <{name}>\n" for name in headers)
