"""What a net has learned, in a file: parameters, running statistics, random numbers, a solver's state."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from latte.model.checks import check_flags, takes
from latte.model.freezing import Freezing
from latte.model.graph import Graph
from latte.model.source_location import user_location
from latte.runtime.checkpoint_format import Damaged, generator_of, read, written
from latte.runtime.data import check_fields
from latte.runtime.files import NotAFile, write_whole
from latte.runtime.incompatible import IncompatibleKeys, incompatible
from latte.runtime.locking import one_at_a_time
from latte.runtime.session import Session
from swirl.errors import DataError
from swirl.errors import about as prefixed

LEARNED = ("param", "state")
"""Roles of the buffers that are in a file: parameters, and what layers keep from batch to batch."""
OPTIONAL = frozenset(("layers", "skipped"))
"""Settings of a solver that files of older versions do not have."""
SOLVER = "solver:"
"""Before the names of a solver's arrays: no layer has such a name."""


@dataclass(frozen=True)
class SolverState:
    """What a solver needs to go on.

    Args:
        kind: the solver's class.
        settings: its numbers (``learning_rate``, …) and what else it needs, as JSON has it.
        arrays: what it keeps for each parameter (``velocity.conv1.weights``), in logical order.
    """

    kind: str
    settings: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


@runtime_checkable
class Resumable(Protocol):
    """A solver whose state can be saved."""

    def state(self) -> SolverState:
        """Its state now, as copies."""

    def load_state(self, state: SolverState) -> Any:
        """Go on from a state of a solver of the same kind. DataError where it is not for the parameters of this net;
        nothing is changed then."""


@dataclass(frozen=True)
class Checkpoint:
    """The content of a file.

    Args:
        tensors: storage (``conv1.weights``) → values; those of a solver begin with ``solver:``.
        about: ``seed``, ``step``, ``shuffling``, ``frozen`` and ``solver``, as JSON has them.
    """

    tensors: Mapping[str, np.ndarray]
    about: Mapping[str, Any] = field(default_factory=dict)


# --- a net's state ----------------------------------------------------------------------------------------
@one_at_a_time
def save(session: Session, path: str | os.PathLike[str], solver: Resumable | None = None) -> None:
    """Save a net, so that :func:`load` goes on from here: to the last bit, on the same machine.

    The file is a safetensors file with a checksum for each tensor. It is written beside ``path`` and renamed: whenever
    the process is killed, ``path`` is the old file or the new one, and whole. Gradients are not in it.

    Args:
        session: of the compiled net.
        path: of the file; an older one is replaced.
        solver: whose settings and momentum are saved, too.

    Raises:
        DataError: the file cannot be written (an older one is left as it was), or the solver has no state to save.
    """
    write_file(path, snapshot(session, solver))


def snapshot(session: Session, solver: Resumable | None = None) -> Checkpoint:
    """What :func:`save` writes; copies.

    Raises:
        DataError: the solver has no state to save.
    """
    tensors = learned(session)
    executable, shuffling = session.executable, session.shuffling
    about: dict[str, Any] = {
        "seed": session.graph.settings.seed,
        "step": int(executable.arrays["net.step"][0]) if "net.step" in executable.arrays else 0,
        "shuffling": None if shuffling is None else shuffling.bit_generator.state,
        "loss_weights": {loss.name: loss.loss_weight for loss in session.graph.losses()},
        "frozen": session.graph.settings.freezing.saved(),
        "solver": None,
    }
    if solver is not None:
        state = _resumable(solver, session).state()
        about["solver"] = {"kind": state.kind, "settings": dict(state.settings)}
        tensors |= {f"{SOLVER}{name}": values for name, values in state.arrays.items()}
    return Checkpoint(tensors, about)


@one_at_a_time
def load(
    session: Session, path: str | os.PathLike[str], solver: Resumable | None = None, strict: bool = True
) -> IncompatibleKeys:
    """Set a net, and a solver, to what a file has. The gradients count as cleared afterwards.

    Args:
        session: of a compiled net with the same layers: names, shapes and types of parameters are compared.
        path: of a file that :func:`save` has written.
        solver: of the same kind as the one that was saved; without it, the file's one is left out.
        strict: whether the file must be of a net that is declared alike. It is gone on from there then: with its seed
            and random numbers, its weights of losses, and what was frozen; freeze layers afterwards to change that.
            Otherwise those parameters and statistics are taken whose names, shapes and types fit, and of the solver
            what is kept for such parameters; the rest of the net is as it was, what is frozen too.

    Returns:
        what was left out: nothing if ``strict``.

    Raises:
        DataError: there is no such file, it is damaged or of something else, or does not fit: the message names the
            tensor. Net and solver are as they were then.
    """
    check_flags(DataError, strict=strict)
    return take(session, read_file(path), os.fspath(path), solver, strict)


def take(
    session: Session, found: Checkpoint, name_of_file: str, solver: Resumable | None = None, strict: bool = True
) -> IncompatibleKeys:
    """Set a net, and a solver, to what :func:`snapshot` has returned; arguments and errors as of :func:`load`.

    Args:
        session: of the net.
        found: the content of a file.
        name_of_file: where it comes from, for messages.
        solver: see :func:`load`.
        strict: see :func:`load`.
    """
    shuffling, freezing = _generator(found.about["shuffling"]), _freezing(found.about, name_of_file)
    own, left = _fitting(session.graph, found, learned(session), name_of_file, strict)
    if solver is not None:
        left = left.with_others(_load_solver(_resumable(solver, session), found, name_of_file, strict))
    for name, values in own.items():
        session.whole.write(name, values)
    if strict:
        _go_on(session.graph, found.about, freezing)
        arrays = session.whole.arrays
        for name, number in (("net.seed", found.about["seed"]), ("net.step", found.about["step"])):
            if name in arrays:
                arrays[name][0] = number
        session.shuffling = shuffling
    session.forget_runs()
    return left


def load_declared(graph: Graph, path: str | os.PathLike[str], here: Mapping[str, np.ndarray]) -> Checkpoint:
    """The same as a strict :func:`load` for a net that is not compiled: its settings are those of the file then.

    Args:
        graph: of the net.
        path: of a file that :func:`save` has written.
        here: the parameters and running statistics of the net, by storage, in logical order.

    Returns:
        what the file has, without a solver's.

    Raises:
        DataError: as :func:`load` does. The net is as it was then.
    """
    found, name_of_file = read_file(path), os.fspath(path)
    freezing = _freezing(found.about, name_of_file)
    own, _ = _fitting(graph, found, here, name_of_file, strict=True)
    _go_on(graph, found.about, freezing)
    return Checkpoint(own, found.about)


def _fitting(
    graph: Graph, found: Checkpoint, here: Mapping[str, np.ndarray], name_of_file: str, strict: bool
) -> tuple[dict[str, np.ndarray], IncompatibleKeys]:
    """What a file has for a net, and what is left out.

    Args:
        graph: of the net.
        found: the file's content.
        here: what the net has.
        name_of_file: for messages.
        strict: whether all must fit.

    Raises:
        DataError: it does not.
    """
    own = {name: values for name, values in found.tensors.items() if not name.startswith(SOLVER)}
    if strict:
        check_alike(own, here, name_of_file, "the net")
    left = incompatible(own, here)
    unlike = {name for name, *_ in left.mismatched_keys}
    own = {name: values for name, values in own.items() if name in here and name not in unlike}
    check_fields(graph, own)
    return own, left


def _load_solver(solver: Resumable, found: Checkpoint, name_of_file: str, strict: bool) -> IncompatibleKeys:
    """Set a solver to what a file has; what was left out.

    Raises:
        DataError: it does not fit. It is as it was then.
    """
    state, mine = _solver_state(found, name_of_file), solver.state()
    if state.kind != mine.kind or state.settings.keys() - OPTIONAL != mine.settings.keys() - OPTIONAL:
        raise DataError(
            f"{name_of_file} has the state of a solver {state.kind}, not of {mine.kind}",
            location=user_location(),
            way_out="load without a solver, or with one of that kind",
        )
    if strict:
        check_alike(state.arrays, mine.arrays, name_of_file, "the solver")
        with prefixed(name_of_file):
            solver.load_state(state)
        return incompatible({}, {})
    if not takes(solver.load_state, 1, "strict"):
        raise DataError(
            f"strict=False: {type(solver).__name__}.load_state does not take strict=",
            location=user_location(),
            way_out="load without a solver",
        )
    with prefixed(name_of_file):
        left = solver.load_state(state, strict=False)  # type: ignore[call-arg]
    return IncompatibleKeys(
        [f"{SOLVER}{name}" for name in left.missing_keys],
        [f"{SOLVER}{name}" for name in left.unexpected_keys],
        [(f"{SOLVER}{name}", theirs, ours) for name, theirs, ours in left.mismatched_keys],
    )


def _go_on(graph: Graph, about: Mapping[str, Any], freezing: Freezing | None) -> None:
    """Set the weights of losses, the seed, and what is frozen to what a file has."""
    weights = about.get("loss_weights", {})  # later than others
    for loss in graph.losses():
        loss.loss_weight = weights.get(loss.name, loss.loss_weight)
    graph.settings.seed = int(about["seed"])
    if freezing is not None:
        graph.settings.freezing = freezing


def _freezing(about: Mapping[str, Any], path: str) -> Freezing | None:
    """What was frozen; None in a file of an older version.

    Raises:
        DataError: it is something else.
    """
    saved = about.get("frozen")
    if saved is None:
        return None
    lists = saved.values() if isinstance(saved, dict) else [None]
    if not all(isinstance(names, list) and set(map(type, names)) <= {str} for names in lists):
        raise DataError(f"{path} says that {saved!r} is frozen, not names", location=user_location())
    return Freezing.restored(saved)


def learned(session: Session) -> dict[str, np.ndarray]:
    """Copies of the parameters and running statistics of a net, by storage, in logical order."""
    executable = session.whole
    names = [name for name, buffer in executable.buffers.items() if buffer.role in LEARNED]
    return {name: executable.read_whole(name) for name in names}


def _generator(state: Mapping[str, Any] | None) -> np.random.Generator | None:
    return None if state is None else generator_of(state)


def _resumable(solver: Any, session: Session) -> Resumable:
    if isinstance(solver, type) or not isinstance(solver, Resumable):
        raise DataError(
            f"{solver!r} has no state to save: methods state() and load_state(state)",
            location=user_location(),
            way_out="give a solver of latte.solver, or leave it out",
        )
    if getattr(solver, "session", session) is not session:
        raise DataError("the solver trains another net", location=user_location(), way_out="give the one of this net")
    return solver


def _solver_state(found: Checkpoint, name_of_file: str) -> SolverState:
    about = found.about["solver"]
    if about is None:
        raise DataError(
            f"{name_of_file} has no state of a solver",
            location=user_location(),
            way_out="load without one; it is in the file after net.save(path, solver=solver)",
        )
    arrays = {name[len(SOLVER) :]: v for name, v in found.tensors.items() if name.startswith(SOLVER)}
    return SolverState(about["kind"], about["settings"], arrays)


def check_alike(found: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray], path: str, what: str) -> None:
    """DataError, unless the names, shapes and types are the same."""
    location, way_out = user_location(), f"declare {what} as the one that was saved: it has {', '.join(sorted(found))}"
    for name, values in own.items():
        if name not in found:
            raise DataError(f"{path} has no {name}, which {what} has", location=location, way_out=way_out)
        theirs, ours = (f"{array.dtype} {array.shape}" for array in (found[name], values))
        if theirs != ours:
            raise DataError(f"{name} is {theirs} in {path}, and {ours} in {what}", location=location, way_out=way_out)
    for name in sorted(found.keys() - own.keys()):
        raise DataError(f"{path} has {name}, which {what} does not have", location=location, way_out=way_out)


# --- files ------------------------------------------------------------------------------------------------
def write_file(path: str | os.PathLike[str], content: Checkpoint) -> None:
    """Write a file in one piece: it is complete, or the one before it stays.

    Raises:
        DataError: it cannot be written.
    """
    target = _path(path)
    tensors = {name: np.ascontiguousarray(values) for name, values in content.tensors.items()}
    try:
        write_whole(target, written(tensors, json.dumps(content.about)))
    except OSError as error:
        raise DataError(
            f"{target} cannot be written: {error.strerror or error}",
            location=user_location(),
            way_out="give a path where nothing exists yet"
            if isinstance(error, NotAFile)
            else "a file that was there before is unchanged",
        ) from error


def _path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not Path(path).name or "\0" in os.fspath(path):
        raise DataError(f"a file is given by its path, not {path!r}", location=user_location())
    return Path(path)


def read_file(path: str | os.PathLike[str]) -> Checkpoint:
    """The content of a file.

    Raises:
        DataError: there is none, it is damaged (the message names the tensor), or it is not one of ours.
    """
    location = user_location()
    try:
        data = _path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{os.fspath(path)} cannot be read: {error.strerror or error}", location=location) from error
    try:
        return Checkpoint(*read(data))
    except Damaged as error:
        raise DataError(f"{os.fspath(path)} {error}", location=location, way_out=error.way_out) from error
