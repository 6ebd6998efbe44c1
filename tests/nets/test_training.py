"""Training: the same losses as PyTorch step by step, the same bits again, every item of a data set once."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net
from latte.data import DataLoader
from latte.errors import DataError, DeclarationError, TrainingError
from latte.runtime.not_finite import LossIsNaN
from latte.solver import SGD
from swirl.target.machine import why_not
from swirl.target.targets import get_target
from tests.nets.references import CLASSES, SHAPE, DigitsNet, random_data, reused, torch_module

ROUNDING = 2.0**-24
BATCH = 6
SETTINGS = {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.01}


def loss_bound(step: int) -> float:
    """How far the losses of two runs in float32 and float64 may be apart in step ``step``.

    The scores, some 3 in size, are off by a few roundings of their sums, and every step adds the rounding of
    its gradients to the parameters. Measured over 16 steps of three nets: 7 roundings at most, no growth.
    """
    return 32 * ROUNDING * (1 + step)


Trained = tuple[DigitsNet, dict[str, np.ndarray], list[float]]


@pytest.fixture(scope="module")
def trained() -> Trained:
    """A net after 12 steps on 2 batches, its parameters before that, and the losses."""
    net = DigitsNet(BATCH)
    initial = net.parameters
    images, labels = random_data(2 * BATCH)
    solver = SGD(net.net, **SETTINGS)
    halves = [(images[:BATCH], labels[:BATCH]), (images[BATCH:], labels[BATCH:])]
    return net, initial, [net.step(*halves[step % 2], solver) for step in range(12)]


def test_losses_agree_with_pytorch_step_by_step(trained: Trained) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    ours, initial, losses = trained
    module = torch_module(torch, initial)
    optimiser = torch.optim.SGD(
        module.parameters(), lr=SETTINGS["learning_rate"], momentum=0.9, weight_decay=SETTINGS["weight_decay"]
    )
    images, labels = random_data(2 * BATCH)
    x, target = torch.tensor(images, dtype=torch.float64), torch.tensor(labels)
    for step, loss in enumerate(losses):
        half = slice(0, BATCH) if step % 2 == 0 else slice(BATCH, None)
        optimiser.zero_grad()
        expected = torch.nn.functional.cross_entropy(module(x[half]), target[half])
        expected.backward()
        optimiser.step()
        assert abs(loss - expected.item()) <= loss_bound(step), f"step {step}: {loss}, {expected.item()}"
    assert losses[-1] < 0.5 * losses[0]  # it learns, so that the comparison says something
    # Parameters and running statistics at the end, and what they make of an inference.
    bound = loss_bound(len(losses))
    for index, (convolution, norm) in enumerate(zip(ours.convolutions, ours.norms, strict=True)):
        conv, batch_norm = module[4 * index], module[4 * index + 1]
        for got, wanted in (
            (convolution.get_weights(), conv.weight),
            (norm.get_gamma(), batch_norm.weight),
            (norm.get_beta(), batch_norm.bias),
            (norm.get_running_mean(), batch_norm.running_mean),
            (norm.get_running_var(), batch_norm.running_var),
        ):
            np.testing.assert_allclose(got, wanted.detach().numpy(), rtol=0, atol=bound)
    module.eval()
    ours.net.set_batch(images[:BATCH], labels[:BATCH])
    ours.net.test()
    expected = module(x[:BATCH]).detach().numpy()
    np.testing.assert_allclose(ours.scores.get_value(), expected, rtol=0, atol=4 * bound)


def test_the_same_seed_gives_the_same_bits(trained: Trained) -> None:
    """With two threads as well: work is divided by shapes, not by threads."""
    first, initial, losses = trained
    images, labels = random_data(2 * BATCH)
    halves = [(images[:BATCH], labels[:BATCH]), (images[BATCH:], labels[BATCH:])]
    again = DigitsNet(BATCH, threads=2)
    for _ in range(2):
        for name, values in again.parameters.items():
            np.testing.assert_array_equal(values, initial[name], err_msg=name)
        solver = SGD(again.net, **SETTINGS)
        assert [again.step(*halves[step % 2], solver) for step in range(12)] == losses
        for name, values in again.parameters.items():
            np.testing.assert_array_equal(values, first.parameters[name], err_msg=name)
            again.net.executable.write(name, initial[name])


def test_seeds_of_initial_weights() -> None:
    """A seed fixes them; without one the net draws its seed from ``np.random``."""

    def weights(seed: int | None) -> np.ndarray:
        np.random.seed(5)
        net = Net(1, seed=seed)
        layer = FullyConnectedLayer(net, MemoryDataLayer(net, (12,)), 3)
        net.compile(threads=1)
        return layer.get_weights()

    first, second, drawn = weights(1), weights(2), weights(None)
    np.testing.assert_array_equal(first, weights(1))
    np.testing.assert_array_equal(drawn, weights(None))
    assert (first != second).any() and (first != drawn).any()
    assert (first > 0).any() and (first < 0).any() and abs(first).max() <= np.sqrt(3 / 12)


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_targets_agree(target: str) -> None:
    """With the portable one: each sums in another order, so twice the bound of one of them."""
    if reason := why_not(get_target(target)):
        pytest.skip(f"{target}: {reason}")
    nets = [reused(BATCH, target=name) for name in ("portable", target)]
    solvers = [SGD(net.net, **SETTINGS) for net in nets]
    images, labels = random_data(BATCH)
    for step in range(6):
        losses = [net.step(images, labels, solver) for net, solver in zip(nets, solvers, strict=True)]
        assert abs(losses[1] - losses[0]) <= 2 * loss_bound(step)


# --- data sets that no batch size divides ------------------------------------------------------------------
ITEMS = 2 * BATCH + 2


@pytest.mark.usefixtures("as_lowered")
def test_evaluate_counts_every_item_once() -> None:
    """14 items by 6, 6, 2 and by 2: the same mean, up to the rounding of other batches' sums."""
    images, labels = random_data(ITEMS)
    six, two = reused(BATCH), reused(2)
    evaluations = [net.net.evaluate(images, labels) for net in (six, two)]
    for evaluation in evaluations:
        assert evaluation.items == ITEMS
        np.testing.assert_allclose(evaluation.loss, evaluations[0].loss, rtol=32 * ROUNDING)
        assert evaluation.accuracy == pytest.approx(evaluations[0].accuracy, abs=4 * ROUNDING)
    before = six.parameters
    six.net.evaluate(images, labels)  # changes nothing
    for name, values in six.parameters.items():
        np.testing.assert_array_equal(values, before[name], err_msg=name)


def test_fit_trains_on_the_last_batch_as_it_is() -> None:
    """``fit`` without shuffling against the explicit loop, and the last, smaller batch against PyTorch."""
    images, labels = random_data(ITEMS)
    fitted = reused(BATCH)
    history = fitted.net.fit(
        images, labels, solver=SGD(fitted.net, **SETTINGS), epochs=2, shuffle=False, progress=False
    )
    trained = fitted.parameters
    explicit = reused(BATCH)  # the same net again, with its initial parameters
    solver = SGD(explicit.net, **SETTINGS)
    batches = [slice(0, 6), slice(6, 12), slice(12, 14)] * 2
    initial = explicit.parameters
    losses = [explicit.step(images[chosen], labels[chosen], solver) for chosen in batches]
    assert history.losses == losses
    assert (len(history.accuracies), history.items) == (6, 2 * ITEMS)
    assert history.seconds > 0 and history.items_per_second > 0
    for name, values in explicit.parameters.items():
        np.testing.assert_array_equal(values, trained[name], err_msg=name)

    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    module = torch_module(torch, initial)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    x, target = torch.tensor(images, dtype=torch.float64), torch.tensor(labels)
    for step, chosen in enumerate(batches):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x[chosen]), target[chosen])
        loss.backward()
        optimiser.step()
        assert abs(loss.item() - losses[step]) <= loss_bound(step)


@pytest.mark.usefixtures("as_lowered")
def test_after_a_smaller_batch_the_net_takes_full_ones_again() -> None:
    net = reused(BATCH)
    images, labels = random_data(BATCH)
    net.net.set_batch(images[:2], labels[:2])
    net.net.forward()
    assert net.scores.get_value().shape == (2, CLASSES)
    net.images.set_value(images)  # the original's scripts set the layers one by one
    net.labels.set_value(labels[:, None])
    net.net.forward()
    assert net.scores.get_value().shape == (BATCH, CLASSES)
    loss = net.net.loss
    net.net.set_batch(images, labels)
    net.net.forward()
    assert net.net.loss == loss


@pytest.mark.usefixtures("as_lowered")
def test_shuffling_is_fixed_by_the_seed_and_goes_on() -> None:
    """Two nets of one seed see the same orders; a second ``fit`` does not repeat the first one's."""
    images, labels = random_data(2 * BATCH)
    runs = []
    for copy in (2, 3):  # nets that were never fitted
        net = reused(BATCH, copy=copy)
        solver = SGD(net.net, learning_rate=0.0)
        runs.append([net.net.fit(images, labels, solver=solver, progress=False).losses for _ in range(2)])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


@pytest.mark.usefixtures("as_lowered")
def test_fit_tells_after_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    net = reused(BATCH)
    images, labels = random_data(BATCH)
    told: list[tuple[int, int]] = []
    history = net.net.fit(
        images,
        labels,
        solver=SGD(net.net, 0.05),
        epochs=3,
        progress=True,
        after_epoch=lambda epoch, history: told.append((epoch, len(history.losses))),
    )
    assert told == [(0, 1), (1, 2), (2, 3)]
    assert len(history.losses) == 3
    shown = capsys.readouterr()
    assert not shown.out  # the program's own
    assert len(shown.err.splitlines()) == 1  # no terminal: one line at the end
    assert "training" in shown.err and "epoch 3/3" in shown.err
    assert net.net.fit(images, labels, solver=SGD(net.net), epochs=0, progress=False).losses == []
    assert not capsys.readouterr().err


@pytest.mark.usefixtures("as_lowered")
def test_an_explicit_loop_of_six_lines() -> None:
    net = reused(BATCH).net
    images, labels = random_data(BATCH)
    solver = SGD(net, learning_rate=0.05, momentum=0.9)
    first = 0.0
    for _ in range(8):
        net.set_batch(images, labels)
        net.forward()
        net.clear_grad()
        net.backward()
        solver.step()
        first = first or net.loss
    assert net.loss < 0.3 * first


@pytest.mark.usefixtures("as_lowered")
def test_sgd_is_its_definition() -> None:
    """Two steps with momentum and weight decay; the settings may change in between."""
    net = reused(2)
    images, labels = random_data(2)
    solver = SGD(net.net, 0.25, momentum=0.5, weight_decay=0.125)
    velocity = dict.fromkeys(net.parameters, 0.0)
    for step in range(3):
        before = net.parameters
        solver.learning_rate = 0.25 / (step + 1)
        net.step(images, labels, solver)
        executable = net.net.executable
        for name, buffer in executable.buffers.items():
            if buffer.role == "param":
                gradient = executable.read(name.replace(".", ".grad_")).astype(float)
                velocity[name] = 0.5 * velocity[name] + gradient + 0.125 * before[name].astype(float)
                expected = before[name] - solver.learning_rate * velocity[name]
                size = abs(before[name]) + 1.0 * abs(velocity[name])
                assert (abs(executable.read(name) - expected) <= 16 * ROUNDING * size + 1e-12).all(), name


# --- what goes wrong ---------------------------------------------------------------------------------------
@pytest.fixture
def small(as_lowered: None) -> DigitsNet:
    return reused(2)


@pytest.mark.usefixtures("as_lowered")
def test_not_a_number_stops_fit_and_says_so_once() -> None:
    images, labels = random_data(4)
    net = reused(2)
    weights = net.scores.get_weights()
    weights[0] = np.nan
    net.scores.set_weights(weights)
    solver = SGD(net.net, 0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the error says it; no warning besides
        with pytest.raises(TrainingError, match=r"NaN in epoch 0, step 0(.|\n)*stop_on_nan=False"):
            net.net.fit(images, labels, solver=solver, shuffle=False, progress=False)
    assert np.isfinite(net.scores.get_weights()[1:]).all()  # the step was not taken


@pytest.mark.usefixtures("as_lowered")
def test_not_a_number_in_data_is_found_before_anything_is_computed() -> None:
    """Running statistics and parameters stay as they were; the message says which item of the data set it is."""
    images, labels = random_data(5)
    images[3, 0, 2, 7] = np.nan
    images[4, 0, 0, 0] = np.inf
    net = reused(2)
    solver = SGD(net.net, 0.0)
    for options in ({}, {"validation": (images, labels)}):
        with pytest.raises(DataError, match=r"data have nan in data1: item 3 at \(0, 2, 7\)\n  mend or leave") as told:
            net.net.fit(images, labels, solver=solver, shuffle=False, progress=False, **options)
        assert __file__ in str(told.value.location)
    for call in (net.net.evaluate, lambda x, _: net.net.predict(x)):
        with pytest.raises(DataError, match="the data have nan in data1: item 3"):
            call(images, labels)
    for chosen, what in ((slice(2, 4), "nan in data1: item 1"), (slice(4, 5), "inf in data1: item 0")):
        with pytest.raises(DataError, match=what):
            net.net.set_batch(images[chosen], labels[chosen])
    for name, values in net.parameters.items():
        assert np.isfinite(values).all(), name
    net.images.set_value(images[2:4])  # layers that are set one by one: found where statistics would keep it
    for _ in range(2):
        with pytest.raises(DataError, match="the data have nan in data1: item 1"):
            net.net.forward()
    net.images.set_value(images[:2])
    net.net.forward()
    for name, values in net.parameters.items():
        assert np.isfinite(values).all(), name
    net.net.set_batch(images[2:4], labels[2:4], finite=False)
    assert np.isnan(net.net.predict(images, stop_on_nan=False)[3]).any()
    assert np.isfinite(net.net.evaluate(images[:3], labels[:3]).loss)


@pytest.mark.usefixtures("as_lowered")
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e39])
def test_fit_checks_all_arrays_before_the_first_step(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches before the one with the wrong number were trained on. The arrays are looked at in blocks."""
    monkeypatch.setattr("latte.runtime.data.BLOCK", 300)
    images, labels = random_data(8)
    bad = images.astype(np.float64)
    bad[7, 0, 2, 7] = wrong
    net = reused(2)
    solver = SGD(net.net, 0.1, momentum=0.9)
    before, seen = net.parameters, []
    for data, validation in (((bad, labels), None), ((images, labels), (bad, labels))):
        with pytest.raises(DataError, match=r"in data1: item 7 at \(0, 2, 7\)"):
            net.net.fit(
                *data, solver=solver, validation=validation, shuffle=False, progress=False, callbacks=[seen.append]
            )
        for name, values in net.parameters.items():
            np.testing.assert_array_equal(values, before[name], err_msg=name)
    assert solver.step_number == 1 and not seen


@pytest.mark.usefixtures("as_lowered")
def test_a_loader_is_checked_batch_by_batch() -> None:
    images, labels = random_data(8)
    images[5, 0, 2, 7] = np.nan
    net = reused(2)
    solver = SGD(net.net, 0.0)
    for _ in range(2):
        with pytest.raises(DataError, match=r"nan in data1: item 5 at \(0, 2, 7\)"):
            net.net.fit(DataLoader(images, labels, batch_size=2, shuffle=False), solver=solver, progress=False)
    assert solver.step_number == 5  # two batches each time
    for name, values in net.parameters.items():
        assert np.isfinite(values).all(), name


@pytest.mark.usefixtures("as_lowered")
def test_not_a_number_is_said_once_where_training_goes_on() -> None:
    images, labels = random_data(4)
    images[1] = np.nan
    net = reused(2)
    with pytest.warns(LossIsNaN, match="not a number") as said:
        history = net.net.fit(images, labels, solver=SGD(net.net, 0.01), epochs=2, stop_on_nan=False, progress=False)
    assert len(said) == 1
    assert said[0].filename == __file__  # the line that called fit
    assert len(history.losses) == 4 and np.isnan(history.losses).any()


def test_data_that_do_not_fit(small: DigitsNet) -> None:
    images, labels = random_data(5)
    solver = SGD(small.net, 0.1)
    before = small.parameters
    bad = labels.copy()
    bad[4] = CLASSES
    cases = (
        (images[:4], labels, r"\[4, 5\]"),
        (images[:0], labels[:0], "no items"),
        (images[:, 0], labels, r"\(5, 8, 8\), but \(batch, 1, 8, 8\) is needed"),
        (images, bad, r"from 0 to 9; item 4 is 10"),
        (images, labels + 0.5, r"class numbers"),
        (images, labels.astype(float) * np.nan, r"class numbers"),
        (images.astype(str), labels, "real numbers"),
        (images * 1j, labels, "real numbers"),
        ([[1], [1, 2]], labels, "inhomogeneous"),
        (None, labels, "the array for data1 is None"),
    )
    for wrong_images, wrong_labels, message in cases:
        for function in ("fit", "evaluate", "set_batch"):
            if function == "set_batch" and "items" in message:
                message = "1 to 2 items, not 0"
            options = {"solver": solver, "progress": False} if function == "fit" else {}
            with pytest.raises(DataError, match=message) as caught:
                getattr(small.net, function)(wrong_images, wrong_labels, **options)
            assert __file__ in str(caught.value.location)
    for name, values in small.parameters.items():  # not one step of it was taken
        np.testing.assert_array_equal(values, before[name], err_msg=name)
    with pytest.raises(DataError, match=r"1 to 2 items, not 5\n  net.fit"):
        small.net.set_batch(images, labels)
    for size in (0, 3, 1.5, True):
        with pytest.raises(DataError, match=f"1 to 2 items, not {size}"):
            small.net.prepare(size)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"2 arrays are needed \(for data1, data2\), not 1"):
        small.net.set_batch(images)
    with pytest.raises(DataError, match=r"epochs must be a whole number, at least 0, not -1"):
        small.net.fit(images, labels, solver=solver, epochs=-1)
    small.net.set_batch(images[:2], labels[:2])  # and the net goes on
    small.net.forward()
    assert np.isfinite(small.net.loss)


def test_setters_check_shape_type_and_labels(small: DigitsNet) -> None:
    with pytest.raises(DataError, match=r"data1.set_value: the shape is \(3, 1, 8, 8\), but \(2, 1, 8, 8\)"):
        small.images.set_value(np.zeros((3, *SHAPE)))
    with pytest.raises(DataError, match="real numbers are needed, not <U3"):
        small.images.set_value(np.full((2, *SHAPE), "one"))
    for labels in ([[0], [CLASSES]], [[-1], [0]], [[0.5], [0]], [[np.nan], [0]]):
        with pytest.raises(DataError, match=r"labels of \w+ must be class numbers from 0 to 9"):
            small.labels.set_value(labels)
    with pytest.raises(DataError, match=r"set_weights: the shape is \(1, 3, 3, 3\), but \(3, 1, 3, 3\)"):
        small.convolutions[0].set_weights(np.zeros((1, 3, 3, 3)))
    weights = small.convolutions[0].get_weights()
    small.convolutions[0].set_weights(weights.astype(np.float64))  # any real type
    np.testing.assert_array_equal(small.convolutions[0].get_weights(), weights)


def test_solver_arguments(small: DigitsNet) -> None:
    for options in (
        {"learning_rate": -1},
        {"momentum": 1.5},
        {"weight_decay": -0.1},
        {"learning_rate": np.nan},
        {"learning_rate": "fast"},
        {"momentum": None},
    ):
        with pytest.raises(DeclarationError, match=f"{next(iter(options))} must be a number,") as caught:
            SGD(small.net, **options)
        assert __file__ in str(caught.value.location)
    with pytest.raises(DeclarationError, match="a solver needs the net that it trains, not None"):
        SGD(None)  # type: ignore[arg-type]
    images, labels = random_data(2)
    for solver in (None, "sgd", SGD):
        with pytest.raises(TrainingError, match=f"fit needs a solver, not {solver!r}"):
            small.net.fit(images, labels, solver=solver, progress=False)
