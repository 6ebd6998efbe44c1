"""Passes and commands whose results are kept on disk, so that what has not changed is not computed again.

A pass is a function program → program, a command a function (program, arguments) → program or refusal; neither looks
at anything else (:mod:`swirl.transforms.command`; time limits count operations, not seconds). So the result of each
call is kept by itself; its key is everything that the call sees: the program (printed nests, buffers with their
layouts, aliases, commands so far; without the names of layers, :mod:`swirl.ir.anonymous`), the name, the arguments, and
the sources of this package. A recipe as a whole is *not* kept: it is Python, and may look at files, at the environment,
at another layer, or at random numbers. It runs every time, which costs almost nothing, and asks for its commands; the
results of those that were asked before on the same program come from here. So an edited recipe computes its program
again from the first changed command on, and never gets the result of another one.

Calls that their text does not identify are computed every time: arguments that are not plain values, functions from
outside of this package (a replaced pass), programs that printing changes.

The results of one ensemble are one entry of the cache folder: read once, written once (atomic, locked, verified).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from swirl.build.cache import cache_folder, cache_key, draft_folder, entry_lock, publish, read_entry
from swirl.config import settings
from swirl.errors import CommandError, LatteError, LayoutError, Refused
from swirl.ir.anonymous import Anonymous, anonymous
from swirl.ir.nest import Program
from swirl.ir.text import from_json, identity, to_json
from swirl.transforms.command import Command

T = TypeVar("T")

PACKAGE = Path(__file__).parents[1]
RESULTS = "results.json"
LIMIT = 1024
"""The number of results kept for one ensemble, the last ones used: about ten recipes."""

_REFUSALS = {kind.__name__: kind for kind in (CommandError, Refused, LayoutError)}
_PARTS = ("message", "location", "nest", "witness", "way_out")
_IMPORTED = time.time()


class Memo:
    """Results of passes and commands. Without ``known``, nothing is kept: every call computes.

    Args:
        known: key → result, as values of JSON.

    Attributes:
        used: the results asked for, new ones included.
        computed: how many were not known.
        chosen: what a schedule looks at → the commands that were chosen by it
            (:meth:`swirl.schedule.recipe.Schedule.chosen`); not on disk, where whole schedules are kept.
    """

    def __init__(self, known: dict[str, Any] | None = None):
        self.known = known
        self.used: dict[str, Any] = {}
        self.computed = 0
        self.chosen: dict[str, Any] = {}

    def program(self, function: Callable[..., Program], program: Program, *arguments: Any, **options: Any) -> Program:
        """``function(program, *arguments, **options)``.

        Raises:
            CommandError, Refused, LayoutError: as the function does, now or when it was computed.
        """
        return self.value(function, program, arguments, options, to_json, from_json)

    def value(
        self,
        function: Callable[..., T],
        program: Program,
        arguments: tuple[Any, ...],
        options: Mapping[str, Any],
        encode: Callable[[T], Any],
        decode: Callable[[Any], T],
    ) -> T:
        """The same for a function with another kind of result, which ``encode`` makes a value of JSON (or None)."""
        if self.known is None or not (is_ours(function) and is_plain(arguments) and is_plain(options)):
            return function(program, *arguments, **options)
        call = _Call(function, anonymous(program), arguments, options)
        found = self.used.get(call.key) or self.known.get(call.key)
        if not _is_result(found):
            return self._compute(call, program, encode, decode)
        try:
            result = self._refusal(call, found["refused"]) if "refused" in found else call.named(decode(found["made"]))
        except Exception:  # an error from a damaged entry: not a result
            return self._compute(call, program, encode, decode)
        self.used[call.key] = found
        if isinstance(result, LatteError):
            raise result
        return result

    def _compute(self, call: _Call, program: Program, encode: Callable[[T], Any], decode: Callable[[Any], T]) -> T:
        self.computed += 1
        try:
            result: T = call.made()
        except LatteError as error:
            if type(error) not in _REFUSALS.values():
                return call.function(program, *call.arguments, **call.options)  # raises it with the layer's own names
            later = isinstance(error, Refused) and error.has_to_look
            parts = [part for part in _PARTS if not (later and part == "way_out")]
            refused = {"kind": type(error).__name__, **{part: getattr(error, part, None) for part in parts}}
            self.used[call.key] = {"refused": refused}
            raise self._refusal(call, refused, error) from error
        made = encode(result)
        if made is None:
            return call.named(result)
        self.used[call.key] = {"made": made}
        return call.named(decode(made))  # as it is from now on; equal nests are one object, with what is known of them

    def _refusal(self, call: _Call, refused: dict[str, Any], error: LatteError | None = None) -> LatteError:
        """A refusal with the layers' own names. Its way out, which takes long to find, is looked for when it is read.

        Args:
            call: that was refused.
            refused: what is kept of it; the way out is added once it is known.
            error: that the call raised; by default the call is asked again.
        """

        def way_out() -> str | None:
            if "way_out" not in refused:
                self.computed += 1
                refused["way_out"] = getattr(error or call.error(), "way_out", None)
            return call.given.text(refused["way_out"]) if refused["way_out"] else None

        kind = _REFUSALS[refused["kind"]]
        named = {part: call.given.text(text) if isinstance(text, str) else text for part, text in refused.items()}
        if kind is Refused:
            parts = {part: named[part] for part in ("location", "nest", "witness")}
            return Refused(named["message"], way_out=way_out, **parts)
        return kind(named["message"], location=named["location"], way_out=named["way_out"])


@dataclass(frozen=True)
class _Call:
    """A call of a pass or command.

    Args:
        function: the pass or command.
        given: the program, without names.
        arguments, options: the others.
    """

    function: Callable[..., Any]
    given: Anonymous
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        parts = repr(self._arguments), repr(self._options)
        return cache_key(_name(self.function), identity(self.given.program), *parts)

    def made(self) -> Any:
        """The function's result for the program without names."""
        return self.function(self.given.program, *self._arguments, **self._options)

    def named(self, result: Any) -> Any:
        """The result with the layers' names."""
        return self.given.named(result) if isinstance(result, Program) else result

    def error(self) -> LatteError | None:
        """What the function raises."""
        try:
            self.made()
        except LatteError as error:
            return error
        return None

    @cached_property
    def _arguments(self) -> tuple[Any, ...]:
        return tuple(map(self.given.argument, self.arguments))

    @cached_property
    def _options(self) -> dict[str, Any]:
        return {key: self.given.argument(value) for key, value in self.options.items()}


def _is_result(found: Any) -> TypeGuard[dict[str, Any]]:
    """Whether it is what a call has made, or a refusal with its texts."""
    if not isinstance(found, dict) or "refused" not in found:
        return isinstance(found, dict) and "made" in found
    refused = found["refused"]
    if not isinstance(refused, dict) or not all(isinstance(text, str | None) for text in refused.values()):
        return False
    return refused.get("kind") in _REFUSALS and refused.get("message") is not None


class Memos:
    """The memos of a compilation. What was computed is kept on disk when it ends, also after an error.

    Nothing is kept where ``SWIRL_MEMO=0``, and where this package's sources have changed since they were imported.
    """

    def __init__(self) -> None:
        self.version = _version() if settings().memo else None
        """Identity of this package's sources; None where nothing is kept."""
        self._open: dict[str, Memo] = {}

    def of(self, programs: Iterable[Program]) -> Memo:
        """The memo for all results from these programs; equal layers share one."""
        if self.version is None:
            return Memo()
        key = cache_key("schedule", self.version, *(identity(anonymous(program).program) for program in programs))
        if key not in self._open:
            self._open[key] = Memo(_read(key))
        return self._open[key]

    def __enter__(self) -> Memos:
        return self

    def __exit__(self, *_: object) -> None:
        for key, memo in self._open.items():
            if memo.computed:
                _write(key, memo.used)


def _read(key: str) -> dict[str, Any]:
    """The results of an entry; none where it is missing or damaged."""
    if read_entry(key, files=(RESULTS,)) is None:
        return {}
    try:
        found = json.loads((cache_folder() / key / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(key: str, used: dict[str, Any]) -> None:
    """Keep results, the last used last; what cannot be written is computed again next time."""
    try:
        with entry_lock(key), draft_folder(key) as draft:
            others = {name: result for name, result in _read(key).items() if name not in used}
            kept = dict(list({**others, **used}.items())[-LIMIT:])
            (draft / RESULTS).write_text(json.dumps(kept), encoding="utf-8")
            publish(draft, key, {"results": len(kept)}, verified=(RESULTS,))
    except (OSError, LatteError):
        pass


# --- what a result depends on -------------------------------------------------------------------------------
@lru_cache(maxsize=1)
def _version() -> str | None:
    """Identity of this package's sources and of what they compute with; None where they are not those imported."""
    sources = sources_identity(PACKAGE)
    try:
        others = [metadata.version(name) for name in ("islpy", "ctree", "jinja2", "numpy")]
    except metadata.PackageNotFoundError:  # inside an archive, for one
        return None
    return sources and cache_key(sys.version, *others, sources)


def sources_identity(package: Path) -> str | None:
    """A text that changes with the sources in a folder; None where they are not those that were imported."""
    files = sorted(path for path in package.rglob("*") if path.suffix in (".py", ".j2"))
    try:
        if any(path.stat().st_mtime > _IMPORTED for path in files):
            return None
        texts = [part for path in files for part in (str(path.relative_to(package)), path.read_text(encoding="utf-8"))]
    except OSError:  # inside an archive, for one
        return None
    return cache_key(*texts)


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, Command):
        function = function.function
    return f"{function.__module__}.{function.__qualname__}"


@lru_cache(maxsize=1024)
def is_ours(function: Callable[..., Any]) -> bool:
    """Whether the function's source is one of this package's files."""
    if isinstance(function, Command):
        function = function.function
    while True:
        code, inner = getattr(function, "__code__", None), getattr(function, "__wrapped__", None)
        if code is None or not Path(code.co_filename).is_relative_to(PACKAGE):
            return False
        if inner is None:  # one that is made at run time may hold anything
            return getattr(function, "__closure__", None) is None
        function = inner


def is_plain(value: Any) -> bool:
    """Whether its ``repr`` determines a value."""
    if isinstance(value, Mapping):
        return type(value) is dict and all(is_plain(key) and is_plain(item) for key, item in value.items())
    if type(value) in (tuple, list):
        return all(is_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)
