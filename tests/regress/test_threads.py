"""Calls of several threads to one net: they wait for each other."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from latte import (
    BatchNormLayer,
    ConvLayer,
    DropoutLayer,
    FullyConnectedLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.solver import SGD
from latte.training import Run

pytestmark = pytest.mark.usefixtures("as_lowered")

THREADS, CALLS = 4, 40


def declare() -> Net:
    net = Net(8, seed=1)
    hidden = FullyConnectedLayer(net, MemoryDataLayer(net, (300,)), 256)
    SoftmaxLossLayer(net, FullyConnectedLayer(net, DropoutLayer(net, hidden), 10), MemoryDataLayer(net, (1,)))
    net.compile(threads=1)
    return net


def together(call: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(call, range(CALLS)))


def data(items: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.random((items, 300), np.float32), generator.integers(0, 10, items)


def test_predictions_of_several_threads_are_those_of_calls_in_turn():
    """They were those of each other's data. Batches of several sizes: each has buffers of its own."""
    net = declare()
    parts = [data(items % 3 + 30)[0] + items for items in range(CALLS)]
    expected = [net.predict(part) for part in parts]
    for found, wanted in zip(together(lambda number: net.predict(parts[number])), expected, strict=True):
        assert np.array_equal(found, wanted)


def test_losses_of_several_threads_are_those_of_calls_in_turn():
    net = declare()
    images, labels = data(CALLS * 20)
    parts = [slice(20 * number, 20 * number + 20) for number in range(CALLS)]
    expected = [net.evaluate(images[part], labels[part]).loss for part in parts]
    assert together(lambda number: net.evaluate(images[parts[number]], labels[parts[number]]).loss) == expected


def test_copies_for_threads_compile_for_smaller_batches_of_their_own(monkeypatch: pytest.MonkeyPatch):
    """A KeyError: recipes import modules anew, and one thread took away what another one had just imported."""
    monkeypatch.delenv("LATTE_SCHEDULE")
    net = Net(16, seed=1)
    conv = ConvLayer(net, MemoryDataLayer(net, (2, 6, 6)), 5)
    ReLULayer(net, BatchNormLayer(net, conv))
    net.compile(threads=1)
    images, paths, collects = np.ones((21, 2, 6, 6)), list(sys.path), gc.isenabled()
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda copied: copied.predict(images), [copy.deepcopy(net) for _ in range(THREADS)]))
    for other in found:
        assert np.array_equal(other, net.predict(images))
    assert sys.path == paths and gc.isenabled() == collects


def test_another_thread_waits_until_fit_has_ended():
    net = declare()
    images, labels = data(16)
    ended: list[str] = []
    asked = threading.Thread(target=lambda: (net.predict(images), ended.append("predict")))

    def epoch(run: Run) -> None:
        if run.epoch == 0:
            asked.start()
        asked.join(0.05)
        net.predict(images)  # of the thread that fits: it does not wait for itself

    told = [epoch, lambda run: ended.append("epoch")]
    net.fit(images, labels, solver=SGD(net), epochs=3, callbacks=told, progress=False)
    asked.join()
    assert ended == ["epoch", "epoch", "epoch", "predict"]


@pytest.mark.parametrize("call", ["forward", "test", "backward", "get", "set", "step", "save", "load", "state_dict"])
def test_every_call_waits(call: str, tmp_path):
    net = declare()
    net.set_batch(*data(8))
    net.forward()
    net.backward()
    solver, layer, path = SGD(net), net["fully_connected1"], tmp_path / "net.safetensors"
    net.save(path)
    calls: dict[str, Callable[[], Any]] = {
        "forward": net.forward,
        "test": net.test,
        "backward": net.backward,
        "get": net["fully_connected2"].get_value,
        "set": lambda: layer.set_weights(np.zeros((256, 300))),
        "step": solver.step,
        "save": lambda: net.save(path, solver),
        "load": lambda: net.load(path),
        "state_dict": lambda: net.load_state_dict(net.state_dict()),
    }
    thread = threading.Thread(target=calls[call])
    with net.session.lock:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    thread.join()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_has_its_own_lock(copied: Callable[[Net], Net]):
    net = declare()
    with net.session.lock:
        other = copied(net)
        assert other.session.lock is not net.session.lock
        thread = threading.Thread(target=other.predict, args=(data(8)[0],))
        thread.start()
        thread.join()
