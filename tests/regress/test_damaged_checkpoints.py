"""Checkpoints with flipped bits, parts of another type, sizes that lie; and saving over what is not a file. A comma
that had become a point was an IndexError of another library; a pipe, or as root a device, was replaced by a file."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click import ClickException
from safetensors import numpy as safetensors

from latte import FullyConnectedLayer, MeanSquaredErrorLayer, MemoryDataLayer, Net
from latte.errors import DataError
from latte.runtime.checkpoint_format import ABOUT, DTYPES, Damaged, parsed, read, settings
from latte.runtime.files import write_whole
from latte.solver import SGD, CosineDecay, WarmUp
from latte.tools.results import write_results
from tests.lowered import lowered

pytestmark = pytest.mark.usefixtures("as_lowered")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, SGD, bytes]:
    """A net, its solver, and a file of another state of both."""
    with lowered():
        net = Net(2, seed=0)
        layer = FullyConnectedLayer(net, MemoryDataLayer(net, (3,)), 2, name="l")
        MeanSquaredErrorLayer(net, layer, MemoryDataLayer(net, (2,)))
        net.compile(target="portable", threads=1)
        solver = SGD(net, WarmUp(3, CosineDecay(0.1, 9)), momentum=0.9)
        draw = np.random.default_rng(0)
        net.fit(draw.normal(size=(4, 3)), draw.normal(size=(4, 2)), solver=solver, progress=False)
        path = tmp_path_factory.mktemp("net") / "net"
        net.save(path, solver)
        net.fit(draw.normal(size=(4, 3)), draw.normal(size=(4, 2)), solver=solver, progress=False)
    return net, solver, path.read_bytes()


def state_of(net: Net, solver: SGD) -> str:
    held = solver.state()
    arrays = {**net.state_dict(), **held.arrays}
    session = net.session
    return repr(
        [
            {name: values.tobytes() for name, values in arrays.items()},
            held.settings,
            session.graph.settings.seed,
            [loss.loss_weight for loss in session.graph.losses()],
            session.shuffling.bit_generator.state if session.shuffling is not None else None,
        ]
    )


def check(small: tuple[Net, SGD, bytes], path: Path, content: bytes) -> str | None:
    """The error of loading a content; nothing is changed then."""
    net, solver, _ = small
    path.write_bytes(content)
    before = state_of(net, solver)
    error = None
    try:
        net.load(path, solver)
    except DataError as caught:
        error = caught
    if error is None:
        return None
    assert str(path) in str(error) and Path(__file__).name in str(error.location)
    assert state_of(net, solver) == before
    return str(error)


def test_each_bit_of_the_header(small: tuple[Net, SGD, bytes], tmp_path: Path) -> None:
    net, solver, whole = small
    path, end = tmp_path / "net", 8 + int.from_bytes(whole[:8], "little")
    assert end < 4000
    for place in range(end):
        for bit in range(8):
            content = bytearray(whole)
            content[place] ^= 1 << bit
            with pytest.raises(Damaged):
                read(bytes(content))
    for place in [*range(0, 40), *range(40, end, 29)]:  # all the way
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        assert check(small, path, bytes(content)) is not None
    assert check(small, path, whole) is None
    assert np.isfinite(net["l"].get_weights()).all() and solver.step_number == 3


def made(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


FOUR = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
HEADERS = {
    "nothing": b"",
    "less than a length": b"1234567",
    "a length alone": (0).to_bytes(8, "little"),
    "a length that lies": made({"a": FOUR}, bytes(16), 2**63),
    "a length that is greater than the file": made({"a": FOUR}, b"", 10**6),
    "a length that is less than the header": made({"a": FOUR}, bytes(16), 20),
    "not text": made(b'{"\xff": 1}'),
    "UTF-16": made('{"a": 1}'.encode("utf-16")),
    "a list": made([1, 2]),
    "a number": made(b"5"),
    "nested": made(b"[" * 100_000),
    "a number that is too long": made(b'{"a": ' + b"9" * 5000 + b"}"),
    "not a number": made(b'{"a": NaN}'),
    "a tensor that is a list": made({"a": [1]}),
    "a tensor that is a number": made({"a": 1.5}),
    "a tensor without a type": made({"a": {"shape": [4], "data_offsets": [0, 16]}}, bytes(16)),
    "a tensor with something more": made({"a": {**FOUR, "more": 1}}, bytes(16)),
    **{
        f"{part} is {value!r:.30}": made({"a": {**FOUR, part: value}}, bytes(16))
        for part, values in {
            "dtype": [None, 5, "F33", "BF16", "f32", ["F32"], {}, ""],
            "shape": [None, 4, "4", [4.0], [-4], [True], [[4]], {"0": 4}, [2**70], [1] * 100, [5], [], [2, 3]],
            "data_offsets": [None, 16, [0], [0.16], [0, 16, 32], ["0", "16"], [16, 0], [-16, 0], [8, 24], [0, 2**62]],
        }.items()
        for value in values
    },
    "tensors over each other": made({"a": FOUR, "b": FOUR}, bytes(16)),
    "a gap": made({"a": FOUR, "b": {**FOUR, "data_offsets": [20, 36]}}, bytes(36)),
    "too little": made({"a": FOUR}, bytes(12)),
    "too much": made({"a": FOUR}, bytes(20)),
    "metadata that are a list": made({"__metadata__": ["a"], "a": FOUR}, bytes(16)),
    "metadata that are numbers": made({"__metadata__": {"format": 1}, "a": FOUR}, bytes(16)),
    "metadata that are nothing": made({"__metadata__": None, "a": FOUR}, bytes(16)),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_headers_of_another_form(case: str, small: tuple[Net, SGD, bytes], tmp_path: Path) -> None:
    with pytest.raises(Damaged):
        parsed(HEADERS[case])
    error = check(small, tmp_path / "net", HEADERS[case])
    assert error is not None and "is damaged, or is not a safetensors file: " in error


def test_each_length_of_a_file(small: tuple[Net, SGD, bytes]) -> None:
    whole = small[2]
    for length in range(len(whole)):
        with pytest.raises(Damaged):
            parsed(whole[:length])
    with pytest.raises(Damaged, match="1 bytes at its end"):
        parsed(whole + b"\0")


@pytest.mark.parametrize("dtype", [name.strip("<") for name in DTYPES.values()])
def test_what_safetensors_writes_is_read(dtype: str) -> None:
    values = np.random.default_rng(0).integers(0, 2, (3, 5)).astype(dtype)
    arrays = {"a": values, "nothing": values[:0], "one": values[:1, 0].reshape(()), "größe ν": values.T.copy()}
    tensors, metadata = parsed(safetensors.save(arrays, {"format": "mine", "ν": "größe"}))
    assert metadata == {"format": "mine", "ν": "größe"} and tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        assert tensors[name].dtype == array.dtype and tensors[name].shape == array.shape
        np.testing.assert_array_equal(tensors[name], array)


# --- what is kept beside tensors ------------------------------------------------------------------------------
VALUES: list[Any] = [None, True, -1, 0, 5, 2**40, 0.5, float("nan"), "", "a", [], [1], {}, {"a": 1}, {"schedule": 5}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each value in JSON."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The same with another value at a place; ``...`` takes it out."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if new is ... and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(copy[path[0]], path[1:], new)
    return copy


def rewritten(whole: bytes, about: str) -> bytes:
    """The file with other settings, and the checksums that belong to them."""
    tensors, metadata = parsed(whole)
    sums = {**json.loads(metadata["checksums"]), ABOUT: zlib.crc32(about.encode(errors="surrogatepass"))}
    metadata = {**metadata, "about": about, "checksums": json.dumps(sums, sort_keys=True)}
    return bytes(safetensors.save(dict(tensors), metadata))


def test_each_value_of_another_type(small: tuple[Net, SGD, bytes], tmp_path: Path) -> None:
    """Each value of the settings, of every type, or missing: an error that names the file, and nothing is changed; or
    it is loaded as it says."""
    net, solver, whole = small
    about = json.loads(parsed(whole)[1]["about"])
    assert about["shuffling"] is not None and about["solver"]["settings"]["learning_rate"]["then"]["steps"] == 9
    refused = loaded = 0
    for path in places(about):
        for new in [..., *VALUES] if path else VALUES:
            text = json.dumps(changed(about, path, new))
            if check(small, tmp_path / "net", rewritten(whole, text)) is not None:
                refused += 1
                continue
            loaded += 1
            assert net.save(tmp_path / "again", solver) is None
            again = json.loads(parsed((tmp_path / "again").read_bytes())[1]["about"])
            expected = json.loads(text)
            assert again["seed"] == expected["seed"] and again["solver"]["settings"]["momentum"] is not None
            state_of(net, solver)
            net.predict(np.ones((2, 3)))
    assert refused > 300 and loaded < 150, (refused, loaded)
    assert check(small, tmp_path / "net", whole) is None


@pytest.mark.parametrize("text", ["", "5", "[1]", "null", "{", '"a"', '{"seed": "\\ud800"}', "[" * 100_000])
def test_settings_that_are_not_an_object(text: str, small: tuple[Net, SGD, bytes], tmp_path: Path) -> None:
    with pytest.raises(Damaged):
        settings(text)
    error = check(small, tmp_path / "net", rewritten(small[2], text))
    assert error is not None and "is damaged: " in error


def test_checksums_of_another_form(small: tuple[Net, SGD, bytes], tmp_path: Path) -> None:
    tensors, metadata = parsed(small[2])
    for sums in ("", "5", "[]", "null", '{"l.weights": "a"}', '{"l.weights": [1]}', "{"):
        content = bytes(safetensors.save(dict(tensors), {**metadata, "checksums": sums}))
        error = check(small, tmp_path / "net", content)
        assert error is not None and ("is damaged: its list of checksums" in error or "has changed since" in error)


# --- saving over what is not a file ---------------------------------------------------------------------------
def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    where = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(where)


def _link_to(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        make(path.with_name("real"))
        path.symlink_to("real")

    return link


NOT_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pipe": (_pipe, "it is a pipe"),
    "a socket": (_socket, "it is a socket"),
    "a folder": (Path.mkdir, "it is a folder"),
    "a link to a pipe": (_link_to(_pipe), "it is a pipe"),
    "a link to a folder": (_link_to(Path.mkdir), "it is a folder"),
    "a link to a device": (lambda path: path.symlink_to("/dev/null"), "it is a device"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "symbolic links"),
    "a link into nowhere": (lambda path: path.symlink_to("no/where"), "No such file"),
    "a link through a file": (
        lambda path: (path.with_name("f").write_text(""), path.symlink_to("f/x"))[1],
        "Not a dir",
    ),  # type: ignore[func-returns-value]
}


@pytest.mark.parametrize("case", NOT_FILES)
def test_what_is_not_a_file_stays(case: str, small: tuple[Net, SGD, bytes], tmp_path: Path) -> None:
    path = tmp_path / "path"
    make, words = NOT_FILES[case]
    make(path)
    before = sorted((each.name, stat.S_IFMT(each.lstat().st_mode)) for each in tmp_path.iterdir())
    device = os.stat("/dev/null").st_rdev
    with pytest.raises(DataError, match=rf"path cannot be written: .*{words}") as caught:
        small[0].save(path)
    assert Path(__file__).name in str(caught.value.location)
    assert sorted((each.name, stat.S_IFMT(each.lstat().st_mode)) for each in tmp_path.iterdir()) == before
    assert os.stat("/dev/null").st_rdev == device and stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_devices_stay(small: tuple[Net, SGD, bytes]) -> None:
    for path in ("/dev/null", "/dev/stdout", "/dev/full"):
        if os.path.exists(path) and not os.path.isfile(path):
            with pytest.raises(DataError, match=r"it is a (device|pipe|socket), not a file"):
                small[0].save(path)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_links_to_files_stay_links(small: tuple[Net, SGD, bytes], tmp_path: Path) -> None:
    """What they lead to is written: also where it does not exist yet, or in a chain of links."""
    net = small[0]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("old")
    (tmp_path / "first").symlink_to("other/second")
    (tmp_path / "other" / "second").symlink_to("file")
    (tmp_path / "new").symlink_to(tmp_path / "other" / "created")
    for link, real in (("first", "file"), ("new", "created")):
        net.save(tmp_path / link)
        assert (tmp_path / link).is_symlink() and not (tmp_path / "other" / real).is_symlink()
        net.load(tmp_path / "other" / real)
    assert sorted(os.listdir(tmp_path / "other")) == ["created", "file", "second"]


def test_a_hard_link_keeps_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    os.link(tmp_path / "a", tmp_path / "b")
    write_whole(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_text() == "new" and (tmp_path / "b").read_text() == "old"


def test_results_of_commands(tmp_path: Path) -> None:
    """What they print to a pipe or a device is for whoever reads it; files are written whole, links stay."""
    for make in (_pipe, _link_to(_pipe)):
        path = tmp_path / f"pipe{len(list(tmp_path.iterdir()))}"
        make(path)
        read: list[str] = []
        reader = threading.Thread(target=lambda path=path, read=read: read.append(path.read_text()))
        reader.start()
        write_results(path, "größe\n")
        reader.join()
        assert read == ["größe\n"] and stat.S_ISFIFO(path.stat().st_mode)
        (tmp_path / "real").unlink(missing_ok=True)
    write_results(Path("/dev/null"), "text")
    (tmp_path / "link").symlink_to("file")
    for text in ("one", "two"):
        write_results(tmp_path / "link", text)
        assert (tmp_path / "file").read_text() == text and (tmp_path / "link").is_symlink()
    with pytest.raises(ClickException, match="cannot be written: Is a directory"):
        write_results(tmp_path, "text")
    with pytest.raises(ClickException, match="cannot be written: No such file"):
        write_results(tmp_path / "no" / "file", "text")
