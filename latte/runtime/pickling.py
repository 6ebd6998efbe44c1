"""A net as bytes: its declaration with the sources of its bodies, and what it has learned.

Layers are mostly classes inside of functions, whose constants they use, so :mod:`cloudpickle` writes them. It keeps
code, and Latte compiles sources: those of each function that cannot be imported are written, too.
"""

from __future__ import annotations

import copyreg
import hashlib
import io
import linecache
import pickle
from collections.abc import Sequence
from types import CodeType
from typing import Any

import cloudpickle

from latte.model.ensemble import Ensemble
from latte.model.source_location import user_location
from latte.model.sources import SourceMissing, source_of
from latte.version import VERSION
from swirl.errors import BodyError, DataError


class _Pickler(cloudpickle.Pickler):
    """Attributes:
    sources: name that stands for a file → lines of a function of it, at the lines where they were.
    """

    def __init__(self, file: io.BytesIO):
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.sources: dict[str, Sequence[str]] = {}
        self._without_file: dict[int, CodeType] = {}

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType) and id(value) not in self._without_file:
            code = value.replace()  # cloudpickle drops the file of this one
            self._without_file[id(code)] = code
            return _of_file, (code, self._kept(value))
        if isinstance(value, Ensemble):
            return copyreg.__newobj__, (type(value),), value.__getstate__()  # type: ignore[attr-defined]
        reduced = super().reducer_override(value)
        if isinstance(value, type) and isinstance(reduced, tuple) and reduced[0] in _NEW_CLASSES:
            *arguments, _tracked_as, last = reduced[1]
            return reduced[0], (*arguments, None, last), *reduced[2:]
        return reduced

    def _kept(self, code: CodeType) -> str:
        """The name under which the lines of a function are kept."""
        try:
            source = source_of(code, code.co_name)
        except (SourceMissing, BodyError):  # few functions are bodies; those that are say it when they are compiled
            return code.co_filename
        version = hashlib.sha256("".join(source.lines).encode()).hexdigest()[:12]
        name = f"<pickled {version}> {code.co_filename.rpartition('> ')[2]}"
        self.sources[name] = (*["\n"] * (source.first - 1), *source.lines)
        return name


# With a number that stands for it, a class that is loaded takes the place of the one that was pickled, if that is in
# the process: nets that use it would change.
_NEW_CLASSES = (cloudpickle.cloudpickle._make_skeleton_class, cloudpickle.cloudpickle._make_skeleton_enum)


def _of_file(code: CodeType, name: str) -> CodeType:
    """The code with its file again."""
    return code.replace(co_filename=name)


def to_bytes(value: Any) -> bytes:
    """A value with all classes and functions that cannot be imported.

    Raises:
        TypeError, pickle.PicklingError: something in it cannot be written, such as a lock.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return pickle.dumps((VERSION, pickler.sources, file.getvalue()))


def restored(data: bytes) -> Any:
    """The object whose class and state :func:`to_bytes` was given. Only for data that you trust: loading runs code of
    theirs.

    Raises:
        DataError: another version of Latte has written them.
    """
    written_by, sources, pickled = pickle.loads(data)
    if written_by != VERSION:
        raise DataError(
            f"version {written_by} of Latte has pickled this net, and this is {VERSION}",
            location=user_location(),
            way_out="net.save(path) there, and load it into a net that is declared alike",
        )
    for name, lines in sources.items():
        # No time of a file: linecache then never looks for it.
        linecache.cache[name] = (sum(map(len, lines)), None, list(lines), name)
    kind, state = pickle.loads(pickled)
    made = kind.__new__(kind)
    made.__setstate__(state)
    return made
