"""The bytes of a checkpoint: a safetensors file, whose parts are looked at before they are used.

Eight bytes have the length of the header, which is JSON: the type, shape and place of each tensor, and
``__metadata__``, texts by their names. A bit that was flipped on a disk may make any other text of it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from safetensors import numpy as safetensors

from latte.model.checks import is_finite, is_integer

FORMAT = "latte checkpoint 1"
"""Says that a file is one of these, and which version."""
ABOUT = "(random numbers and settings)"
"""The name under which the checksum of what is not a tensor is kept."""
DTYPES = {
    "BOOL": "bool",
    **{f"{kind}{8 * size}": f"<{short}{size}" for kind, short in (("I", "i"), ("U", "u")) for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
"""The types of safetensors that NumPy has."""
METADATA = "__metadata__"


class Damaged(ValueError):
    """It is not a checkpoint: the message says what is wrong, after the file's name.

    Args:
        message: what is wrong.
        way_out: what to do about it.
    """

    def __init__(self, message: str, way_out: str = "load an older file"):
        super().__init__(message)
        self.way_out = way_out


# --- files ------------------------------------------------------------------------------------------------
def written(tensors: Mapping[str, np.ndarray], about: str) -> bytes:
    """A checkpoint with these tensors, and JSON of what is kept beside them."""
    sums = json.dumps(_checksums(about, tensors), sort_keys=True)
    return safetensors.save(dict(tensors), {"format": FORMAT, "about": about, "checksums": sums})


def read(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The tensors of a checkpoint, and what is kept beside them.

    Raises:
        Damaged: it is not one, or not as it was written.
    """
    try:
        tensors, metadata = parsed(data)
    except Damaged as error:
        raise Damaged(f"is damaged, or is not a safetensors file: {error}") from error
    if metadata.get("format") != FORMAT:
        raise Damaged(
            f"was not written by net.save: its format is {metadata.get('format')!r}",
            "net.load_state_dict(arrays, names) takes parameters of other programs",
        )
    about = metadata.get("about", "")
    sums = _checksums(about, tensors)
    try:
        if metadata.get("checksums") != json.dumps(sums, sort_keys=True):
            known = _object(metadata.get("checksums", ""), "its list of checksums")
            changed = [name for name in sums if known.get(name) != sums[name]] or sorted(known.keys() - sums.keys())
            raise Damaged(f"{', '.join(changed[:3]) or 'its list of checksums'} has changed since it was saved")
        return tensors, settings(about)
    except Damaged as error:
        raise Damaged(f"is damaged: {error}") from error


def _checksums(about: str, tensors: Mapping[str, np.ndarray]) -> dict[str, int]:
    sums = {name: zlib.crc32(values.tobytes()) for name, values in tensors.items()}
    return {ABOUT: zlib.crc32(about.encode(errors="surrogatepass")), **sums}


# --- tensors ----------------------------------------------------------------------------------------------
def parsed(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors of a safetensors file, and its metadata.

    Raises:
        Damaged: it is not such a file.
    """
    if len(data) < 8:
        raise Damaged("it is empty" if not data else f"it has {len(data)} bytes")
    start = 8 + struct.unpack("<Q", data[:8])[0]
    if start > len(data):
        raise Damaged(f"its header would have {start - 8:,} bytes, and it has {len(data) - 8:,}")
    header = _object(data[8:start], "its header")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise Damaged("its metadata are not texts")
    places = {name: _place(name, entry) for name, entry in header.items()}
    there, end = len(data) - start, 0
    for name, (first, last, *_) in sorted(places.items(), key=lambda item: item[1][:2]):
        if first != end:
            raise Damaged(f"{name} does not begin where the tensor before it ends")
        if last > there:
            raise Damaged(f"it ends in {name}")
        end = last
    if end != there:
        raise Damaged(f"{there - end:,} bytes at its end belong to no tensor")
    tensors = {
        name: np.frombuffer(data, dtype, prod(shape), start + first).reshape(shape)
        for name, (first, _, dtype, shape) in places.items()
    }
    return tensors, metadata


def _place(name: str, entry: Any) -> tuple[int, int, str, tuple[int, ...]]:
    """Where a tensor begins and ends, its type and its shape."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise Damaged(f"its header does not say what {name} is")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise Damaged(f"the type of {name} is {dtype!r}")
    if dtype not in DTYPES:
        raise Damaged(f"{name} is of a type that NumPy does not have: {dtype}")
    if not _is_list(shape) or not _is_list(offsets) or len(offsets) != 2:
        raise Damaged(f"the place of {name} is {offsets!r}, its shape {shape!r}")
    first, last = offsets
    if last - first != prod(shape) * np.dtype(DTYPES[dtype]).itemsize:
        raise Damaged(f"{name} has {last - first:,} bytes, and the shape {tuple(shape)} of type {dtype}")
    return first, last, DTYPES[dtype], tuple(shape)


def _is_list(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) <= 64 and all(is_integer(each) and 0 <= each < 2**63 for each in value)
    )


def _object(data: bytes | str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data if isinstance(data, str) else data.decode())
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{what} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Damaged(f"{what} is not a JSON object")
    return found


# --- what is kept beside them ---------------------------------------------------------------------------------
def settings(text: str) -> dict[str, Any]:
    """What a checkpoint keeps beside tensors.

    Raises:
        Damaged: something in it is missing, or of another type.
    """
    about = _object(text, "what it keeps beside tensors")
    for name, fits, wanted in (
        ("seed", lambda value: is_integer(value) and 0 <= value < 2**31, "a seed"),
        ("step", lambda value: is_integer(value) and 0 <= value < 2**31, "a number of steps"),
        ("shuffling", _is_generator, "the state of a random number generator"),
        ("solver", _is_solver, "the state of a solver"),
    ):
        if name not in about or not fits(about[name]):
            raise Damaged(f"its {name} is {_shown(about, name)}, not {wanted}")
    weights = about.get("loss_weights", {})  # later than others
    if not isinstance(weights, dict) or not all(is_finite(weight) for weight in weights.values()):
        raise Damaged(f"its loss_weights is {_shown(about, 'loss_weights')}, not numbers by the names of losses")
    return about


def _is_solver(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, dict) and isinstance(value.get("kind"), str) and isinstance(value.get("settings"), dict)


def _is_generator(state: Any) -> bool:
    if state is None:
        return True
    try:
        generator_of(state)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):  # whatever NumPy makes of it
        return False
    return True


def generator_of(state: Mapping[str, Any]) -> np.random.Generator:
    """A random number generator that goes on from a state."""
    generator = np.random.default_rng()
    generator.bit_generator.state = dict(state)
    return generator


def _shown(about: Mapping[str, Any], name: str) -> str:
    text = repr(about[name]) if name in about else "missing"
    return text if len(text) <= 60 else f"{text[:57]}…"
