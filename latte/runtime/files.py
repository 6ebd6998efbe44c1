"""Files that are written in one piece: whoever reads them sees the old one or the new one, whole."""

from __future__ import annotations

import os
import platform
import re
import secrets
import stat
from contextlib import suppress
from glob import escape
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFile(OSError):
    """What would be replaced is not a regular file."""


def is_not_a_file(path: Path) -> str | None:
    """What a path leads to, ``a pipe`` for one, if that is not a regular file; None where it is, or nothing is there.

    Raises:
        OSError: it cannot be asked.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "not a file")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside the path, and rename it: whenever the process is killed, the path is the old file or the new
    one. Through a symbolic link, what it leads to is replaced, and the link stays; what is not a regular file stays.

    Raises:
        NotAFile: the path leads to a pipe, a device, a socket or a folder.
        OSError: it cannot be written.
    """
    if (kind := is_not_a_file(path)) is not None:
        raise NotAFile(f"it is {kind}, not a file")
    target = _resolved(path)
    beside = target.with_name(f".{target.name}.{_host()}.{os.getpid()}.{secrets.token_hex(4)}.new")
    try:
        _remove_abandoned(target)
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            beside.chmod(stat.S_IMODE(target.stat().st_mode))
        beside.replace(target)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # the new name, too, where folders can be flushed
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _resolved(path: Path) -> Path:
    """Where symbolic links lead.

    Raises:
        OSError: they lead in a circle.
    """
    try:
        return path.resolve()
    except RuntimeError as error:  # Python 3.12 and earlier
        raise OSError(str(error)) from error


def _host() -> str:
    """This machine: a file system may be shared with others."""
    return re.sub(r"\W", "-", platform.node()) or "localhost"


def _remove_abandoned(target: Path) -> None:
    """What processes that were killed have left beside the file."""
    for left in target.parent.glob(f".{escape(target.name)}.{_host()}.*.*.new"):
        process = left.name.split(".")[-3]
        if process.isdigit() and not Path("/proc", process).exists():
            left.unlink(missing_ok=True)
