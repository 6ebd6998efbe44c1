"""Exported libraries compute what ``net.predict`` does, to the last bit, and refuse what they cannot."""

from __future__ import annotations

import importlib.util
import shutil
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from latte.net import Net
from latte.solver import SGD
from latte.tools.export.calling import STATUSES, Failed, Library, made_up
from tests.support import running_targets
from tests.tools.export import nets
from tests.tools.export.building import WARNINGS, call, exported, library, made, run


def declared(text: str, folder: Path) -> Callable[..., Net]:
    """The function ``net`` of a net's file."""
    (folder / "declared.py").write_text(text)
    spec = importlib.util.spec_from_file_location("declared", folder / "declared.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., Net] = module.net
    return found


def predicting(text: str, folder: Path, items: int, target: str) -> Net:
    """The net of a net's file, compiled to predict: there are no gradients of frozen layers."""
    net = declared(text, folder)(items)
    for layer in net.ensembles:
        layer.trainable = False
    net.compile(target=target)
    return net


@pytest.fixture(scope="module")
def of_small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Net]:
    """The net of ``small``, by its target."""
    folder = tmp_path_factory.mktemp("of_small")
    return cache(lambda target: predicting(nets.SMALL, folder, 4, target))


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


# --- values ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", running_targets())
def test_the_bits_are_those_of_predict(target: str, small: Path, of_small: Callable[[str], Net]) -> None:
    net = of_small(target)
    lib = library(small)
    model = lib.load(small / "weights.bin", target=target)
    assert model.target == target
    for items in (2, 3, 4, 7, 8, 10):
        (data,) = made_up(lib, items, seed=items)
        scores, images = model.run(data)
        assert same(scores, net.predict(data)) and same(images, net.predict(data, layer="relu1")), items
    model.free()


def test_what_was_learned_comes_from_a_checkpoint(small: Path, tmp_path: Path) -> None:
    net = declared(nets.SMALL, tmp_path)(4)
    net.compile(target="portable")
    lib = library(small)
    (data,), labels = made_up(lib, 4), np.array([[0], [1], [2], [3]])
    net.fit(data, labels, solver=SGD(net, 0.1), epochs=2, progress=False)
    net.save(tmp_path / "trained")
    again = exported(tmp_path / "again", nets.SMALL, *nets.OF_SMALL, "--checkpoint", tmp_path / "trained")
    # Only the weights are others: the library is the one that was built before.
    for path in sorted(
        each for each in again.rglob("*") if each.is_file() and each.name not in ("weights.bin", "latte.h")
    ):
        if path.name != ".latte-export.json":
            assert path.read_bytes() == (small / path.relative_to(again)).read_bytes(), path
    model = lib.load(again / "weights.bin", target="portable")
    assert same(model.run(data)[0], net.predict(data))
    model.free()


def test_whole_numbers_several_inputs_and_outputs_and_sizes(words: Path, tmp_path: Path) -> None:
    of_size = {size: predicting(nets.WORDS, tmp_path, size, "portable") for size in (1, 3)}
    lib = library(words, "words")
    assert lib.inputs == [("words", "int32", (6,), 11), ("extra", "float32", (4,), 0)]
    assert lib.outputs == [("both", "float32", (13,), 0), ("scores", "float32", (3,), 0)]
    model = lib.load(words / "weights.bin")
    for items in (1, 2, 3, 7, 8):
        data = made_up(lib, items, seed=items)
        alone = items % 3 == 1  # the last one has a program of its own
        parts = [(of_size[3], slice(0, items - alone)), (of_size[1], slice(items - alone, items))]
        for found, layer in zip(model.run(*data), ("both", "scores"), strict=True):
            given = [(net, [array[part] for array in data]) for net, part in parts]
            expected = [net.predict(*arrays, layer=layer) for net, arrays in given if len(arrays[0])]
            assert same(found, np.concatenate(expected)), items
    model.free()


def test_states_and_numbers_of_items(counting: Path, tmp_path: Path) -> None:
    net = declared(nets.COUNTING, tmp_path)(4)
    net.compile(target="portable")
    lib = library(counting, "counting")
    model = lib.load(counting / "weights.bin", target="portable")
    other = model.share()
    (data,) = made_up(lib, 3)
    first = net.predict(data)
    assert same(model.run(data)[0], first)
    assert same(model.run(data)[0], net.predict(data))
    assert same(other.run(data)[0], first), "each model has states of its own, which begin as in the file"
    model.free()
    other.free()


def test_a_layer_that_needs_whole_batches(tmp_path: Path) -> None:
    net = declared(nets.OF_BATCHES, tmp_path)(4)
    net.compile(target="portable")
    options = ("--target", "portable", "--batch", "4", "3")
    folder = made(exported(tmp_path, nets.OF_BATCHES, *options), "shared")
    lib = library(folder)
    model = lib.load(folder / "weights.bin")
    for items in (4, 8, 3, 11):
        (data,) = made_up(lib, items)
        assert same(model.run(data)[0], net.predict(data)), items
    with pytest.raises(Failed, match=r"BAD_ITEMS: .*2 .*--batch 2") as refused:
        model.run(*made_up(lib, 6))
    assert refused.value.status == "BAD_ITEMS"
    model.free()


# --- threads --------------------------------------------------------------------------------------------------
def test_models_run_at_once(small: Path) -> None:
    lib = library(small)
    first = lib.load(small / "weights.bin", threads=2)
    models = [first, *(first.share(threads=threads) for threads in (1, 2, 3)), first]
    data = made_up(lib, 11)
    expected, _ = first.run(*data)

    def runs(number: int) -> bool:
        return all(same(models[number].run(*data)[0], expected) for _ in range(20))

    with ThreadPoolExecutor(len(models)) as pool:
        assert all(pool.map(runs, range(len(models))))
    first.free()  # the weights stay as long as another one has them
    assert same(models[1].run(*data)[0], expected)
    for model in models[1:4]:
        model.free()


# --- what is refused -------------------------------------------------------------------------------------------
def test_numbers_that_are_refused(small: Path, words: Path) -> None:
    lib = library(small)
    model = lib.load(small / "weights.bin")
    (data,) = made_up(lib, 6)
    expected, _ = model.run(data)
    for value, said in ((np.nan, "nan"), (-np.inf, "-inf")):
        wrong = data.copy()
        wrong[4, 1, 0, 3] = value
        with pytest.raises(Failed, match=f"BAD_INPUT: image: number 66 of item 4 is {said}"):
            model.run(wrong)
    tolerant = model.share(accept_not_finite=True)
    found, _ = tolerant.run(wrong)
    assert not np.isfinite(found[4]).all() and same(found[:4], expected[:4])
    for each in (model, tolerant):
        each.free()
    lib = library(words, "words")
    model = lib.load(words / "weights.bin")
    for value in (11, -1):
        given, extra = made_up(lib, 4)
        given[3, 2] = value
        with pytest.raises(Failed, match=f"BAD_INPUT: words: number 2 of item 3 is {value}, not one from 0 to 10"):
            model.run(given, extra)
    model.free()


def test_arguments_that_are_refused(small: Path) -> None:
    lib = library(small)
    weights = small / "weights.bin"
    for options, said in (
        ({"threads": -1}, "WRONG_ARGUMENT: there are 1 to 4096 threads"),
        ({"threads": 5000}, "WRONG_ARGUMENT: .*not 5000"),
        ({"target": "sse"}, "WRONG_ARGUMENT: there is no code for a target sse .* avx512, avx2, portable"),
    ):
        with pytest.raises(Failed, match=said):
            lib.load(weights, **options)
    model = lib.load(weights, target="portable")
    for inputs, items, outputs, said in (
        ([1], 0, [1, 1], "one item or more, not 0"),
        ([None], 1, [1, 1], "the array for image is null"),
        ([1], 1, [1, None], "the array for relu1 is null"),
    ):
        with pytest.raises(Failed, match=f"WRONG_ARGUMENT: .*{said}"):
            model.run_on(inputs, items, outputs)
    for options, said in (
        ({"target": "avx2"}, "these weights are for portable, not for avx2"),
        ({"threads": -2}, "-2"),
    ):
        with pytest.raises(Failed, match=f"WRONG_ARGUMENT: .*{said}"):
            model.share(**options)
    assert lib.function("run")(None, None, 1, None) == STATUSES.index("WRONG_ARGUMENT")
    lib.function("free")(None)
    for status in range(len(STATUSES)):
        assert lib.function("status_text")(status)
    model.free()


def refused(lib: Library, weights: bytes | Path) -> Failed:
    with pytest.raises(Failed) as found:
        lib.load(weights, target="portable").free()
    return found.value


def test_files_that_are_not_weights_of_these_sources(small: Path, words: Path, tmp_path: Path) -> None:
    lib = library(small)
    data = (small / "weights.bin").read_bytes()
    assert refused(lib, tmp_path / "none").status == "NO_FILE"
    assert "cannot be opened: No such file" in refused(lib, tmp_path / "none").message
    assert refused(lib, tmp_path).status == "NO_FILE"
    for text in (b"", b"LAT", b"x" * 5000, data[1:]):
        assert refused(lib, text).status == "NOT_WEIGHTS"
    assert refused(lib, words / "weights.bin").status == "OTHER_MODEL"
    swapped = data[:8] + data[8:12][::-1] + data[12:]
    assert refused(lib, swapped).status == "OTHER_VERSION" and "byte order" in refused(lib, swapped).message
    newer = data[:12] + (2).to_bytes(4, "little") + data[16:]
    assert refused(lib, newer).status == "OTHER_VERSION" and "version 2" in refused(lib, newer).message
    assert refused(lib, data.replace(b"\r\n", b"\n", 1)).status == "NOT_WEIGHTS"


def test_damaged_weights(small: Path) -> None:
    lib = library(small)
    data = (small / "weights.bin").read_bytes()
    header = int.from_bytes(data[60:64], "little")
    for at in range(header):
        for bit in (0, 7):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            expected = {"NOT_WEIGHTS"} if at < 8 else {"OTHER_VERSION"} if 12 <= at < 16 else {"DAMAGED"}
            assert refused(lib, bytes(changed)).status in expected, at
    for count in [*range(8, 80, 3), header, len(data) // 2, len(data) - 1]:
        assert refused(lib, data[:count]).status == "DAMAGED", count
    assert refused(lib, data + b"x").status == "DAMAGED"
    # The weights of portable are last, AVX2 has the same: they are looked at whole, those of AVX-512 are not read.
    start = int.from_bytes(data[64 + 2 * 32 + 16 : 64 + 2 * 32 + 24], "little")
    for at in [*range(start, len(data), 97), len(data) - 1]:
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        found = refused(lib, bytes(changed))
        assert found.status == "DAMAGED" and f"the bytes from {start} on" in found.message
    changed = bytearray(data)
    changed[start - 1000] ^= 1
    lib.load(bytes(changed), target="portable").free()


def forged(data: bytes, changes: dict[int, bytes]) -> bytes:
    """A file whose header says something else, with the right checksum."""
    changed = bytearray(data)
    for at, new in changes.items():
        changed[at : at + len(new)] = new
    header = int.from_bytes(changed[60:64], "little")
    if 68 <= header <= len(changed):
        changed[header - 4 : header] = zlib.crc32(changed[: header - 4]).to_bytes(4, "little")
    return bytes(changed)


def test_headers_that_say_what_cannot_be(small: Path) -> None:
    lib = library(small)
    data = (small / "weights.bin").read_bytes()
    assert forged(data, {}) == data
    for count in (0, 2, 4, 1000, 2**32 - 1):
        assert refused(lib, forged(data, {56: count.to_bytes(4, "little")})).status == "DAMAGED"
    for size in (0, 3, 64, 67, 68, 70, len(data), len(data) + 4, 2**32 - 4):
        assert refused(lib, forged(data, {60: size.to_bytes(4, "little")})).status == "DAMAGED", size
    beyond = (len(data) + 64, 2**31, 2**63 - 1, 2**64 - 64)
    for place in (
        *(64 + 32 * entry + 24 for entry in range(3)),
        64 + 32 * 2 + 16,
    ):  # sizes of all, the place of its own
        for value in beyond:
            found = refused(lib, forged(data, {place: value.to_bytes(8, "little")}))
            assert found.status == "DAMAGED", (place, value)
    assert refused(lib, forged(data, {64 + 2 * 32: b"unknown\0\0"})).status == "DAMAGED"


# --- other compilers and build files ----------------------------------------------------------------------------
def close(folder: Path, net: Net, tmp_path: Path) -> None:
    """The program computes what ``net.predict`` does, up to the rounding of another compiler."""
    data = np.random.default_rng(0).standard_normal((5, 3, 9, 7)).astype(np.float32)
    data.tofile(tmp_path / "given")
    files = [tmp_path / name for name in ("given", "found", "images")]
    run(["./main", folder / "weights.bin", 5, *files], folder)
    found, expected = np.fromfile(tmp_path / "found", np.float32).reshape(5, 5), net.predict(data)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_the_program_reads_and_writes_files(small: Path, of_small: Callable[[str], Net], tmp_path: Path) -> None:
    close(small, of_small("portable"), tmp_path)
    assert "output scores: float32, 1 x 5" in run(["./main"], small)
    assert "usage" in run(["./main", "weights.bin", 0], small, status=2)
    assert "cannot be opened" in run(["./main", "none.bin"], small, status=1)


@pytest.mark.skipif(shutil.which("clang++") is None, reason="there is no clang++")
def test_clang_builds_it_without_warnings(of_small: Callable[[str], Net], tmp_path: Path) -> None:
    folder = exported(tmp_path, nets.SMALL, *nets.OF_SMALL)
    if "omp.h" in run(
        ["sh", "-c", "echo '#include <omp.h>' | clang++ -fopenmp -fsyntax-only -x c++ - || true"], folder
    ):
        pytest.skip("clang++ has no OpenMP")
    made(folder, "CC=clang", "CXX=clang++")
    close(folder, of_small("portable"), tmp_path)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")
def test_cmake_builds_it(counting: Path, tmp_path: Path) -> None:
    warnings = ("-DCMAKE_CXX_FLAGS=-Werror", "-DCMAKE_C_FLAGS=-Werror")
    run(["cmake", "-B", "made", "-S", counting, *warnings], tmp_path)
    run(["cmake", "--build", "made"], tmp_path)
    assert "output counting: float32, 1 x 3" in run(["made/main", counting / "weights.bin"], tmp_path)


# --- several libraries in a program, under the sanitizers ---------------------------------------------------------
SOURCE = Path(__file__).with_name("abuse.c")


@pytest.mark.slow
def test_two_libraries_in_a_program_under_the_sanitizers(tmp_path: Path) -> None:
    sanitizers = "-g -fsanitize=address,undefined -fno-sanitize-recover=all"
    folders = {}
    target = next(each for each in running_targets() if each != "avx512")  # for which sanitized code takes longest
    for name, text, options in (
        ("counting", nets.COUNTING, ["--target", "portable"]),
        ("words", nets.WORDS, ["--target", target, "--layer", "both", "--layer", "scores"]),
    ):
        folder = exported(tmp_path / name, text, *options, "--name", name)
        made(folder, f"lib{name}.a", "OPTIMISE=-O1", warnings=f"{sanitizers} -Wall -Wextra")
        folders[name] = folder
    flags = [*sanitizers.split(), "-Wall", "-Wextra", "-Werror"]
    includes = [f"-I{folder}" for folder in folders.values()]
    run(["gcc", "-std=c11", "-O1", *flags, "-fopenmp", *includes, "-c", SOURCE, "-o", tmp_path / "abuse.o"], tmp_path)
    libraries = [folder / f"lib{name}.a" for name, folder in folders.items()]
    # No library of C++: the compiler of C links it.
    program = ["gcc", *flags, "-fopenmp", "abuse.o", *libraries, "-lmvec", "-lm", "-o", "abuse"]
    run(program, tmp_path)
    told = run(["./abuse", *(folder / "weights.bin" for folder in folders.values())], tmp_path)
    assert told.splitlines()[-1] == "all as expected", told


# --- the folder -------------------------------------------------------------------------------------------------
def test_names_in_the_header(words: Path) -> None:
    header = (words / "words.h").read_text()
    assert "words_load(" in header and "WORDS_OK = 0" in header and "latte_" not in header
    symbols = run(["nm", "-D", "--defined-only", "libwords.so"], words)
    assert {line.split()[-1].partition("_")[0] for line in symbols.splitlines()} == {"words"}


def test_the_program_of_the_documentation(small: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "export.md").read_text()
    (tmp_path / "mine.c").write_text(page.partition("```c\n")[2].partition("```")[0])
    run(["gcc", "-std=c11", *WARNINGS.split(), "-fsyntax-only", f"-I{small}", "mine.c"], tmp_path)
    for status in STATUSES[1:]:
        assert f"`LATTE_{status}`" in page


def test_usage() -> None:
    result = call("--help")
    assert "--checkpoint" in result.output and "--batch" in result.output
