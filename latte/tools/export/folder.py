"""The folder of an export: what an earlier one has written is replaced, and nothing else is touched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from latte.runtime.files import write_whole
from swirl.errors import CommandError

MANIFEST = ".latte-export.json"
"""Names the files of an export; of each the hashes that it may have: two while an export replaces another."""

Hashes = dict[str, list[str]]


def check_folder(folder: Path) -> None:
    """Refuse a folder that is something else than an export, before anything is compiled for it.

    Raises:
        CommandError: it is not an empty folder, or one that an export has written.
    """
    known = _known(folder)
    _check_own(folder, known, known)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write an export. Files of an earlier one that this one does not have are removed.

    Args:
        folder: made if it does not exist.
        files: path within it → content.

    Raises:
        CommandError: a file is not as the earlier export has written it, or is not of one; or it cannot be written.
    """
    known = _known(folder)
    _check_own(folder, known, {*known, *files})
    made = {name: [_hash(content)] for name, content in files.items()}
    both = {name: [*known.get(name, []), *made.get(name, [])] for name in {*known, *made}}
    try:
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _write_manifest(folder, both)  # whenever this is interrupted, what is there is known
        for name, content in files.items():
            write_whole(folder / name, content)
        for name in known.keys() - files.keys():
            (folder / name).unlink(missing_ok=True)
        _write_manifest(folder, made)
    except OSError as error:
        raise CommandError(f"{folder} cannot be written: {error.strerror or error}") from error


def _write_manifest(folder: Path, hashes: Hashes) -> None:
    write_whole(folder / MANIFEST, (json.dumps({"files": hashes}, indent=1, sort_keys=True) + "\n").encode())


def _known(folder: Path) -> Hashes:
    """The files that an earlier export has written, with their hashes.

    Raises:
        CommandError: the folder is something else.
    """
    way_out = "give a folder that does not exist, or one that latte export has written"
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return {}
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        if not any(Path(name).is_absolute() or ".." in Path(name).parts for name in found):
            return {str(name): [str(each) for each in hashes] for name, hashes in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # there is no manifest, or another program has written it
    raise CommandError(f"{folder} exists, and is not an export: nothing in it is overwritten", way_out=way_out)


def _check_own(folder: Path, known: Hashes, names: Iterable[str]) -> None:
    """CommandError where a file that would be written or removed is not as an export has left it."""
    for name in sorted(names):
        path = folder / name
        try:
            if not path.exists() and not path.is_symlink():
                continue
            linked = path.resolve() != folder.resolve() / name
            own = not linked and path.is_file() and _hash(path.read_bytes()) in known.get(name, [])
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror or error}") from error
        if not own:
            raise CommandError(
                f"{path} is not as latte export has written it, and is not overwritten",
                way_out="move it to another place, or give another folder",
            )


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
