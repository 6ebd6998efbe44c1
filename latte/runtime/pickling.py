"""A net as bytes: its declaration with the sources of its bodies, and what it has learned.

Layers are mostly classes inside of functions, whose constants they use, so :mod:`cloudpickle` writes them. It keeps
code, and Latte compiles sources: the file of each such class is written, too, and stays what it was when the net was
pickled, whatever the file of that name holds where the net is loaded.
"""

from __future__ import annotations

import hashlib
import io
import linecache
import pickle
from types import CodeType
from typing import Any

import cloudpickle

from latte.model.source_location import user_location
from latte.version import VERSION
from swirl.errors import DataError

_MARK = "<pickled "


class _Pickler(cloudpickle.Pickler):
    """Attributes:
    sources: file name → lines, of the code that is written.
    """

    def __init__(self, file: io.BytesIO):
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.sources: dict[str, list[str]] = {}
        self._without_file: dict[int, CodeType] = {}

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, CodeType) or id(value) in self._without_file:
            return super().reducer_override(value)
        code = value.replace()  # cloudpickle drops the file of this one
        self._without_file[id(code)] = code
        return _of_file, (code, self._kept(value.co_filename))

    def _kept(self, filename: str) -> str:
        """The name under which the lines of a file are kept."""
        lines = linecache.getlines(filename)
        version = hashlib.sha256("".join(lines).encode()).hexdigest()[:12]
        name = filename if filename.startswith(_MARK) else f"{_MARK}{version}> {filename}"
        self.sources[name] = lines
        return name


def _of_file(code: CodeType, name: str) -> CodeType:
    """The code with its file again."""
    return code.replace(co_filename=name)


def to_bytes(value: Any) -> bytes:
    """A value with all classes and functions that cannot be imported.

    Raises:
        TypeError, pickle.PicklingError: something in it cannot be written, such as an open file.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return pickle.dumps((VERSION, pickler.sources, file.getvalue()))


def from_bytes(data: bytes) -> Any:
    """What :func:`to_bytes` was given. Only for data that you trust: loading runs code of theirs.

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
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return pickle.loads(pickled)
