"""Runs the commands in the ``console`` blocks of the documentation, and inserts what they print after them; writes the
parts of docs/recipes.md, docs/convolution.md and docs/kernels.md that show commands and what they do to nests; and
swirl/schedule/command_methods.py.

    python docs/refresh.py            updates the pages
    python docs/refresh.py --check    only says which are out of date (exit status 1)
    python docs/refresh.py recipes    this page alone

Commands run in a folder of their own, with links to everything at the top of the repository. The next commands of the
same page find what a command leaves there (dumped stages, say).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed

from docs import kernels, steps  # noqa: E402
from docs.commands import methods  # noqa: E402
from docs.commands import page as commands  # noqa: E402

FILLED = {
    "recipes.md": commands.filled,
    "convolution.md": steps.filled,
    "kernels.md": kernels.filled,
    "command_methods.py": methods.filled,
}
DOCS = ("architecture", "tools", "recipes", "convolution", "kernels", "export")
PAGES = (
    *(ROOT / "docs" / f"{name}.md" for name in DOCS),
    ROOT / "CONTRIBUTING.md",
    ROOT / "swirl/schedule/command_methods.py",
)
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def refreshed(text: str, folder: Path) -> str:
    """The page with new output in every block."""
    environment = prepare(folder)

    def block(found: re.Match[str]) -> str:
        commands = [line for line in found[1].splitlines() if line.startswith("$ ")]
        parts = [f"{command}\n{output(command[2:], folder, environment)}" for command in commands]
        return "```console\n" + "".join(parts) + "```"

    return BLOCK.sub(block, text)


def prepare(folder: Path) -> dict[str, str]:
    """Links to the repository, and ``latte`` and ``python`` as programs."""
    for path in ROOT.iterdir():
        if path.name != ".git":
            (folder / path.name).symlink_to(path)
    programs = folder / ".programs"
    programs.mkdir()
    for name, arguments in (("latte", " -m latte"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        (programs / name).chmod(0o755)
    paths = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **paths, "SWIRL_TARGET": "avx512", "COLUMNS": "100"}


def output(command: str, folder: Path, environment: dict[str, str]) -> str:
    """What a command prints, errors included, without this machine's paths."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    lines = [line.rstrip() for line in (done.stdout + done.stderr).rstrip().splitlines()]
    shown = "".join(f"{line}\n" for line in lines)
    return shown.replace(str(folder) + "/", "").replace(str(ROOT) + "/", "").replace(str(Path.home()), "~")


def main() -> None:
    """All pages."""
    old = []
    named = [argument for argument in sys.argv[1:] if argument != "--check"]
    for page in PAGES:
        if named and page.stem not in named:
            continue
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            new = refreshed(text, Path(folder))
        new = FILLED.get(page.name, str)(new)
        if new != text:
            old.append(str(page.relative_to(ROOT)))
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    what = "out of date" if "--check" in sys.argv else "written"
    print(f"{what}: {', '.join(old)}" if old else "up to date")
    if old and "--check" in sys.argv:
        sys.exit(1)


if __name__ == "__main__":
    main()
