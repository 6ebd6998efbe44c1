"""Loaders: every item once, the same batches from the same seed whatever the thread does, going on from any batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import EmbeddingLayer, MemoryDataLayer, Net
from latte.data import Crop, DataLoader, Flip, Normalise
from latte.errors import DataError
from latte.solver import SGD
from tests.nets.references import random_data, reused

pytestmark = pytest.mark.usefixtures("as_lowered")

IMAGES = np.arange(11 * 2 * 4 * 5, dtype=np.float32).reshape(11, 2, 4, 5)
LABELS = np.arange(11)
GENERATOR = np.random.default_rng


def jitter(images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return images + generator.random(images.shape).astype(np.float32)


def made(loader: DataLoader) -> list[tuple[np.ndarray, ...]]:
    return list(loader)


def same(first: list[tuple[np.ndarray, ...]], second: list[tuple[np.ndarray, ...]]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(np.array_equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


# --- batches ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("prefetch", [0, 1, 7])
def test_every_item_once_and_each_epoch_in_another_order(prefetch: int) -> None:
    loader = DataLoader(IMAGES, LABELS, batch_size=4, seed=3, prefetch=prefetch, transforms=[jitter])
    first, second = made(loader), made(loader)
    assert [len(labels) for _, labels in first] == [4, 4, 3] and len(loader) == 3 and loader.items == 11
    orders = [np.concatenate([labels for _, labels in epoch]) for epoch in (first, second)]
    for order in orders:
        assert sorted(order) == list(range(11))
    assert (orders[0] != orders[1]).any() and (orders[0] != LABELS).any()
    for images, labels in first:
        np.testing.assert_array_equal(np.floor(images), IMAGES[labels])
    plain = DataLoader(IMAGES, LABELS, batch_size=4, seed=3, prefetch=0, transforms=[jitter])
    assert same([*first, *second], [*made(plain), *made(plain)])
    assert not same(first, made(DataLoader(IMAGES, LABELS, batch_size=4, seed=4, transforms=[jitter])))


def test_in_order_and_without_a_smaller_last_batch() -> None:
    loader = DataLoader(IMAGES, LABELS, batch_size=4, shuffle=False, drop_last=True)
    assert len(loader) == 2 and loader.items == 8
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in loader]), LABELS[:8])


def test_a_loop_goes_on_from_any_batch() -> None:
    def loader() -> DataLoader:
        return DataLoader(IMAGES, LABELS, batch_size=4, seed=3, transforms=[jitter])

    whole = [batch for one in [loader()] for _ in range(3) for batch in one]
    for given in range(9):
        first = loader()
        batches = [batch for _ in range(3) for batch in first]
        stopped = loader()
        for _, count in zip(range(3), (min(3, given), min(3, max(0, given - 3)), max(0, given - 6)), strict=True):
            if count:
                list(islice(stopped, count))
        other = DataLoader(IMAGES, LABELS, batch_size=4, seed=99, transforms=[jitter])
        other.load_state(stopped.state())
        rest = [batch for _ in range(3) for batch in other][: 9 - given]
        assert same(rest, whole[given:]) and same(batches, whole)
    for wrong in (None, {}, {"seed": 1, "epoch": 0, "batch": 3}, {"seed": 1, "epoch": -1, "batch": 0}):
        with pytest.raises(DataError, match="state"):
            loader().load_state(wrong)  # type: ignore[arg-type]


def test_a_data_set_of_items() -> None:
    class Set:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
            return IMAGES[index], index

    for images, labels in DataLoader(Set(), batch_size=2):
        np.testing.assert_array_equal(images, IMAGES[labels])


def test_threads_end_and_their_errors_are_raised() -> None:
    def refused(images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        if 7 in images[:, 0, 0, 0] // 40:
            raise ValueError("item 7")
        return images

    loader = DataLoader(IMAGES, LABELS, batch_size=4, shuffle=False, transforms=[refused])
    batches = iter(loader)
    next(batches)
    with pytest.raises(ValueError, match="item 7"):
        next(batches)
    batches = iter(DataLoader(IMAGES, LABELS, batch_size=1))
    next(batches)
    del batches  # a loop that was left
    assert not [thread for thread in threading.enumerate() if thread.name == "latte loader"]
    with pytest.raises(DataError, match="has made 1 items of 4"):
        list(DataLoader(IMAGES, LABELS, batch_size=4, transforms=[lambda images, _: images[:1]]))


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ((IMAGES, LABELS), {"batch_size": 0}, "batch_size must be a whole number, at least 1, not 0"),
        ((IMAGES, LABELS), {"batch_size": "all"}, "not 'all'"),
        ((IMAGES, LABELS), {"prefetch": -1}, "prefetch must be a whole number, at least 0"),
        ((IMAGES, LABELS), {"seed": 1.5}, "seed must be"),
        ((IMAGES, LABELS), {"shuffle": 1}, "shuffle must be True or False, not 1"),
        ((IMAGES, LABELS), {"transforms": Flip}, "transforms must be a list of functions"),
        ((IMAGES,), {"transforms": [lambda images: images]}, "a transform is a function of images and a random"),
        ((IMAGES, LABELS[:5]), {}, r"different numbers of items: \[11, 5\]"),
        ((IMAGES[:0],), {}, "0 items make no batch of 4"),
        ((IMAGES[:3],), {"drop_last": True}, "3 items make no batch of 4"),
        ((), {}, "a loader needs data"),
        ((None,), {}, "not None"),
        (("images",), {}, "not 'images'"),
        ((3, 4), {}, r"arrays \(items, …\)"),
        (([[1], [1, 2]],), {}, "inhomogeneous"),
    ],
)
def test_loaders_that_cannot_be(data: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        DataLoader(*data, **{"batch_size": 4, **options})
    assert __file__ in str(caught.value.location)


def test_messages_number_the_items_of_the_data_set() -> None:
    """For class numbers, and for numbers that float32 does not have, whatever the batch."""
    net = reused(6).net
    images, labels = random_data(10)
    large = images.astype(np.float64)
    large[9, 0, 2, 7] = 1e39
    wrong = np.where(np.arange(10) == 9, 77, labels)
    for data, message in (
        ((large, labels), r"1e\+39 in data1: item 9 at \(0, 2, 7\), which is infinite as float32"),
        ((images, wrong), "0 to 9; item 9 is 77"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            net.evaluate(DataLoader(*data, batch_size=6))
        assert __file__ in str(caught.value.location)


def test_messages_number_the_items_of_integer_data() -> None:
    """The numbers were those in the batch."""
    net = Net(5, seed=1)
    EmbeddingLayer(net, MemoryDataLayer(net, (3,), dtype="int32", below=9), 9, 2)
    net.compile()
    numbers = np.zeros((20, 3), np.int32)
    numbers[17, 1] = 9
    for loader in (DataLoader(numbers, batch_size=5), DataLoader(numbers, batch_size=5, shuffle=True)):
        with pytest.raises(DataError, match=r"whole numbers from 0 to 8 are needed; item 17 at \(1,\) is 9"):
            net.predict(loader)


def test_a_list_of_tuples_is_a_data_set() -> None:
    items = [(IMAGES[i], np.arange(3), i) for i in range(5)]
    for images, same, labels in DataLoader(items, batch_size=2):
        np.testing.assert_array_equal(images, IMAGES[labels])
        assert same.shape == (len(labels), 3)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    ("data", "transforms", "message"),
    [
        ((LABELS,), [Flip()], r"Flip needs images of shape \(items, channels, rows, columns\), not \(4,\)"),
        ((IMAGES,), [Crop(10)], r"Crop: images of \(4, 5\)"),
        ((IMAGES,), [Normalise([1, 2, 3])], "numbers for 3 channels, the images have 2"),
        ((IMAGES,), [lambda images, random: images[1:]], "has made 3 items of 4"),
        ((IMAGES,), [lambda images, random: None], "has made None of a batch"),
        (([(IMAGES[0], 1), (IMAGES[0, :1], 1)],), [], r"item 0 has \(2, 4, 5\), \(\), item 1 has \(1, 4, 5\), \(\)"),
    ],
)
def test_errors_of_batches_have_the_callers_line(
    data: tuple[Any, ...], transforms: list[Any], message: str, prefetch: int
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        list(DataLoader(*data, batch_size=4, shuffle=False, transforms=transforms, prefetch=prefetch))
    assert __file__ in str(caught.value.location)


# --- transforms -------------------------------------------------------------------------------------------
def test_flip() -> None:
    np.testing.assert_array_equal(Flip(1)(IMAGES, GENERATOR(0)), IMAGES[..., ::-1])
    np.testing.assert_array_equal(Flip(1, vertical=True)(IMAGES, GENERATOR(0)), IMAGES[:, :, ::-1])
    np.testing.assert_array_equal(Flip(0)(IMAGES, GENERATOR(0)), IMAGES)
    flipped = [bool((a != b).any()) for a, b in zip(Flip()(IMAGES, GENERATOR(0)), IMAGES, strict=True)]
    assert 0 < sum(flipped) < 11


def test_crop() -> None:
    cropped = Crop((3, 2))(IMAGES, GENERATOR(0))
    assert cropped.shape == (11, 2, 3, 2)
    places = set()
    for image, part in zip(IMAGES, cropped, strict=True):
        row, column = np.argwhere(image[0] == part[0, 0, 0])[0]
        places.add((row, column))
        np.testing.assert_array_equal(part, image[:, row : row + 3, column : column + 2])
    assert len(places) > 2
    np.testing.assert_array_equal(Crop(2, center=True)(IMAGES, GENERATOR(0)), IMAGES[:, :, 1:3, 1:3])
    padded = Crop((6, 7), pad=1)(IMAGES, GENERATOR(0))
    np.testing.assert_array_equal(padded, np.pad(IMAGES, ((0, 0), (0, 0), (1, 1), (1, 1))))
    with pytest.raises(DataError, match=r"images of \(4, 5\) with 0 zeros around are smaller than \(6, 6\)"):
        Crop(6)(IMAGES, GENERATOR(0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Normalise.of(np.zeros((3, 4))), r"needs images of shape .* not \(3, 4\)"),
        (lambda: Normalise.of(np.full((2, 1, 2, 2), np.nan)), r"the data have nan in images: item 0 at \(0, 0, 0\)"),
        (lambda: Normalise.of(np.zeros((0, 1, 2, 2))), "needs at least one image"),
        (lambda: Flip()(np.zeros(3), GENERATOR(0)), r"Flip needs images of shape .* not \(3,\)"),
        (lambda: Crop(5)(np.zeros((1, 1, 3, 3)), GENERATOR(0)), r"are smaller than \(5, 5\)"),
    ],
)
def test_images_that_do_not_fit(call: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        call()
    assert "test_loader.py:" in str(caught.value)


def test_normalise() -> None:
    rule = Normalise.of(IMAGES)
    result = rule(IMAGES.astype(np.float64), GENERATOR(0))
    assert result.dtype == np.float32
    np.testing.assert_allclose(result.mean(axis=(0, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(result.std(axis=(0, 2, 3)), 1, rtol=1e-6)
    np.testing.assert_array_equal(Normalise(1, 2)(IMAGES, GENERATOR(0)), (IMAGES - 1) / 2)
    assert np.isfinite(Normalise.of(np.ones((2, 1, 3, 3)))(np.ones((2, 1, 3, 3)), GENERATOR(0))).all()
    with pytest.raises(DataError, match="numbers for 3 channels, the images have 2"):
        Normalise([1, 2, 3])(IMAGES, GENERATOR(0))
    deviation = np.full(2, 4, np.float32)
    of_array = Normalise(0, deviation)
    deviation[:] = 0  # the caller's, to be used for other things
    np.testing.assert_array_equal(of_array(IMAGES, GENERATOR(0)), IMAGES / 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Flip(2), "the probability must be a number from 0 to 1, not 2"),
        (lambda: Flip(vertical="yes"), "vertical must be"),
        (lambda: Crop(0), "the size must be one or two whole numbers, at least 1, not 0"),
        (lambda: Crop((3, 3, 3)), "the size must be"),
        (lambda: Crop(3, pad=-1), "pad must be"),
        (lambda: Crop(3, center=1), "center must be"),
        (lambda: Normalise("mean"), "mean must be a number, or one for each channel, not 'mean'"),
        (lambda: Normalise(0, 0), "deviations must be greater than 0, not 0"),
        (lambda: Normalise.of(np.zeros((3, 3))), r"of shape \(items, channels, rows, columns\), not \(3, 3\)"),
    ],
)
def test_transforms_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


# --- training ---------------------------------------------------------------------------------------------
BATCH = 6
DATA = random_data(2 * BATCH + 2)


def loader_of(batch_size: int = BATCH, **options: Any) -> DataLoader:
    return DataLoader(*DATA, batch_size=batch_size, transforms=[Flip(), Crop(8, pad=1)], **options)


def test_fit_goes_on_with_a_loader_to_the_last_bit(tmp_path: Path) -> None:
    """Order and augmentation are in the file of the net; the loader's own seed and thread play no part."""
    net = reused(BATCH)
    solver = SGD(net.net, 0.05, momentum=0.9)
    first = net.net.fit(loader_of(), solver=solver, epochs=2, progress=False)
    assert len(first.losses) == 6 and first.items == 2 * len(DATA[0])
    net.net.save(tmp_path / "net", solver)
    rest = net.net.fit(loader_of(), solver=solver, progress=False).losses
    net.net.load(tmp_path / "net", solver)
    other = loader_of(seed=9, prefetch=0)
    assert net.net.fit(other, solver=solver, progress=False).losses == rest
    assert net.net.fit(other, solver=solver, progress=False).losses != rest


def test_evaluation_by_a_loader() -> None:
    net = reused(BATCH).net
    plain = DataLoader(*DATA, batch_size=BATCH)
    assert net.evaluate(plain, metrics={"all": len_of}) == net.evaluate(*DATA, metrics={"all": len_of})
    np.testing.assert_array_equal(net.predict(DataLoader(DATA[0], batch_size=BATCH)), net.predict(DATA[0]))
    smaller = net.evaluate(DataLoader(*DATA, batch_size=4))
    assert smaller.items == 14 and smaller.loss == pytest.approx(net.evaluate(*DATA).loss, rel=1e-5)


def len_of(scores: np.ndarray, labels: np.ndarray) -> tuple[Any, ...]:
    return scores.shape, labels.shape


def test_loaders_that_do_not_fit_the_net() -> None:
    net = reused(BATCH).net
    with pytest.raises(DataError, match="the loader makes batches of 7 items, the net takes 6 at most"):
        net.fit(loader_of(7), solver=SGD(net), progress=False)
    with pytest.raises(DataError, match=r"2 arrays are needed \(for data1, data2\), not 1"):
        net.fit(DataLoader(DATA[0], batch_size=BATCH), solver=SGD(net), progress=False)
    images = DATA[0].copy()
    images[9, 0, 3, 3] = np.nan
    with pytest.raises(DataError, match="the data have nan in data1: item 9 at"):
        net.fit(DataLoader(images, DATA[1], batch_size=BATCH), solver=SGD(net), progress=False)
    assert not [thread for thread in threading.enumerate() if thread.name == "latte loader"]


def test_a_loader_is_given_alone_and_is_not_pytorchs() -> None:
    net = reused(BATCH).net
    images, labels = random_data(BATCH + 2)
    torch = pytest.importorskip("torch")
    others = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(3, 2)), batch_size=2)
    for data, message in (
        (
            (DataLoader(images, labels, batch_size=BATCH), labels),
            "a loader makes the batches of all data layers: it is given",
        ),
        ((others,), r"a loader of PyTorch is not taken(.|\n)*latte.data.DataLoader\(given.dataset"),
    ):
        with pytest.raises(DataError, match=message):
            net.fit(*data, solver=SGD(net), progress=False)
    assert net.fit(DataLoader(images, labels, batch_size=BATCH), solver=SGD(net), progress=False).items == BATCH + 2
