"""Precompiled headers: reading ``immintrin.h`` takes ten times as long as compiling a small kernel that includes it.

An entry of the cache holds a header as GCC keeps it, with ``cmath`` after it. A kernel says ``#include <immintrin.h>``
as usual, and is compiled with ``-I`` of the entry's folder: GCC takes ``immintrin.h.gch`` from there if it was made by
the same compiler with the same flags, and the system's header otherwise, or if the entry is gone. The library is the
same, byte for byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from swirl.build.cache import cache_folder, cache_key, draft_folder, entry_lock, publish, read_entry
from swirl.build.compiler import Compiler

_PRECOMPILED = {"immintrin.h": ("immintrin.h", "cmath"), "cmath": ("cmath",)}
"""The first header of a text → those in the entry: a compilation can use one entry only, and the text may need both."""
_PAYS_AT = 3
"""Making one takes as long as reading the header three times."""

_wanted: Counter[tuple[str, str]] = Counter()


def precompiled_key(headers: Sequence[str], compiler: Compiler, flags: Sequence[str]) -> str | None:
    """The cache's key of the first header read with these flags, the only one that a compilation can use.

    None where precompiling it does not pay, or the compiler finds none by ``-I`` (clang).
    """
    if not headers or headers[0] not in _PRECOMPILED or "clang" in compiler.version:
        return None
    return cache_key("precompiled", *_PRECOMPILED[headers[0]], *compiler.command, compiler.version, *flags)


def include_flag(key: str) -> str:
    """The flag by which a kernel finds the header, from its own entry's folder."""
    return f"-I../{key}"


def precompile(header: str, key: str, compiler: Compiler, flags: Sequence[str]) -> None:
    """Make the entry, if it does not exist, once this process has wanted it three times.

    If the compiler refuses, kernels are compiled without.

    Raises:
        LatteError: the cache folder is not usable.
    """
    here = (str(cache_folder()), key)
    _wanted[here] += 1
    if _wanted[here] != _PAYS_AT:
        return
    with entry_lock(key):
        made = f"{header}.gch"
        if read_entry(key, files=(made,)) is None:
            with draft_folder(key) as draft:
                (draft / "header.h").write_text(
                    "".join(f"#include <{each}>\n" for each in _PRECOMPILED[header]), encoding="utf-8"
                )
                # Read if the compiler refuses the precompiled one: a user ran the command with other flags.
                (draft / header).write_text(f"#include_next <{header}>\n", encoding="utf-8")
                result = compiler.run((*flags, "-x", "c++-header", "header.h", "-o", made), draft)
                if result.returncode == 0 and (draft / made).is_file():
                    publish(draft, key, {"header": header}, verified=(made,))
