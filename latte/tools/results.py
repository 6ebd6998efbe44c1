"""Files that commands write what they have measured to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from latte.runtime.files import is_not_a_file, write_whole


class ResultFile(click.Path):
    """A file that can be written: refused before anything is measured for it."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"{path}: there is no folder {path.parent}", param, ctx)
        if not path.exists() and not os.access(path.parent, os.W_OK):
            self.fail(f"{path}: files cannot be made in {path.parent}", param, ctx)
        return path


def write_results(path: Path, text: str) -> None:
    """Write a file anew, whole or not at all; a pipe or a device (``/dev/stdout``) is written to.

    Raises:
        ClickException: it cannot be written.
    """
    try:
        if is_not_a_file(path) is not None:
            path.write_text(text, encoding="utf-8")
        else:
            write_whole(path, text.encode())
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror or error}") from error
