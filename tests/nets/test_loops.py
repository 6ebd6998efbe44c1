"""Loops over data sets: validation, metrics, callbacks, early stopping, accumulation, prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import (
    AccuracyLayer,
    BatchNormLayer,
    ConvLayer,
    DropoutLayer,
    FullyConnectedLayer,
    MeanSquaredErrorLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.errors import CommandError, DataError, DeclarationError, TrainingError
from latte.layers import HuberLossLayer
from latte.neuron import Neuron, exp, sqrt
from latte.solver import SGD
from latte.training import Callback, EarlyStopping, Run
from tests.nets.references import CLASSES, SHAPE, DigitsNet, random_data, reused

pytestmark = pytest.mark.usefixtures("as_lowered")

BATCH = 6
ITEMS = 2 * BATCH + 2
DATA, HELD = random_data(ITEMS), random_data(BATCH + 1, seed=1)


def fitted(net: DigitsNet, rate: float = 0.05, **options: Any) -> Any:
    return net.net.fit(*DATA, solver=SGD(net.net, rate, momentum=0.9), progress=False, shuffle=False, **options)


def test_validation_after_each_epoch_is_an_evaluation_and_changes_nothing() -> None:
    error = lambda scores, labels: float(np.mean(scores.argmax(1) != labels[:, 0]))  # noqa: E731
    net = reused(BATCH)
    history = fitted(net, epochs=2, validation=HELD, metrics={"error": error})
    assert len(history.validations) == 2
    last = history.validations[-1]
    assert last == net.net.evaluate(*HELD, metrics={"error": error})
    assert last.items == BATCH + 1 and last.metrics["error"] == pytest.approx(1 - last.accuracy)
    assert last.metrics["softmax_loss1"] == last.loss and last.metrics["accuracy1"] == last.accuracy
    without = fitted(reused(BATCH), epochs=2)
    assert without.losses == history.losses and not without.validations


def test_callbacks_are_told() -> None:
    told: list[tuple[Any, ...]] = []

    class Told(Callback):
        def before_training(self, run: Run) -> None:
            told.append(("begin", run.step))

        def after_step(self, run: Run) -> None:
            told.append(("step", run.epoch, run.step, run.batch_loss == run.history.losses[-1]))

        def after_training(self, run: Run) -> None:
            told.append(("end", run.history.stopped))

    means: list[float] = []
    history = fitted(reused(BATCH), epochs=2, callbacks=[Told(), lambda run: means.append(run.epoch_loss)])
    steps = [("step", step // 3, step, True) for step in range(6)]
    assert told == [("begin", 0), *steps, ("end", None)]
    sizes = [BATCH, BATCH, 2]
    assert means == pytest.approx([np.average(history.losses[3 * e : 3 * e + 3], weights=sizes) for e in range(2)])


def test_the_mean_of_an_epoch_is_of_what_counts() -> None:
    """As ``evaluate`` has it: batches whose labels are all ignored do not pull it down."""
    net = Net(4, seed=1)
    scores = FullyConnectedLayer(net, MemoryDataLayer(net, (3,)), 4)
    SoftmaxLossLayer(net, scores, MemoryDataLayer(net, (1,), name="labels"), ignore_label=-1)
    net.compile()
    generator = np.random.default_rng(0)
    data, labels = generator.standard_normal((10, 3)), generator.integers(0, 4, 10)
    labels[:5] = -1
    means: list[float] = []
    options: dict[str, Any] = {"solver": SGD(net, 0.0), "shuffle": False, "progress": False}
    net.fit(data, labels, callbacks=lambda run: means.append(run.epoch_loss), **options)
    assert means == pytest.approx([net.evaluate(data, labels).loss])


def test_losses_have_weights() -> None:
    """In ``net.loss``, in gradients and in ``evaluate``; set between steps, for batches of all sizes."""

    def made(first: float, second: float) -> tuple[Net, Any, list[Any]]:
        net = Net(4, seed=1)
        connected = FullyConnectedLayer(net, MemoryDataLayer(net, (3,)), 2)
        targets = [MemoryDataLayer(net, (2,)), MemoryDataLayer(net, (2,))]
        losses = [
            MeanSquaredErrorLayer(net, connected, targets[0], loss_weight=first),
            HuberLossLayer(net, connected, targets[1], loss_weight=second),
        ]
        net.compile(threads=1)
        return net, connected, losses

    def gradient(net: Net, connected: Any, items: int) -> np.ndarray:
        generator = np.random.default_rng(items)
        net.set_batch(*(generator.standard_normal((items, size)) for size in (3, 2, 2)))
        net.clear_grad()
        net.forward()
        net.backward()
        return connected.get_grad_weights()

    only = [gradient(*made(*weights)[:2], items) for weights in ((1, 0), (0, 1)) for items in (4, 3)]
    net, connected, losses = made(0.3, 0.7)
    for items, first, second in ((4, only[0], only[2]), (3, only[1], only[3])):
        losses[0].loss_weight, losses[1].loss_weight = 0.3, 0.7
        np.testing.assert_allclose(gradient(net, connected, items), 0.3 * first + 0.7 * second, rtol=0, atol=1e-6)
        values = [float(loss.get_value()[0]) for loss in losses]
        assert net.loss == pytest.approx(0.3 * values[0] + 0.7 * values[1])
        losses[1].loss_weight = -2
        np.testing.assert_allclose(gradient(net, connected, items), 0.3 * first - 2 * second, rtol=0, atol=1e-6)
    data = [np.random.default_rng(0).standard_normal((6, size)) for size in (3, 2, 2)]
    found = net.evaluate(*data)
    parts = [found.metrics[loss.name] for loss in losses]
    assert found.loss == pytest.approx(0.3 * parts[0] - 2 * parts[1])
    means: list[float] = []
    net.fit(*data, solver=SGD(net, 0.0), progress=False, callbacks=lambda run: means.append(run.epoch_loss))
    assert means == pytest.approx([found.loss])
    losses[0].loss_weight, losses[1].loss_weight = 0.0, 1.0
    net.evaluate(*data)  # compiles for a batch of two, while a term is left out
    losses[0].loss_weight = 1.0
    both = gradient(net, connected, 2)
    losses[0].loss_weight = 0.0
    assert not np.allclose(both, gradient(net, connected, 2))
    losses[0].set_grad([2.0])
    losses[0].loss_weight, given = 1.0, gradient(net, connected, 4)
    losses[0].loss_weight = 0.3
    np.testing.assert_array_equal(gradient(net, connected, 4), given)  # stays until it is given again
    for wrong in ("much", np.nan, None):
        with pytest.raises(DeclarationError, match="loss_weight must be a number, not"):
            losses[0].loss_weight = wrong
    assert losses[0].loss_weight == 0.3
    accuracy: Any = reused(BATCH).net["accuracy1"]
    with pytest.raises(DeclarationError, match="is a measure, not a loss: it has no weight"):
        accuracy.loss_weight = 0.2


def test_a_callback_stops_training_and_saves(tmp_path: Path) -> None:
    path = tmp_path / "net"

    class Two(Callback):
        def after_step(self, run: Run) -> None:
            if run.step == 1:
                run.save(path)
                run.stop("two are enough")

    net = reused(BATCH)
    history = fitted(net, epochs=9, callbacks=Two())
    assert len(history.losses) == 2 and history.stopped == "two are enough"
    now = net.parameters
    net = reused(BATCH)
    net.net.load(path, SGD(net.net))
    for name, values in net.parameters.items():
        np.testing.assert_array_equal(values, now[name], err_msg=name)


def test_early_stopping_takes_the_best_back() -> None:
    net = reused(BATCH)
    best: list[dict[str, np.ndarray]] = []
    rule = EarlyStopping(patience=2, by="score", larger_is_better=True)
    scores = iter([0.1, 0.9, 0.5, 0.9, 2.0])

    def remember(run: Run) -> None:
        if run.epoch == 1:
            best.append(net.parameters)

    options = {"validation": HELD, "metrics": {"score": lambda scored, labels: next(scores)}}
    history = fitted(net, epochs=20, callbacks=[rule, remember], **options)
    assert rule.best_epoch == 1 and rule.best == 0.9 and len(history.validations) == 4
    assert history.stopped == "score has not improved for 2 epochs, since 0.9"
    for name, values in net.parameters.items():
        np.testing.assert_array_equal(values, best[0][name], err_msg=name)
    assert net.net.evaluate(*HELD).loss == history.validations[1].loss


def test_early_stopping_by_other_measures() -> None:
    net = reused(BATCH)
    kept = EarlyStopping(1, by="right", larger_is_better=True, restore=False)
    history = fitted(net, 0.0, epochs=5, validation=HELD, metrics={"right": lambda scores, labels: 1}, callbacks=[kept])
    assert len(history.validations) == 2 and kept.best == 1
    history = fitted(net, 0.0, epochs=9, callbacks=[EarlyStopping(3, least_change=10)])
    assert len(history.losses) == 4 * 3  # by the loss of the training epochs
    for by, best in (("softmax_loss1", min), ("accuracy1", max)):
        rule = EarlyStopping(9, by=by)
        history = fitted(net, 0.1, epochs=3, validation=HELD, callbacks=[rule])
        assert rule.best == best(each.metrics[by] for each in history.validations)
    with pytest.raises(TrainingError, match="EarlyStopping by 'accuracy' needs validation data"):
        fitted(net, callbacks=[EarlyStopping(by="accuracy")])
    with pytest.raises(TrainingError, match=r"no number 'f1'\n  it has loss, accuracy, softmax_loss1, accuracy1"):
        fitted(net, callbacks=[EarlyStopping(by="f1", larger_is_better=True)], validation=HELD)


def test_the_loss_is_that_of_the_net_whatever_a_layer_or_metric_is_called() -> None:
    """A loss layer of this name took its place."""
    net = Net(BATCH, seed=1)
    data, label, target = MemoryDataLayer(net, (6,)), MemoryDataLayer(net, (1,)), MemoryDataLayer(net, (4,))
    scores = FullyConnectedLayer(net, data, 4)
    SoftmaxLossLayer(net, scores, label, name="loss")
    MeanSquaredErrorLayer(net, scores, target, name="aux")
    net.compile()
    generator = np.random.default_rng(0)
    given = [generator.standard_normal((BATCH, 6)), generator.integers(0, 4, BATCH), np.zeros((BATCH, 4))]
    rule = EarlyStopping()
    history = net.fit(*given, solver=SGD(net, 0.0), epochs=1, validation=given, callbacks=[rule])
    (validation,) = history.validations
    assert rule.best == validation.loss == pytest.approx(validation.metrics["loss"] + validation.metrics["aux"])
    with pytest.raises(DataError, match="a metric cannot be called 'loss': the net's own measure has this name"):
        net.evaluate(*given, metrics={"loss": lambda *_: 1.0})
    rule = EarlyStopping(by="accuracy")  # a metric may be, where no layer measures one
    net.fit(
        *given, solver=SGD(net, 0.0), epochs=1, validation=given, callbacks=[rule], metrics={"accuracy": lambda *_: 0.5}
    )
    assert rule.best == 0.5


def test_gradients_of_several_batches_make_one_step() -> None:
    """Two batches, then the one that is left: as a loop by hand."""
    net = reused(BATCH)
    history = fitted(net, accumulate=2)
    assert len(history.losses) == 3
    by_hand = reused(BATCH, copy=1)
    solver = SGD(by_hand.net, 0.05, momentum=0.9)
    for group in (((0, 6), (6, 12)), ((12, 14),)):
        by_hand.net.clear_grad()
        for first, end in group:
            by_hand.net.set_batch(*(array[first:end] for array in DATA))
            by_hand.net.forward()
            by_hand.net.backward()
        solver.step(batches=len(group))
    for name, values in by_hand.parameters.items():
        np.testing.assert_array_equal(values, net.parameters[name], err_msg=name)


def test_predictions_need_no_labels() -> None:
    net = reused(BATCH)
    fitted(net)
    loss = net.net.loss
    images = HELD[0]
    scores = net.net.predict(images)
    assert scores.shape == (BATCH + 1, CLASSES) and net.net.loss == loss
    for first, end in ((0, BATCH), (BATCH, BATCH + 1)):
        net.net.set_batch(images[first:end], HELD[1][first:end])
        net.net.test()
        np.testing.assert_array_equal(scores[first:end], net.scores.get_value())
    np.testing.assert_array_equal(net.net.predict(images, layer="fully_connected1"), scores)
    np.testing.assert_array_equal(net.net.predict(images[:1], layer=net.scores), net.net.predict(images[:1]))
    with pytest.raises(
        DataError, match=r"1 array is needed \(for data1\), not 2\n  labels are left out: nothing is needed for data2"
    ):
        net.net.predict(*HELD)
    with pytest.raises(CommandError, match=r"no ensemble named 'score'"):
        net.net.predict(images, layer="score")
    with pytest.raises(DataError, match="no items"):
        net.net.predict(images[:0])
    with pytest.raises(DataError, match="softmax_loss1 has one value for a whole batch"):
        net.net.predict(*HELD, layer="softmax_loss1")


def test_after_smaller_batches_the_net_shows_and_takes_whole_ones() -> None:
    net = reused(BATCH)
    for act in (lambda: fitted(net), lambda: net.net.evaluate(*HELD), lambda: net.net.predict(HELD[0])):
        act()
        assert net.scores.get_value().shape == (BATCH, CLASSES)
        net.images.set_value(DATA[0][:BATCH])
        net.labels.set_value(DATA[1][:BATCH, None])
        net.net.forward()
        assert net.scores.get_value().shape == (BATCH, CLASSES)
    with pytest.raises(DataError):
        net.net.evaluate(HELD[0], HELD[1] + 100)
    assert net.images.get_value().shape == (BATCH, *SHAPE)


# --- any number of data layers ----------------------------------------------------------------------------
def test_a_net_without_labels() -> None:
    """An autoencoder: the loss compares with the data themselves."""
    net = Net(4, seed=1)
    data = MemoryDataLayer(net, (6,))
    code = ReLULayer(net, FullyConnectedLayer(net, data, 8))
    MeanSquaredErrorLayer(net, FullyConnectedLayer(net, code, 6, name="decoded"), data)
    net.compile(threads=1)
    points = np.random.default_rng(0).standard_normal((10, 6))
    history = net.fit(points, solver=SGD(net, 0.1, momentum=0.9), epochs=40, validation=points, progress=False)
    assert history.validations[-1].loss < 0.5 * history.validations[0].loss
    assert net.evaluate(points, metrics={"shape": lambda s: s.shape}).metrics["shape"] == (10, 6)
    assert net.predict(points).shape == (10, 6)
    assert net.predict(points, layer=code).shape == (10, 8)


def test_a_net_of_three_data_layers() -> None:
    net = Net(4, seed=1)
    first, second = MemoryDataLayer(net, (3,)), MemoryDataLayer(net, (2,))
    target = MemoryDataLayer(net, (5,))
    one, two = FullyConnectedLayer(net, first, 5), FullyConnectedLayer(net, second, 5)
    MeanSquaredErrorLayer(net, one, target)
    MeanSquaredErrorLayer(net, two, target)
    net.compile(threads=1)
    draw = np.random.default_rng(0).standard_normal
    data = draw((6, 3)), draw((6, 2)), draw((6, 5))
    history = net.fit(*data, solver=SGD(net, 0.05), epochs=5, progress=False)
    assert history.losses[-1] < history.losses[0]
    found = net.evaluate(*data)
    assert found.loss == pytest.approx(sum(value for value in found.metrics.values()))
    assert net.predict(data[0]).shape == (6, 5)  # the first loss reads one, which needs first only
    np.testing.assert_array_equal(net.predict(data[1], layer=two), net.predict(data[1], layer=two.name))
    with pytest.raises(DataError, match=r"3 arrays are needed \(for data1, data2, data3\), not 2"):
        net.fit(*data[:2], solver=SGD(net), progress=False)


def test_which_layer_predicts() -> None:
    net = Net(2, seed=1)
    data = MemoryDataLayer(net, (3,))
    FullyConnectedLayer(net, data, 2)
    FullyConnectedLayer(net, data, 4)
    net.compile(threads=1)
    with pytest.raises(
        DataError, match=r"not clear: fully_connected1, fully_connected2\n  net.predict\(images, layer="
    ):
        net.predict(np.zeros((2, 3)))
    assert net.predict(np.zeros((3, 3)), layer=net["fully_connected2"]).shape == (3, 4)
    with pytest.raises(CommandError, match=r"no ensemble named 'fully'"):
        net["fully"]


# --- what goes wrong --------------------------------------------------------------------------------------
def test_wrong_arguments() -> None:
    net = reused(BATCH)
    before = net.parameters
    for options, error, message in (
        (
            {"callbacks": [3]},
            TrainingError,
            "a callback is a function of the run or an object of latte.training.Callback, not 3",
        ),
        ({"callbacks": EarlyStopping}, TrainingError, "not <class"),
        ({"after_epoch": 3}, TrainingError, "after_epoch is a function of the epoch's number and the history, not 3"),
        ({"accumulate": 0}, DataError, "accumulate must be a whole number of batches, at least 1, not 0"),
        ({"accumulate": "all"}, DataError, "not 'all'"),
        ({"metrics": [len]}, DataError, "metrics must be a dictionary of functions by name"),
        ({"validation": HELD[0]}, DataError, r"2 arrays are needed \(for data1, data2\), not 1"),
        ({"validation": (HELD[0], HELD[1] + 99)}, DataError, "must be class numbers"),
        ({"stop_on_nan": "yes"}, TrainingError, "stop_on_nan must be True or False, not 'yes'"),
        ({"epochs": 1.5}, DataError, "epochs must be a whole number"),
    ):
        with pytest.raises(error, match=message) as caught:
            fitted(net, **options)
        assert __file__ in str(caught.value.location)
    with pytest.raises(TrainingError, match="the solver trains another net"):
        net.net.fit(*DATA, solver=SGD(reused(BATCH, copy=1).net), progress=False)
    for options, message in (
        ({"patience": 0}, "patience must be a whole number, at least 1, not 0"),
        ({"by": 3}, "by must be the name of a measure, not 3"),
        ({"least_change": -1}, "least_change must be a number, at least 0"),
        ({"restore": 1}, "restore must be True or False"),
        ({"larger_is_better": "yes"}, "larger_is_better must be"),
    ):
        with pytest.raises(DeclarationError, match=message):
            EarlyStopping(**options)
    for name, values in net.parameters.items():
        np.testing.assert_array_equal(values, before[name], err_msg=name)


def test_a_net_without_an_accuracy_layer_has_no_accuracy() -> None:
    net = Net(2, seed=0)
    MeanSquaredErrorLayer(net, FullyConnectedLayer(net, MemoryDataLayer(net, (3,)), 2), MemoryDataLayer(net, (2,)))
    net.compile(threads=1)
    data = np.ones((4, 3)), np.ones((4, 2))
    assert net.evaluate(*data).accuracy is None and net.accuracy == 0.0
    history = net.fit(*data, solver=SGD(net), progress=False)
    assert history.accuracies == [] and repr(history).startswith("<History batches=2 items=4 last_loss=")
    with pytest.raises(TrainingError, match=r"the net has no accuracy layer\n  AccuracyLayer\(net, scores, labels\)"):
        net.fit(*data, solver=SGD(net), progress=False, validation=data, callbacks=EarlyStopping(by="accuracy"))


def test_functions_that_do_not_fit() -> None:
    class Wrong(Callback):
        def after_epoch(self) -> None:  # type: ignore[override]
            pass

    class Number(Callback):
        after_epoch = 5  # type: ignore[assignment]

    class Misspelt(Callback):
        def after_epochs(self, run: Run) -> None:
            pass

    class Waiting(Callback):
        async def after_step(self, run: Run) -> None:  # type: ignore[override]
            pass

    class Helped(Callback):
        def after_epoch(self, run: Run) -> None:
            self.on_new_best()

        def on_new_best(self) -> None:
            pass

    class Other(EarlyStopping):
        def on_epoch_end(self, run: Run) -> None:
            pass

    array = EarlyStopping(by="m", larger_is_better=True)
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"metrics": {"m": lambda scores, labels: 1}}, r"metrics \(m\)(.|\n)*validation=\(images, labels\)"),
        ({"metrics": {"m": lambda scores: 1}, "validation": HELD}, "'m' is called with 2 arrays: scores of .*, data2;"),
        ({"callbacks": [lambda: 1]}, "a callback is a function of the run"),
        ({"callbacks": Wrong()}, r"Wrong.after_epoch does not take the run\n  def after_epoch\(self, run\)"),
        ({"validation": (np.full_like(HELD[0], np.nan), HELD[1])}, "validation: the data have nan"),
        ({"validation": HELD[0]}, "validation: 2 arrays are needed"),
        ({"callbacks": Number()}, r"Number.after_epoch does not take the run"),
        ({"callbacks": Waiting()}, r"Waiting.after_step would not run when it is called: it yields or awaits"),
        (
            {"metrics": {"m": lambda scores, labels: 0.0}, "validation": HELD, "callbacks": EarlyStopping(by="m")},
            r"by 'm': is a larger one better, or a smaller one\?\n  larger_is_better",
        ),
        (
            {"metrics": {"m": lambda scores, labels: np.nan}, "validation": HELD, "callbacks": array},
            "EarlyStopping: 'm' is not a number in epoch 0",
        ),
        ({"callbacks": Misspelt()}, r"fit never calls Misspelt.after_epochs\n  did you mean 'after_epoch'\? fit calls"),
        (
            {"callbacks": Other()},
            r"test_loops.py:\d+: fit never calls Other.on_epoch_end\n(.*)fit calls before_training",
        ),
        ({"after_epoch": lambda epoch: 1}, "after_epoch is a function of the epoch's number and the history"),
        (
            {"metrics": {"m": lambda scores, labels: [1, 2]}, "validation": HELD, "callbacks": array},
            r"EarlyStopping needs a number, and 'm' is \[1, 2\]",
        ),
    )
    for options, message in cases:
        with pytest.raises((TrainingError, DataError), match=message) as caught:
            fitted(reused(BATCH), **options)
        assert __file__ in str(caught.value.location)
    fitted(reused(BATCH), callbacks=Helped())  # what a callback calls itself may have any name


def test_accumulating_needs_a_solver_that_takes_batches() -> None:
    class Plain:
        steps = 0

        def step(self) -> None:
            self.steps += 1

    net, solver = reused(BATCH), Plain()
    before = net.net.state_dict()
    with pytest.raises(TrainingError, match=r"accumulate=2: Plain\.step does not take batches="):
        net.net.fit(*DATA, solver=solver, accumulate=2, progress=False)
    assert solver.steps == 0
    assert all((values == before[name]).all() for name, values in net.net.state_dict().items())


@pytest.mark.parametrize("batch_size", [1, 3, 5])
def test_evaluate_weights_batches_by_what_counts(batch_size: int) -> None:
    scores = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    labels, weights = np.array([0, -1, 2, 1, -1]), np.array([1.0, 5.0, 0.5])
    net = Net(batch_size, seed=1)
    data, label = MemoryDataLayer(net, (3,)), MemoryDataLayer(net, (1,))
    SoftmaxLossLayer(net, data, label, ignore_label=-1, class_weights=list(weights))
    AccuracyLayer(net, data, label, ignore_label=-1)
    SoftmaxLossLayer(net, data, label, ignore_label=-1, name="plain")
    net.compile(threads=1)
    found = net.evaluate(scores, labels)
    counts = labels >= 0
    shares = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    each = -shares[counts, labels[counts]]
    weighted = (each * weights[labels[counts]]).sum() / weights[labels[counts]].sum()
    assert found.loss == pytest.approx(weighted + each.mean(), rel=1e-5)
    assert found.metrics["plain"] == pytest.approx(each.mean(), rel=1e-5)
    assert found.accuracy == pytest.approx((scores.argmax(1) == labels)[counts].mean())
    assert net.evaluate(scores[1:2], labels[1:2]).loss == 0.0


def small_net() -> tuple[Net, list[Any]]:
    net = Net(BATCH, seed=1)
    data = MemoryDataLayer(net, (3, 5, 5))
    first = ReLULayer(net, BatchNormLayer(net, ConvLayer(net, data, num_filters=4, kernel=3, stride=1, pad=1)))
    scores = FullyConnectedLayer(net, DropoutLayer(net, first, 0.5), 4)
    SoftmaxLossLayer(net, scores, MemoryDataLayer(net, (1,)))
    net.compile(threads=1)
    return net, [first, scores]


def trained(net: Net, data: Any, labels: Any) -> dict[str, np.ndarray]:
    net.fit(data, labels, solver=SGD(net, 0.1, momentum=0.9), progress=False, shuffle=False)
    return net.state_dict()


def test_prediction_of_other_numbers_of_items_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LATTE_SCHEDULE")
    generator = np.random.default_rng(0)
    data, labels = generator.standard_normal((BATCH + 2, 3, 5, 5)), generator.integers(0, 4, BATCH + 2)
    net, twin = small_net()[0], small_net()[0]
    whole = net.report.kernels
    predicted = net.predict(data)
    loss = net.evaluate(data, labels).loss
    np.testing.assert_array_equal(predicted[-2:], net.predict(data[-2:]))
    assert net.report.kernels == whole
    twin.prepare(2)
    assert twin.report.kernels == whole
    assert twin.evaluate(data, labels).loss == loss
    learned, expected = trained(net, data, labels), trained(twin, data, labels)
    for name, values in expected.items():
        np.testing.assert_array_equal(learned[name], values, err_msg=name)


class LessTheFirst(Ensemble):
    """What is left of each item without the first one."""

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c] - inputs[0, c]


def test_inference_is_compiled_alone_for_each_number_of_items_where_a_layer_wants_it() -> None:
    net = Net(BATCH, seed=1)
    scores = FullyConnectedLayer(net, MemoryDataLayer(net, (3,)), 4)
    net.add_one_to_one_connections(scores, net.add_ensemble(LessTheFirst(shape=(4,))))
    net.compile(threads=1)
    whole, data = net.report.kernels, np.random.default_rng(0).standard_normal((2, 3))
    predicted = net.predict(data)
    assert not predicted[0].any() and predicted[1].any()
    assert {each.phase for each in net.report.fixed} >= {"inference", "forward"}
    assert 0 < 2 * (net.report.kernels - whole) <= whole
    again = net.report.kernels
    np.testing.assert_array_equal(net.predict(data), predicted)
    assert net.report.kernels == again


def test_training_on_what_has_been_predicted() -> None:
    """Also where the net was compiled again for a gradient, from a smaller batch."""
    generator = np.random.default_rng(0)
    data, labels = generator.standard_normal((BATCH, 3, 5, 5)), generator.integers(0, 4, BATCH)
    found = []
    for predicts in (False, True):
        net, (first, scores) = small_net()
        if predicts:
            net.predict(data[:4])
        net.set_batch(data[:4], labels[:4])
        net.forward()
        first.set_grad(np.ones((4, *first.shape)))
        if predicts:
            net.predict(data)
            net.predict(data[:2])
        net.set_batch(data[:4], labels[:4])
        net.forward()
        net.backward()
        if predicts:
            net.predict(data)
        found.append([scores.get_grad_weights(), *net.state_dict().values()])
        net.set_batch(data, labels)
        first.set_grad(np.zeros((BATCH, *first.shape)))
        net.forward()
        net.backward()
        found[-1] += [scores.get_grad_weights(), net.loss]
    for without, after in zip(*found, strict=True):
        np.testing.assert_array_equal(without, after)


class Overflows(Neuron):
    def forward(self):
        self.value = exp(self.input + 100.0) / exp(self.input + 100.0)


class Root(Neuron):
    """Has no derivative at 0."""

    def forward(self):
        self.value = sqrt(self.input * self.input)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Overflows, r"epoch 0, step 0: gate\.value is the first that is not finite"),
        (Root, r"step 1: first\.weights is not finite; of the gradients of the step before, first\.grad is the first"),
    ],
)
def test_messages_about_nan_say_where_it_begins(kind: type[Neuron], message: str) -> None:
    net = Net(2, seed=1)
    first = FullyConnectedLayer(net, MemoryDataLayer(net, (3,)), 4, name="first")
    gate = net.add_ensemble(ActivationEnsemble(kind, (4,), name="gate"))
    net.add_one_to_one_connections(first, gate)
    SoftmaxLossLayer(net, FullyConnectedLayer(net, gate, 2), MemoryDataLayer(net, (1,)))
    net.compile(threads=1)
    images = np.zeros((4, 3))
    with pytest.raises(TrainingError, match=message):
        net.fit(images, [[0], [1], [1], [0]], solver=SGD(net, 0.1), progress=False)


def test_an_unknown_measure_is_refused_before_training() -> None:
    net = reused(BATCH)
    before = {name: values.copy() for name, values in net.net.state_dict().items()}
    with pytest.raises(
        TrainingError, match=r"no number 'acuracy'\n  did you mean 'accuracy'\? it has loss, accuracy, s"
    ):
        fitted(net, validation=HELD, callbacks=EarlyStopping(by="acuracy", larger_is_better=True))
    for name, values in net.net.state_dict().items():
        np.testing.assert_array_equal(values, before[name], err_msg=name)
