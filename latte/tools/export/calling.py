"""An exported library called from Python: for tests and measurements. Programs call it from C."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from latte.tools.export.sources import OWN_NAME
from swirl.ir.buffers import DTYPES

STATUSES = (
    *("OK", "WRONG_ARGUMENT", "NO_FILE", "NOT_WEIGHTS", "OTHER_VERSION", "OTHER_MODEL", "DAMAGED"),
    *("NO_TARGET", "NO_MEMORY", "BAD_INPUT", "BAD_ITEMS"),
)
TYPES = ("float32", "int32", "bool", "float64")


class Failed(Exception):
    """A call has failed.

    Args:
        status: its name.
        message: what the model says.
    """

    def __init__(self, status: str, message: str):
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_long)),
        ("count", ctypes.c_long),
        ("below", ctypes.c_long),
    )


class _Options(ctypes.Structure):
    _fields_ = (("threads", ctypes.c_int), ("target", ctypes.c_char_p), ("accept_not_finite", ctypes.c_int))


class Library:
    """A shared library that an export was built to.

    Args:
        path: of it.
        name: that the export was given.

    Raises:
        OSError: it cannot be loaded.
    """

    def __init__(self, path: Path, name: str = OWN_NAME):
        library, pointer = ctypes.CDLL(str(path)), ctypes.c_void_p
        self._name, self._library = name, library
        for function, result, *arguments in (
            ("load", ctypes.c_int, ctypes.c_char_p, pointer, pointer),
            ("load_bytes", ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, pointer, pointer),
            ("share", ctypes.c_int, pointer, pointer, pointer),
            ("run", ctypes.c_int, pointer, pointer, ctypes.c_long, pointer),
            ("free", None, pointer),
            ("input", ctypes.POINTER(_Tensor), ctypes.c_int),
            ("output", ctypes.POINTER(_Tensor), ctypes.c_int),
            ("target", ctypes.c_char_p, pointer),
            ("message", ctypes.c_char_p, pointer),
            ("status_text", ctypes.c_char_p, ctypes.c_int),
        ):
            called = self.function(function)
            called.restype, called.argtypes = result, arguments
        self.inputs, self.outputs = (self._tensors(kind) for kind in ("input", "output"))

    def function(self, name: str) -> Any:
        """A function of the interface, by its name without the library's."""
        return getattr(self._library, f"{self._name}_{name}")

    def _tensors(self, kind: str) -> list[tuple[str, str, tuple[int, ...], int]]:
        """Name, type, shape of an item, and the bound of whole numbers, of each input or output."""
        found: list[tuple[str, str, tuple[int, ...], int]] = []
        ask = self.function(kind)
        while tensor := ask(len(found)):
            each = tensor.contents
            found.append((each.name.decode(), TYPES[each.type], tuple(each.shape[: each.rank]), int(each.below)))
        return found

    def load(self, weights: Path | bytes, **options: Any) -> Model:
        """A model.

        Args:
            weights: a file, or its content.
            options: ``threads``, ``target`` and ``accept_not_finite``.

        Raises:
            Failed: the library refuses them.
        """
        handle, wanted = ctypes.c_void_p(), _options(**options)
        if isinstance(weights, bytes):
            status = self.function("load_bytes")(weights, len(weights), wanted, ctypes.byref(handle))
        else:
            status = self.function("load")(str(weights).encode(), wanted, ctypes.byref(handle))
        return Model(self, handle, status)


class Model:
    """A model of a library. Made by :meth:`Library.load`."""

    def __init__(self, library: Library, handle: ctypes.c_void_p, status: int):
        self._library, self._handle = library, handle
        try:
            self._check(status)
        except Failed:
            self.free()
            raise

    def _check(self, status: int) -> None:
        if status:
            raise Failed(STATUSES[status], self._library.function("message")(self._handle).decode())

    @property
    def target(self) -> str:
        """That it runs on."""
        return str(self._library.function("target")(self._handle).decode())

    def share(self, **options: Any) -> Model:
        """Another one with the same weights."""
        handle = ctypes.c_void_p()
        status = self._library.function("share")(self._handle, _options(**options), ctypes.byref(handle))
        return Model(self._library, handle, status)

    def run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """The outputs of a batch of any size.

        Args:
            inputs: an array for each input, (items, …).

        Raises:
            Failed: the library refuses them.
        """
        items = len(inputs[0])
        given: list[np.ndarray] = [
            np.ascontiguousarray(array, DTYPES[dtype]).reshape(items, *shape)
            for array, (_, dtype, shape, _) in zip(inputs, self._library.inputs, strict=True)
        ]
        outputs = self._library.outputs
        made: list[np.ndarray] = [np.empty((items, *shape), DTYPES[dtype]) for _, dtype, shape, _ in outputs]
        self.run_on([array.ctypes.data for array in given], items, [array.ctypes.data for array in made])
        return made

    def run_on(self, inputs: Sequence[int | None], items: int, outputs: Sequence[int | None]) -> None:
        """The same on addresses."""
        pointers = ((ctypes.c_void_p * len(each))(*each) for each in (inputs, outputs))
        given, made = pointers
        self._check(self._library.function("run")(self._handle, given, items, made))

    def free(self) -> None:
        """Give its memory back."""
        self._library.function("free")(self._handle)
        self._handle = ctypes.c_void_p()


def _options(threads: int = 0, target: str | None = None, accept_not_finite: bool = False) -> Any:
    encoded = None if target is None else target.encode()
    return ctypes.byref(_Options(threads, encoded, int(accept_not_finite)))


def made_up(library: Library, items: int, seed: int = 0) -> list[np.ndarray]:
    """Inputs of a library, by a seed."""
    random = np.random.default_rng(seed)
    return [
        random.integers(0, below or 7, (items, *shape)).astype(np.int32)
        if dtype == "int32"
        else random.standard_normal((items, prod(shape)), np.float32).reshape(items, *shape)
        for _, dtype, shape, below in library.inputs
    ]
