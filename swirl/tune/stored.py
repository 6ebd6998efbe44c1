"""What was measured or trained once, and is kept in files: of the user's folders, and of those that ship."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path


def stored(paths: Iterable[Path], package: str = "", shipped: str = "") -> Iterator[tuple[str, str]]:
    """The text of each file that is there, and where it is, for messages.

    Args:
        paths: where a user's file may be, the first one first.
        package: which may ship one, after these; none by default.
        shipped: its path in the package.
    """
    for path in paths:
        if path.exists():
            yield path.read_text(encoding="utf-8"), str(path)
    own = files(package).joinpath(shipped) if package else None
    if own is not None and own.is_file():
        yield own.read_text(encoding="utf-8"), own.name
