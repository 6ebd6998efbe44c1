"""What was measured or trained once, and is kept in files: of the user's folders, and of those that ship."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path


def stored(name: str, folders: Sequence[Path], package: str = "", shipped: str = "") -> Iterator[tuple[str, str]]:
    """The text of each file that is there, and where it is, for messages.

    Args:
        name: of the file in a folder.
        folders: that may have it, the first one first.
        package: which may ship one, after these; none by default.
        shipped: its path in the package.
    """
    for folder in folders:
        path = folder / name
        if path.exists():
            yield path.read_text(encoding="utf-8"), str(path)
    own = files(package).joinpath(shipped) if package else None
    if own is not None and own.is_file():
        yield own.read_text(encoding="utf-8"), own.name
