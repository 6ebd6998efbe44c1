"""Files that define a net, for the command line."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from latte.explain.explanation import phases_of
from latte.net import Net
from latte.runtime.kernels import CompiledPhase
from latte.runtime.session import NotTuned
from swirl.errors import CommandError, LatteError

Source = click.Path(exists=True, dir_okay=False, path_type=Path)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Our own errors are shown without a traceback."""
    try:
        yield
    except LatteError as error:
        raise click.ClickException(str(error)) from error


def load_net(path: Path) -> Net:
    """The net that a file defines, as ``net`` or by a function ``net()``.

    Raises:
        LatteError: the file defines none, or running it fails.
    """
    name = f"latte_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LatteError("is not Python file", location=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where inspect looks for the source of the file's own layers
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
        found = getattr(module, "net", None)
        if callable(found):
            found = found()
    except LatteError:
        raise
    except Exception as error:  # whatever the user's file raises
        raise LatteError(f"does not run: {type(error).__name__}: {error}", location=str(path)) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    if not isinstance(found, Net):
        raise LatteError(
            "defines no net",
            location=str(path),
            way_out='def net(): … return net, or a module-level net; training belongs under if __name__ == "__main__"',
        )
    return found


def compiled_net(path: Path, target: str | None) -> Net:
    net = load_net(path)
    if not net.compiled:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotTuned)  # an explanation's notes say it, of each phase
            net.compile(target=target)
    elif target not in (None, net.executable.plan.target.name):
        raise CommandError(
            f"{path} compiles its net for {net.executable.plan.target.name}", way_out="leave out --target"
        )
    return net


def computed_phases(net: Net, layer: str, phase: str | None = None) -> list[CompiledPhase]:
    """The compiled phases of a layer or a chain, at least one.

    Raises:
        CommandError: there is no such layer or phase, or it is a data layer.
    """
    found = phases_of(net.executable, layer, phase)
    if not found:
        raise CommandError(f"{layer} computes nothing: it has no stages", way_out="name another layer")
    return found
