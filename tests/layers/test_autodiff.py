"""Derived programs of known layers: their text, the thesis' batch norm, PyTorch, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from textwrap import indent

import numpy as np
import pytest

from latte.autodiff import Derived, derive, strip_stop_gradient
from swirl.errors import DerivativeError
from swirl.ir.buffers import Buffer
from swirl.ir.execute import execute
from swirl.ir.nest import Program, parse_program

Shapes = dict[str, tuple[int, ...]]


def buffers_of(shapes: Shapes, params: tuple[str, ...] = (), dtype: str = "float32") -> dict[str, Buffer]:
    return {
        name: Buffer(
            "data.value" if name == "inputs" else f"layer.{name}",
            shape,
            "int32" if name.startswith("index") else dtype,
            "param" if name in params else "value" if name in ("inputs", "value") else "temporary",
        )
        for name, shape in shapes.items()
    }


def program(source: str, shapes: Shapes, params: tuple[str, ...] = (), dtype: str = "float32") -> Program:
    return parse_program(source, buffers_of(shapes, params, dtype), name="layer.forward")


def text(derived: Program | None) -> str:
    """The statements alone: labels and arguments follow from them."""
    assert derived is not None
    return "\n".join(nest.body_text for nest in derived.nests) + "\n"


def run(derived: Program | None, known: dict[str, np.ndarray], arithmetic: str) -> dict[str, np.ndarray]:
    assert derived is not None
    arrays = {}
    for name, buffer in derived.buffers.items():
        empty = np.full(buffer.shape, None, object) if arithmetic == "rational" else np.full(buffer.shape, np.nan)
        arrays[name] = known[name].copy() if name in known else empty
        if buffer.dtype == "int32" and name not in known:
            arrays[name] = np.zeros(buffer.shape, np.int32)
    execute(derived, arrays, arithmetic=arithmetic)
    return {**known, **arrays}


# --- text -------------------------------------------------------------------------------------------------
def test_relu_is_one_nest() -> None:
    source = """
for n in range(4):
    for c in range(5):
        value[n, c] = max(0.0, inputs[n, c])
"""
    derived = derive(program(source, {"value": (4, 5), "inputs": (4, 5)}), inputs=["inputs"], params=[])
    assert (
        text(derived.backward)
        == """\
for n in range(4):
    for c in range(5):
        grad_inputs[n, c] = grad[n, c] if value[n, c] > 0.0 else 0.0
"""
    )
    assert derived.update is None
    assert derived.notes == ()


@pytest.mark.parametrize(
    ("value", "gradient"),
    [
        ("min(max(0.0, x[n]), 6.0)", "grad[n] if value[n] < 6.0 and value[n] > 0.0 else 0.0"),
        ("max(min(x[n], 1.0), -1.0)", "grad[n] if value[n] > -1.0 and value[n] < 1.0 else 0.0"),
        ("min(1.0 / x[n], 2.0)", "-grad[n] * value[n] / x[n] if value[n] < 2.0 else 0.0"),
        ("min(exp(x[n]), 2.0)", "grad[n] * value[n] if value[n] < 2.0 else 0.0"),
    ],
)
def test_a_bound_that_is_not_reached_leaves_the_result(value: str, gradient: str) -> None:
    """Backward of a clamped value reads one array, not the sources of what it was clamped from."""
    forward = program(f"for n in range(4):\n    value[n] = {value}\n", {"value": (4,), "x": (4,)})
    derived = derive(forward, inputs=["x"], params=[])
    assert text(derived.backward) == f"for n in range(4):\n    grad_x[n] = {gradient}\n"


FULLY_CONNECTED = """
for n in range(4):
    for o in range(5):
        value[n, o] = bias[o, 0]
        for i in range(6):
            value[n, o] += weights[o, i] * inputs[n, i]
"""
FULLY_CONNECTED_SHAPES: Shapes = {"value": (4, 5), "inputs": (4, 6), "weights": (5, 6), "bias": (5, 1)}


def fully_connected(**options: object) -> Derived:
    forward = program(FULLY_CONNECTED, FULLY_CONNECTED_SHAPES, ("weights", "bias"))
    return derive(forward, inputs=["inputs"], params=["weights", "bias"], **options)  # type: ignore[arg-type]


def test_fully_connected() -> None:
    derived = fully_connected()
    assert (
        text(derived.backward)
        == """\
for n in range(4):
    for i in range(6):
        grad_inputs[n, i] = 0.0
for n in range(4):
    for o in range(5):
        for i in range(6):
            grad_inputs[n, i] += grad[n, o] * weights[o, i]
"""
    )
    assert (
        text(derived.update)
        == """\
for o in range(5):
    grad_bias[o, 0] = grad_bias[o, 0] if accumulate[0] != 0 else 0.0
for o in range(5):
    for i in range(6):
        grad_weights[o, i] = grad_weights[o, i] if accumulate[0] != 0 else 0.0
for n in range(4):
    for o in range(5):
        for i in range(6):
            grad_weights[o, i] += grad[n, o] * inputs[n, i]
        grad_bias[o, 0] += grad[n, o]
"""
    )


def test_a_later_reader_adds() -> None:
    backward = fully_connected(add_to=["inputs"]).backward
    assert (
        text(backward)
        == """\
for n in range(4):
    for o in range(5):
        for i in range(6):
            grad_inputs[n, i] += grad[n, o] * weights[o, i]
"""
    )


def test_names_and_roles() -> None:
    derived = fully_connected()
    assert derived.backward is not None and derived.update is not None
    assert (derived.backward.name, derived.update.name) == ("layer.backward", "layer.update")
    found = {
        key: (b.name, b.role, b.dtype)
        for derived_program in (derived.backward, derived.update)
        for key, b in derived_program.buffers.items()
        if "grad" in key or key == "accumulate"
    }
    assert found == {
        "grad": ("layer.grad", "grad", "float32"),
        "grad_inputs": ("data.grad", "grad", "float32"),
        "grad_weights": ("layer.grad_weights", "param_grad", "float32"),
        "grad_bias": ("layer.grad_bias", "param_grad", "float32"),
        "accumulate": ("net.accumulate", "scalar", "int32"),
    }


CONVOLUTION = """
for n in range(2):
    for k in range(3):
        for y in range(4):
            for x in range(4):
                value[n, k, y, x] = bias[k, 0]
                for c in range(2):
                    for ky in range(3):
                        for kx in range(3):
                            if 0 <= y + ky - 1 and y + ky - 1 < 4 and 0 <= x + kx - 1 and x + kx - 1 < 4:
                                value[n, k, y, x] += weights[k, c, ky, kx] * inputs[n, c, y + ky - 1, x + kx - 1]
"""
CONVOLUTION_SHAPES: Shapes = {
    "value": (2, 3, 4, 4),
    "inputs": (2, 2, 4, 4),
    "weights": (3, 2, 3, 3),
    "bias": (3, 1),
}


def test_convolution() -> None:
    forward = program(CONVOLUTION, CONVOLUTION_SHAPES, ("weights", "bias"))
    derived = derive(forward, inputs=["inputs"], params=["weights", "bias"])
    guard = "if 0 <= y + ky - 1 and y + ky - 1 < 4 and (0 <= x + kx - 1) and (x + kx - 1 < 4):"
    assert (
        text(derived.backward)
        == f"""\
for n in range(2):
    for c in range(2):
        for i2 in range(4):
            for i3 in range(4):
                grad_inputs[n, c, i2, i3] = 0.0
for n in range(2):
    for k in range(3):
        for y in range(4):
            for x in range(4):
                for c in range(2):
                    for ky in range(3):
                        for kx in range(3):
                            {guard}
                                grad_inputs[n, c, y + ky - 1, x + kx - 1] += grad[n, k, y, x] * weights[k, c, ky, kx]
"""
    )
    assert (
        text(derived.update)
        == f"""\
for k in range(3):
    grad_bias[k, 0] = grad_bias[k, 0] if accumulate[0] != 0 else 0.0
for k in range(3):
    for c in range(2):
        for ky in range(3):
            for kx in range(3):
                grad_weights[k, c, ky, kx] = grad_weights[k, c, ky, kx] if accumulate[0] != 0 else 0.0
for n in range(2):
    for k in range(3):
        for y in range(4):
            for x in range(4):
                for c in range(2):
                    for ky in range(3):
                        for kx in range(3):
                            {guard}
                                grad_weights[k, c, ky, kx] += grad[n, k, y, x] * inputs[n, c, y + ky - 1, x + kx - 1]
                grad_bias[k, 0] += grad[n, k, y, x]
"""
    )


MAX_POOLING = """
for n in range(2):
    for y in range(2):
        for x in range(2):
            value[n, y, x] = -INFINITY
            for j in range(3):
                for k in range(3):
                    value[n, y, x] = max(value[n, y, x], inputs[n, 2 * y + j, 2 * x + k])
"""
MAX_POOLING_SHAPES: Shapes = {"value": (2, 2, 2), "inputs": (2, 5, 5)}


def test_first_winner_of_a_maximum_is_saved() -> None:
    derived = derive(program(MAX_POOLING, MAX_POOLING_SHAPES), inputs=["inputs"], params=[])
    x = "inputs[n, 2 * y + j, 2 * x + k]"
    assert (
        text(derived.forward)
        == f"""\
for n in range(2):
    for y in range(2):
        for x in range(2):
            value[n, y, x] = -INFINITY
            mask_j[n, y, x] = 0
            mask_k[n, y, x] = 0
            for j in range(3):
                for k in range(3):
                    better: bool = {x} > value[n, y, x] or {x} != {x}
                    mask_j[n, y, x] = j if better else mask_j[n, y, x]
                    mask_k[n, y, x] = k if better else mask_k[n, y, x]
                    value[n, y, x] = {x} if better else value[n, y, x]
"""
    )
    assert derived.forward.buffers["mask_j"] == Buffer("layer.mask_j", (2, 2, 2), "int32", "value")
    assert text(derived.backward).endswith(
        "grad_inputs[n, 2 * y + j, 2 * x + k] += "
        "grad[n, y, x] if mask_j[n, y, x] == j and mask_k[n, y, x] == k else 0.0\n"
    )


def test_ties_and_overlaps_of_a_maximum() -> None:
    derived = derive(program(MAX_POOLING, MAX_POOLING_SHAPES), inputs=["inputs"], params=[])
    inputs = np.zeros((2, 5, 5), np.float32)
    inputs[1, 2, 2] = 1.0  # in all four windows
    after = run(derived.forward, {"inputs": inputs}, "float32")
    np.testing.assert_array_equal(after["mask_j"], [[[0, 0], [0, 0]], [[2, 2], [0, 0]]])
    np.testing.assert_array_equal(after["mask_k"], [[[0, 0], [0, 0]], [[2, 0], [2, 0]]])
    gradient = run(derived.backward, {**after, "grad": np.ones((2, 2, 2))}, "float32")["grad_inputs"]
    expected = np.zeros((2, 5, 5))
    expected[0, ::2, ::2][:2, :2] = 1.0
    expected[1, 2, 2] = 4.0
    np.testing.assert_array_equal(gradient, expected)


def test_a_declared_mask_is_left_alone() -> None:
    buffers = buffers_of({**MAX_POOLING_SHAPES, "mask_j": (2, 2, 2)})
    forward = parse_program(MAX_POOLING, buffers, name="layer.forward")
    derived = derive(forward, inputs=["inputs"], params=[], taken={"mask_k"})
    assert {"mask_j_1", "mask_k_1"} <= set(derived.forward.nests[0].arguments)


def test_masks_that_the_body_sets_itself_are_used() -> None:
    source = """
for n in range(2):
    for y in range(2):
        value[n, y] = -INFINITY
        index[n, y] = 0
        for j in range(3):
            if inputs[n, y + j] > value[n, y]:
                index[n, y] = j
            value[n, y] = max(value[n, y], inputs[n, y + j])
"""
    forward = program(source, {"value": (2, 2), "inputs": (2, 4), "index": (2, 2)})
    derived = derive(forward, inputs=["inputs"], params=[])
    assert derived.forward.text == forward.text
    assert text(derived.backward).endswith(
        """\
        for j in range(3):
            grad_inputs[n, y + j] += grad[n, y] if index[n, y] == j else 0.0
"""
    )


def test_the_gradient_of_the_output_is_not_written() -> None:
    source = """
for i in range(3):
    value[i] = inputs[i] * inputs[i]
for i in range(3):
    value[i] = value[i] / 4.0
"""
    derived = derive(program(source, {"value": (3,), "inputs": (3,)}), inputs=["inputs"], params=[])
    assert (
        text(derived.backward)
        == """\
for i in range(3):
    grad_value[i] = grad[i] / 4.0
for i in range(3):
    grad_inputs[i] = 2.0 * grad_value[i] * inputs[i]
"""
    )


# --- exact ------------------------------------------------------------------------------------------------
def rational(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.vectorize(Fraction, otypes=[object])(generator.integers(-9, 10, shape), 7)


def test_fully_connected_is_exact() -> None:
    generator = np.random.default_rng(0)
    derived = fully_connected()
    known = {name: rational(generator, shape) for name, shape in FULLY_CONNECTED_SHAPES.items()}
    known |= {"grad": rational(generator, (4, 5)), "accumulate": np.zeros(1, np.int32)}
    backward = run(derived.backward, known, "rational")
    update = run(derived.update, known, "rational")
    assert (backward["grad_inputs"] == known["grad"] @ known["weights"]).all()
    assert (update["grad_weights"] == known["grad"].T @ known["inputs"]).all()
    assert (update["grad_bias"][:, 0] == known["grad"].sum(axis=0)).all()


def test_rational_function_is_exact() -> None:
    source = """
for i in range(5):
    t: float32 = inputs[i] * inputs[i] + 1.0
    t = t * inputs[i]
    value[i] = (t - w[i]) / (t * t + 2.0)
"""
    generator = np.random.default_rng(0)
    forward = program(source, {"value": (5,), "inputs": (5,), "w": (5,)}, ("w",))
    derived = derive(forward, inputs=["inputs"], params=["w"])
    known = {name: rational(generator, (5,)) for name in ("inputs", "w", "grad")}
    after = {**run(derived.forward, known, "rational"), "accumulate": np.zeros(1, np.int32)}
    x, w, g = known["inputs"], known["w"], known["grad"]
    t = x * x * x + x
    by_t = g * (t * t + 2 - (t - w) * 2 * t) / (t * t + 2) ** 2
    assert (run(derived.backward, after, "rational")["grad_inputs"] == by_t * (3 * x * x + 1)).all()
    assert (run(derived.update, after, "rational")["grad_w"] == -g / (t * t + 2)).all()


# --- batch norm ---------------------------------------------------------------------------------------------
N, C, H, W = 3, 2, 4, 5
BATCH_NORM = f"""
for c in range({C}):
    mean[c] = 0.0
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                mean[c] += inputs[n, c, h, w]
for c in range({C}):
    mean[c] = mean[c] / {N * H * W}
for c in range({C}):
    var[c] = 0.0
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                var[c] += (inputs[n, c, h, w] - mean[c]) * (inputs[n, c, h, w] - mean[c])
for c in range({C}):
    var[c] = var[c] / {N * H * W}
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                x_hat[n, c, h, w] = (inputs[n, c, h, w] - mean[c]) / sqrt(var[c] + 0.001)
                value[n, c, h, w] = gamma[c] * x_hat[n, c, h, w] + beta[c]
"""
# The thesis' Figs. 3.2 and 3.3, zeroing made explicit.
BY_HAND = f"""
for c in range({C}):
    divar[c] = 0.0
    dmuc[c] = 0.0
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                divar[c] += grad[n, c, h, w] * gamma[c] * (inputs[n, c, h, w] - mean[c])
for c in range({C}):
    dsqrtvar[c] = -1.0 / (var[c] + 0.001) * divar[c]
    dvar[c] = 0.5 / sqrt(var[c] + 0.001) * dsqrtvar[c]
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                dxmu1: float64 = grad[n, c, h, w] * gamma[c] / sqrt(var[c] + 0.001)
                dxmu2: float64 = 2.0 * (inputs[n, c, h, w] - mean[c]) / {N * H * W} * dvar[c]
                dx1[n, c, h, w] = dxmu1 + dxmu2
                dmuc[c] -= dx1[n, c, h, w]
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                grad_x[n, c, h, w] = dx1[n, c, h, w] + dmuc[c] / {N * H * W}
for c in range({C}):
    grad_gamma[c] = 0.0
    grad_beta[c] = 0.0
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                grad_gamma[c] += grad[n, c, h, w] * x_hat[n, c, h, w]
                grad_beta[c] += grad[n, c, h, w]
"""
BATCH_NORM_SHAPES: Shapes = {
    "value": (N, C, H, W),
    "inputs": (N, C, H, W),
    "x_hat": (N, C, H, W),
    **dict.fromkeys(("mean", "var", "gamma", "beta"), (C,)),
}


def batch_norm() -> tuple[Derived, dict[str, np.ndarray]]:
    derived = derive(
        program(BATCH_NORM, BATCH_NORM_SHAPES, ("gamma", "beta"), "float64"),
        inputs=["inputs"],
        params=["gamma", "beta"],
    )
    generator = np.random.default_rng(0)
    known = {name: generator.normal(size=BATCH_NORM_SHAPES[name]) for name in ("inputs", "gamma", "beta")}
    after = run(derived.forward, known, "float64")
    given = {"grad": generator.normal(size=(N, C, H, W)), "accumulate": np.zeros(1, np.int32)}
    return derived, {**after, **given}


def test_batch_norm_has_the_shape_of_figure_3_2() -> None:
    derived, _ = batch_norm()
    first = "grad[n, c, h, w] * gamma[c] / sqrt(var[c] + 0.001)"
    assert (
        text(derived.backward)
        == f"""\
for c in range({C}):
    grad_var[c] = 0.0
for c in range({C}):
    grad_mean[c] = 0.0
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                grad_part: float64 = grad[n, c, h, w] * gamma[c] / sqrt(var[c] + 0.001)
                grad_mean[c] -= grad_part
                grad_var[c] -= 0.5 * grad_part * x_hat[n, c, h, w] / sqrt(var[c] + 0.001)
for c in range({C}):
    grad_var[c] = grad_var[c] / {N * H * W}
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                grad_part_1: float64 = 2.0 * grad_var[c] * (inputs[n, c, h, w] - mean[c])
                grad_inputs[n, c, h, w] = {first} + grad_part_1
                grad_mean[c] -= grad_part_1
for c in range({C}):
    grad_mean[c] = grad_mean[c] / {N * H * W}
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                grad_inputs[n, c, h, w] += grad_mean[c]
"""
    )
    assert text(derived.update).endswith(
        """\
                grad_gamma[c] += grad[n, c, h, w] * x_hat[n, c, h, w]
                grad_beta[c] += grad[n, c, h, w]
"""
    )


def test_batch_norm_agrees_with_figures_3_2_and_3_3() -> None:
    derived, known = batch_norm()
    shapes: Shapes = {**BATCH_NORM_SHAPES, "grad": (N, C, H, W), "dx1": (N, C, H, W), "grad_x": (N, C, H, W)}
    shapes |= dict.fromkeys(("divar", "dsqrtvar", "dvar", "dmuc", "grad_gamma", "grad_beta"), (C,))
    by_hand = run(program(BY_HAND, shapes, dtype="float64"), known, "float64")
    backward, update = run(derived.backward, known, "float64"), run(derived.update, known, "float64")
    # Two orders of summation of N·H·W terms of order 1: a few times 60 roundings of 1e-16.
    np.testing.assert_allclose(backward["grad_inputs"], by_hand["grad_x"], rtol=0, atol=1e-13)
    for name in ("grad_gamma", "grad_beta"):
        np.testing.assert_allclose(update[name], by_hand[name], rtol=0, atol=1e-13)


# --- PyTorch ------------------------------------------------------------------------------------------------
def test_batch_norm_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    derived, known = batch_norm()
    x, gamma, beta = (torch.tensor(known[name], requires_grad=True) for name in ("inputs", "gamma", "beta"))
    y = torch.nn.functional.batch_norm(x, None, None, gamma, beta, training=True, eps=0.001)
    y.backward(torch.tensor(known["grad"]))
    backward, update = run(derived.backward, known, "float64"), run(derived.update, known, "float64")
    np.testing.assert_allclose(backward["grad_inputs"], x.grad.numpy(), rtol=0, atol=1e-13)
    np.testing.assert_allclose(update["grad_gamma"], gamma.grad.numpy(), rtol=0, atol=1e-13)
    np.testing.assert_allclose(update["grad_beta"], beta.grad.numpy(), rtol=0, atol=1e-13)


def test_convolution_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    forward = program(CONVOLUTION, CONVOLUTION_SHAPES, ("weights", "bias"), "float64")
    derived = derive(forward, inputs=["inputs"], params=["weights", "bias"])
    generator = np.random.default_rng(0)
    known = {name: generator.normal(size=shape) for name, shape in CONVOLUTION_SHAPES.items()}
    known |= {"grad": generator.normal(size=(2, 3, 4, 4)), "accumulate": np.zeros(1, np.int32)}
    x, w = (torch.tensor(known[name], requires_grad=True) for name in ("inputs", "weights"))
    torch.nn.functional.conv2d(x, w, padding=1).backward(torch.tensor(known["grad"]))
    backward, update = run(derived.backward, known, "float64"), run(derived.update, known, "float64")
    np.testing.assert_allclose(backward["grad_inputs"], x.grad.numpy(), rtol=0, atol=1e-13)
    np.testing.assert_allclose(update["grad_weights"], w.grad.numpy(), rtol=0, atol=1e-13)


# --- what is kept -------------------------------------------------------------------------------------------
L2_NORM = """
for n in range(3):
    s: float32 = 0.0
    for i in range(8):
        s += inputs[n, i] * inputs[n, i]
    for i in range(8):
        value[n, i] = inputs[n, i] / sqrt(s + 0.01)
"""


def test_a_sum_is_kept_where_that_moves_fewer_bytes() -> None:
    forward = program(L2_NORM, {"value": (3, 8), "inputs": (3, 8)})
    kept = derive(forward, inputs=["inputs"], params=[])
    assert kept.forward.buffers["kept_s"] == Buffer("layer.kept_s", (3,), "float32", "value")
    assert kept.notes[0] == "s is kept: 8 bytes a time, computing it again would move 32"
    again = derive(forward, inputs=["inputs"], params=[], recompute=["s"])
    assert again.forward.text == forward.text
    assert "s += inputs[n, i] * inputs[n, i]" in text(again.backward)


def test_stop_gradient_is_a_constant_and_goes() -> None:
    source = "for i in range(3):\n    value[i] = inputs[i] * stop_gradient(inputs[i])"
    forward = program(source, {"value": (3,), "inputs": (3,)})
    derived = derive(forward, inputs=["inputs"], params=[])
    assert text(derived.forward) == "for i in range(3):\n    value[i] = inputs[i] * inputs[i]\n"
    assert text(derived.backward) == "for i in range(3):\n    grad_inputs[i] = grad[i] * inputs[i]\n"
    assert strip_stop_gradient(forward).text == derived.forward.text


def test_random_draws_are_constants() -> None:
    source = """
for i in range(3):
    keep: float32 = 2.0 if rand(7, 0, 1, i) > 0.5 else 0.0
    value[i] = inputs[i] * keep
"""
    derived = derive(program(source, {"value": (3,), "inputs": (3,)}), inputs=["inputs"], params=[])
    assert text(derived.backward) == (
        "for i in range(3):\n    grad_inputs[i] = grad[i] * (2.0 if rand(7, 0, 1, i) > 0.5 else 0.0)\n"
    )


# --- refusals -----------------------------------------------------------------------------------------------
REFUSED = {
    "modulo": (
        "for i in range(3):\n    value[i] = inputs[i] % 2.0",
        "`value[i] = inputs[i] % 2.0` cannot be differentiated: no derivative of `inputs[i] % 2.0`",
    ),
    "maximum of nothing": (
        "for i in range(3):\n    value[0] = max(value[0], inputs[i])",
        "`value[0] = max(value[0], inputs[i])` has no value to start from",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_statement_and_a_way_out(name: str) -> None:
    source, message = REFUSED[name]
    shapes: Shapes = {"value": (3,), "inputs": (3,)}
    source = "def layer_forward_0(value, inputs):\n" + indent(source, "    ")
    with pytest.raises(DerivativeError) as caught:
        derive(program(source, shapes), inputs=["inputs"], params=[])
    assert message in caught.value.message
    assert caught.value.location is not None and caught.value.location.startswith("layer.")
    assert caught.value.way_out
