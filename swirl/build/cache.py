"""The folder of the disk cache: who may write it, locks, and entries that are there whole or not at all.

An entry is a folder ``<cache>/<key>/`` of files, with a manifest of the sizes and hashes of those that are
loaded. It is written elsewhere and renamed into place, so a reader never sees half of one; a damaged entry
counts as missing and is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any

from filelock import FileLock, Timeout

from swirl.config import settings
from swirl.errors import LatteError

MANIFEST = "manifest.json"


def cache_key(*parts: str) -> str:
    """A key for all that an entry depends on; parts are separated (``"ab", "c"`` is not ``"a", "bc"``)."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def cache_folder() -> Path:
    """The cache's folder, made with mode 0700 if it is not there.

    Raises:
        LatteError: it cannot be made or written, belongs to somebody else, or others may write it: loading
            code from such a folder would run theirs.
    """
    folder = settings().cache_dir
    way_out = "set SWIRL_CACHE_DIR to a folder of your own"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.stat()
    except OSError as error:
        raise LatteError(f"the cache folder {folder} cannot be made: {error.strerror}", way_out=way_out) from error
    if hasattr(os, "getuid") and facts.st_uid != os.getuid():
        raise LatteError(f"the cache folder {folder} belongs to user {facts.st_uid}, not to you", way_out=way_out)
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise LatteError(f"others may write to the cache folder {folder}", way_out=f"chmod 700 {folder}, or {way_out}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise LatteError(f"the cache folder {folder} cannot be written", way_out=way_out)
    return folder


@contextmanager
def entry_lock(key: str) -> Iterator[None]:
    """Hold the entry's lock against other processes and threads.

    A thread that waits for a second lock while it holds one takes them in ascending order of keys: otherwise two
    processes could wait for each other.

    Raises:
        LatteError: the entry cannot be written (a full disk, for one).
    """
    with _made_in_cache(), _lock(key):
        yield


@contextmanager
def folder_lock(folder: Path, doing: str, way_out: str) -> Iterator[None]:
    """Hold a folder of the user's against other processes, of this machine and cache, that would change the same files.

    Args:
        folder: that need not be there.
        doing: what such a process is called.
        way_out: what else to do.

    Raises:
        LatteError: another process holds it, or the cache folder cannot be written.
    """
    with ExitStack() as held:
        with _made_in_cache():
            lock = _lock(cache_key("folder", str(folder.resolve())), wait=False)
            try:
                held.enter_context(lock)
            except Timeout:
                raise LatteError(f"another {doing} writes to {folder}", way_out=way_out) from None
        yield


@contextmanager
def _made_in_cache() -> Iterator[None]:
    """Raises LatteError where what is done inside is refused by the operating system."""
    try:
        yield
    except OSError as error:
        raise LatteError(
            f"an entry of the cache folder {cache_folder()} cannot be made: {error}",
            way_out="make room or set SWIRL_CACHE_DIR to another folder",
        ) from error


def _lock(key: str, wait: bool = True) -> FileLock:
    """A lock of other processes and threads; without ``wait``, taking one that is held raises Timeout."""
    locks = cache_folder() / "locks"
    locks.mkdir(mode=0o700, exist_ok=True)
    return FileLock(locks / f"{key}.lock", timeout=-1 if wait else 0)


def read_entry(
    key: str, facts: Mapping[str, type | UnionType] = MappingProxyType({}), files: Sequence[str] = ()
) -> dict[str, Any] | None:
    """The facts stored with an entry, or None where it is missing, incomplete, damaged, or not what is expected.

    Args:
        key: of the entry.
        facts: name → type of those that it must have.
        files: that it must have, as they were when it was published.
    """
    folder = cache_folder() / key
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        kept, recorded = manifest["facts"], manifest["files"]
        as_written = manifest["sum"] == _sum(kept, recorded)
        expected = all(isinstance(kept[name], kind) for name, kind in facts.items()) and set(files) <= recorded.keys()
        whole = all(_fingerprint(folder / name) == fingerprint for name, fingerprint in recorded.items())
        return dict(kept) if as_written and expected and whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # A crash or a full disk left it, or another program: it is not an entry.
        return None


@contextmanager
def draft_folder(key: str) -> Iterator[Path]:
    """A fresh folder in which to make the entry, removed at the end. Call with the entry's lock held."""
    draft = cache_folder() / f"{key}.draft"
    _remove(draft)  # the process that made it was killed, or it would still hold the lock
    draft.mkdir(mode=0o700)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def publish(draft: Path, key: str, facts: dict[str, Any], *, verified: Sequence[str] = ()) -> Path:
    """Make a draft the entry, in one step; returns the entry's folder. Call with the entry's lock held.

    Args:
        facts: what to keep with it, as JSON values.
        verified: files of the entry whose size and hash must be right when it is read.
    """
    files = {name: _fingerprint(draft / name) for name in verified}
    manifest = {"facts": facts, "files": files, "sum": _sum(facts, files)}
    (draft / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    return move_into_place(draft, key)


def move_into_place(draft: Path, name: str) -> Path:
    """Rename a draft to ``<cache>/<name>``, whatever was there before removed."""
    folder = cache_folder() / name
    if not folder.parent.is_dir():
        _remove(folder.parent)
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    _remove(folder)  # libraries that some process has loaded from it stay alive until that process ends
    os.replace(draft, folder)
    return folder


def _remove(path: Path) -> None:
    """Remove what is at a place of the cache: a folder, or whatever somebody has put there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sum(facts: Any, files: Any) -> str:
    """What facts and files must be, as the manifest has them."""
    return cache_key("manifest", json.dumps([facts, files], sort_keys=True))


def _fingerprint(path: Path) -> list[Any]:
    content = path.read_bytes()
    return [len(content), hashlib.sha256(content).hexdigest()]


# --- for people ---------------------------------------------------------------------------------------------
_ENTRY = re.compile(r"[0-9a-f]{64}(\.draft)?")


def _entries() -> list[Path]:
    """The folders of entries, of abandoned drafts, and of what a compiler refused; nothing else."""
    root = cache_folder()
    found = [*root.iterdir(), *((root / "failed").iterdir() if (root / "failed").is_dir() else ())]
    return [path for path in found if _ENTRY.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]


def cache_contents() -> tuple[int, int]:
    """Number of entries, and their size in bytes."""
    entries = _entries()
    facts = [path.lstat() for entry in entries for path in entry.rglob("*")]
    # Kernels compiled together are one file with several names.
    sizes = {(fact.st_dev, fact.st_ino): fact.st_size for fact in facts if stat.S_ISREG(fact.st_mode)}
    return len(entries), sum(sizes.values())


def clear_cache() -> tuple[int, int]:
    """Remove every entry, each under its lock; files that this module did not make stay.

    Returns:
        number of entries removed, and their size in bytes.
    """
    result = cache_contents()
    for entry in _entries():
        with entry_lock(entry.name[:64]):
            shutil.rmtree(entry, ignore_errors=True)
    return result
