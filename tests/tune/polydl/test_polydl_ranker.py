"""The tournament ranker, beside a computation by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from swirl.errors import LatteError
from swirl.target.targets import TARGETS
from swirl.tune.polydl.ranker import LAYERS, Ranker, layer_shapes, load_ranker, pair, weights_file


def made_up(seed: int = 0) -> Ranker:
    generator = np.random.default_rng(seed)
    weights = [generator.standard_normal(shape).astype(np.float32) for shape in layer_shapes()]
    biases = [generator.standard_normal(shape[0]).astype(np.float32) for shape in layer_shapes()]
    return Ranker(tuple(weights), tuple(biases), {"trained on": "nothing"})


def choosing(inputs: tuple[int, int], sharpness: float = 60.0) -> Ranker:
    """One whose outputs grow with one input each."""
    shapes = layer_shapes()
    weights = [np.zeros(shape, np.float32) for shape in shapes]
    weights[0][0, inputs[0]] = weights[0][1, inputs[1]] = 1
    for layer in weights[1:]:
        layer[0, 0] = layer[1, 1] = 1
    weights[-1] *= sharpness
    return Ranker(tuple(weights), tuple(np.zeros(shape[0], np.float32) for shape in shapes), {})


def test_the_papers_net() -> None:
    assert LAYERS == ((64, "relu"), (32, "relu"), (16, "softsign"), (8, "relu"), (2, "softmax"))
    assert layer_shapes() == [(64, 8), (32, 64), (16, 32), (8, 16), (2, 8)]


def test_outputs_beside_a_computation_element_by_element() -> None:
    ranker = made_up()
    given = [0.1, 0.0, 0.3, 0.1, 0.2, 0.1, 0.1, 0.1]
    values = [float(each) for each in given]
    for weights, biases, (_, name) in zip(ranker.weights, ranker.biases, LAYERS, strict=True):
        sums = [
            sum(float(w) * v for w, v in zip(row, values, strict=True)) + float(b)
            for row, b in zip(weights, biases, strict=True)
        ]
        if name == "relu":
            values = [max(0.0, each) for each in sums]
        elif name == "softsign":
            values = [each / (1 + abs(each)) for each in sums]
        else:
            total = sum(np.exp(each - max(sums)) for each in sums)
            values = [float(np.exp(each - max(sums)) / total) for each in sums]
    # Four layers of at most 64 float32 terms around 1.
    assert ranker.outputs(np.array([given]))[0] == pytest.approx(values, rel=1e-3, abs=1e-5)


def test_statistics_are_divided_by_their_common_sum() -> None:
    assert pair((1, 0, 1, 2), (0, 0, 3, 3)) == [0.1, 0, 0.1, 0.2, 0, 0, 0.3, 0.3]
    assert pair((0, 0, 0, 0), (0, 0, 0, 0)) == [0] * 8


def test_wins_are_counted_and_draws_are_none() -> None:
    # The first output grows with what the first needs from memory: more of it wins.
    statistics = [(0, 0, 0, 100), (0, 0, 0, 900), (100, 0, 0, 500), (0, 0, 0, 505)]
    ranker = choosing((3, 7))
    assert ranker.wins(statistics) == [0, 6, 2, 2]  # each pair is played in both orders; the last two draw
    assert ranker.order(statistics) == [1, 2, 3, 0]
    assert choosing((3, 7), sharpness=0.0).wins(statistics) == [0] * 4
    assert ranker.wins(statistics[:1]) == [0] and ranker.order([]) == []


def test_files(tmp_path: Path) -> None:
    target = TARGETS["avx2"]
    assert load_ranker(target, (tmp_path,)) is None  # none ships that was not trained
    ranker, path = made_up(), weights_file(tmp_path, "avx2")
    path.write_text(ranker.written())
    found = load_ranker(target, (tmp_path / "nowhere", tmp_path))
    assert found is not None and found.card == {"trained on": "nothing"}
    pairs = np.random.default_rng(1).random((5, 8))
    assert found.outputs(pairs) == pytest.approx(ranker.outputs(pairs), rel=1e-4, abs=1e-6)
    for damaged in ("{", '{"card": {}, "layers": []}', path.read_text().replace("[[", "[", 1)):
        path.write_text(damaged)
        with pytest.raises(LatteError, match="weights of the ranker are damaged"):
            load_ranker(target, (tmp_path,))
