"""Files that define a net, for the command line."""

from __future__ import annotations

import ast
import importlib.util
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import click

from latte.explain.explanation import phases_of
from latte.model.graph import EVERY_RECIPE
from latte.net import Net
from latte.runtime.kernels import CompiledPhase
from latte.runtime.report import DoubtfulCommand, NotTuned
from swirl.errors import CommandError, LatteError
from swirl.schedule.choices import check_choices

RUNS = (
    *("fit", "evaluate", "predict", "forward", "test", "backward", "forward_tasks", "backward_tasks"),
    *("save", "load", "state_dict", "load_state_dict", "check_gradients", "timings", "profile"),
)
"""Members of a net that run it, or write or read what it has learned."""

Source = click.Path(exists=True, dir_okay=False, path_type=Path)
AtLeastOne = click.IntRange(min=1)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Our own errors are shown without a traceback."""
    try:
        yield
    except LatteError as error:
        raise click.ClickException(str(error)) from error


def _as_choices(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` → the value as Python reads it; a word needs no quotes."""
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not name.isidentifier() or not sign:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        try:
            found[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            found[name] = value
    return found


SET = click.option(
    "--set",
    "choices",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_as_choices,
    help="a choice of recipes; repeatable",
)
"""What recipes ask for by ``s.choose``."""


def load_net(path: Path, choices: Mapping[str, Any] = MappingProxyType({})) -> Net:
    """The net of a file, which is run up to the first call that would run a net: its ``net``, or what its ``net()``
    returns or would run; else the one that would run; else the only one that it has.

    Args:
        path: of the file.
        choices: for its recipes, by name.

    Raises:
        LatteError: the file defines none, or several, or running it fails; or choices come too late.
    """
    with _running(path) as module:
        with _stopped_before_running() as stopped:
            _execute(module)
        found = getattr(module, "net", None)
        if callable(found):
            with _stopped_before_running() as inside:
                found = found()
            found = inside[0] if inside else found
    if not isinstance(found, Net):
        found = stopped[0] if stopped else _only_net(vars(module), str(path))
    if choices:
        if found.compiled:
            raise CommandError(
                f"the net of {path} is compiled already, without these choices",
                way_out="leave net.compile() out of the file, or net.use_recipe(…, choices=…)",
            )
        found.graph.choices[EVERY_RECIPE] = check_choices(choices)
    return found


def load_module(path: Path) -> ModuleType:
    """A file as a module; it may import what is beside it.

    Raises:
        LatteError: running it fails.
    """
    with _running(path) as module:
        _execute(module)
    return module


@contextmanager
def _running(path: Path) -> Iterator[ModuleType]:
    """A module for a file, which runs in it as a script; what goes wrong there is an error of that file.

    Raises:
        LatteError: it is not Python, or running it fails.
    """
    name = f"latte_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LatteError("is not a Python file", location=str(path), way_out="its name ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where inspect looks for the source of the file's own layers
    try:
        with _as_a_script(path):
            yield module
    except LatteError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        raise LatteError(f"does not run: {type(error).__name__}: {error}", location=str(path)) from error


def _execute(module: ModuleType) -> None:
    assert module.__spec__ is not None and module.__spec__.loader is not None
    module.__spec__.loader.exec_module(module)


@contextmanager
def _as_a_script(path: Path) -> Iterator[None]:
    """Run a file as Python does: it imports from its own folder, and gets none of the command line's arguments. What it
    prints goes to stderr, apart from what the command shows."""
    arguments, folder = sys.argv, str(path.resolve().parent)
    sys.argv = [str(path)]
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.argv = arguments
        sys.path.remove(folder)


class _Stopped(BaseException):
    """Ends a script where it would run a net. Not an ``Exception``: scripts catch those."""


@contextmanager
def _stopped_before_running() -> Iterator[list[Net]]:
    """Ends what runs in it at the first use of ``RUNS``.

    Yields:
        the nets of such uses: several where a script has caught what ends it, and gone on.
    """
    nets: list[Net] = []

    def stop(net: Net, *_: object, **__: object) -> None:
        nets.append(net)
        raise _Stopped

    owners = {name: next(each for each in Net.__mro__ if name in vars(each)) for name in RUNS}
    methods = {name: vars(owner)[name] for name, owner in owners.items()}
    try:
        for name, owner in owners.items():
            setattr(owner, name, property(stop) if isinstance(methods[name], property) else stop)
        yield nets
    except _Stopped:
        pass
    except SystemExit as ended:
        if ended.code:  # otherwise the script's own end
            raise
    finally:
        for name, method in methods.items():
            setattr(owners[name], name, method)


def _only_net(variables: Mapping[str, object], location: str) -> Net:
    """The net among the variables of a module.

    Raises:
        LatteError: there is none, or there are several.
    """
    names: dict[Net, str] = {}
    for name, value in variables.items():
        if isinstance(value, Net):
            names.setdefault(value, name)
    if not names:
        raise LatteError("defines no net", location=location, way_out="net = Net(…), or def net(): … return net")
    first, *others = names
    if others:
        raise LatteError(
            f"defines several nets: {', '.join(names.values())}",
            location=location,
            way_out=f"call the one that is wanted net: net = {names[first]}",
        )
    return first


def compiled_net(path: Path, target: str | None, choices: Mapping[str, Any] = MappingProxyType({})) -> Net:
    net = load_net(path, choices)
    if not net.compiled:
        with warnings.catch_warnings():
            for said in (NotTuned, DoubtfulCommand):  # an explanation says it, of each phase and command
                warnings.simplefilter("ignore", said)
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
