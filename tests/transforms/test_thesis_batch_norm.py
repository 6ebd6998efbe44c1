"""The naive loops of the thesis' Figs. 3.1 to 3.3 become the shape of Figs. 3.4 to 3.6, and with Fig. 3.7's
commands that of Fig. 3.9. Nothing may depend on names, on the order of the loops, or on the kind of layer."""

from __future__ import annotations

import ast
import re

import pytest
from syrupy.assertion import SnapshotAssertion

from swirl.errors import Refused
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, loop_of, parse_program
from swirl.ir.paths import loops
from swirl.ir.validate import validate
from swirl.schedule.pipeline import finish, generate, schedule_alone
from swirl.schedule.recipe import Recipe, Schedule
from swirl.target.targets import TARGETS, Target
from swirl.transforms.passes.canonical import canonicalise
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from tests.support import assert_same_expanded

FORWARD = """
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                mean[c] += x[n, c, h, w]
for c in range({C}):
    mean[c] = mean[c] / {M}
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                var[c] += (x[n, c, h, w] - mean[c]) * (x[n, c, h, w] - mean[c])
for c in range({C}):
    var[c] = var[c] / {M}
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                x_hat[n, c, h, w] = (x[n, c, h, w] - mean[c]) / sqrt(var[c] + 0.001)
                y[n, c, h, w] = gamma[c] * x_hat[n, c, h, w] + beta[c]
"""
BACKWARD = """
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                divar[c] += grad[n, c, h, w] * gamma[c] * (x[n, c, h, w] - mean[c])
for c in range({C}):
    dsqrtvar[c] = -1.0 / (var[c] + 0.001) * divar[c]
    dvar[c] = 0.5 / sqrt(var[c] + 0.001) * dsqrtvar[c]
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                dxmu1: float32 = grad[n, c, h, w] * gamma[c] / sqrt(var[c] + 0.001)
                dxmu2: float32 = 2.0 * (x[n, c, h, w] - mean[c]) / {M} * dvar[c]
                dx1[n, c, h, w] = dxmu1 + dxmu2
                dmu[c] -= dx1[n, c, h, w]
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                dx2[n, c, h, w] = dmu[c] / {M}
                grad_x[n, c, h, w] = dx1[n, c, h, w] + dx2[n, c, h, w]
"""
UPDATE = """
for n in range({N}):
    for c in range({C}):
        for h in range({H}):
            for w in range({W}):
                grad_gamma[c] += grad[n, c, h, w] * x_hat[n, c, h, w]
                grad_beta[c] += grad[n, c, h, w]
"""
IMAGES = {"x", "y", "x_hat", "grad", "dx1", "dx2", "grad_x"}


def batch_norm(text: str, n: int = 2, c: int = 3, h: int = 4, w: int = 5) -> Program:
    text = text.format(N=n, C=c, H=h, W=w, M=float(n * h * w))
    names = {m[0] for m in re.finditer(r"\b[a-z_0-9]+(?=\[)", text)}
    buffers = {
        name: Buffer(
            f"bn1.{name}",
            (n, c, h, w) if name in IMAGES else (c,),
            role="value" if name in IMAGES else "param",
        )
        for name in sorted(names)
    }
    aliases = {f"_neuron_index_{i}": (var,) for i, var in enumerate("nchw")}
    return validate(parse_program(text, buffers, "bn1.forward", aliases))


def optimised(program: Program) -> Program:
    """The result of the automatic passes, compared with the program before."""
    return assert_same_expanded(program, hoist(scalar_replace(canonicalise(program))))


def in_loops(program: Program, what: str) -> int:
    """The largest number of loops around the operation ``what``."""
    depths = [0]

    def visit(node: ast.AST, depth: int) -> None:
        if what in ast.unparse(node).split("(")[0] and isinstance(node, ast.Call):
            depths.append(depth)
        for child in ast.iter_child_nodes(node):
            visit(child, depth + isinstance(node, ast.For))

    for nest in program.nests:
        visit(ast.fix_missing_locations(nest.function), 0)
    return max(depths)


@pytest.mark.parametrize("text", [FORWARD, BACKWARD, UPDATE], ids=["3.1 to 3.4", "3.2 to 3.5", "3.3 to 3.6"])
def test_figures(text: str, snapshot: SnapshotAssertion) -> None:
    result = optimised(batch_norm(text))
    assert len(result.nests) == 1
    assert [loop_of(node).var for path, node in loops(result.nests[0].body) if len(path) == 1] == ["c"]
    assert in_loops(result, "sqrt") <= 1  # once a channel
    assert snapshot == result.text


def outline(program: Program) -> list[str]:
    """Loops and kinds of statements, without names."""
    result = []
    for nest in program.nests:
        for line in nest.body_text.splitlines():
            indent = len(line) - len(line.lstrip())
            result.append(" " * indent + ("for" if "for " in line else "declare" if ": float32" in line else "set"))
    return result


@pytest.mark.parametrize("order", ["nchw", "nhwc", "hwnc", "wchn", "cnhw"])
def test_forward_with_loops_in_another_order(order: str) -> None:
    extents = dict(zip("nchw", ("{N}", "{C}", "{H}", "{W}"), strict=True))
    heads = "".join(" " * 4 * i + f"for {v} in range({extents[v]}):\n" for i, v in enumerate(order))
    naive = "".join(" " * 4 * i + f"for {v} in range({extents[v]}):\n" for i, v in enumerate("nchw"))
    assert FORWARD.count(naive) == 3
    result = optimised(batch_norm(FORWARD.replace(naive, heads)))
    assert len(result.nests) == 1
    assert sorted(outline(result)) == sorted(outline(optimised(batch_norm(FORWARD))))
    assert in_loops(result, "sqrt") == 1


def test_forward_with_other_names() -> None:
    text = FORWARD
    for old, new in (
        ("mean", "m0"),
        ("var", "v0"),
        ("x_hat", "q"),
        ("gamma", "scale"),
        ("beta", "shift"),
        ("x", "data"),
    ):
        text = re.sub(rf"\b{old}\b", new, text)
    text = re.sub(r"\b([nchw])\b(?=[ ,\]])", lambda m: {"n": "a", "c": "b", "h": "i", "w": "j"}[m[1]], text)
    buffers = {
        name: Buffer(name, (2, 3, 4, 5) if name in ("data", "y", "q") else (3,))
        for name in ("data", "y", "q", "m0", "v0", "scale", "shift")
    }
    program = validate(parse_program(text.format(N=2, C=3, H=4, W=5, M=40.0), buffers))
    assert outline(optimised(program)) == outline(optimised(batch_norm(FORWARD)))


def naive(statement: str, heads: dict[str, int]) -> str:
    lines = [" " * 4 * i + f"for {v} in range({e}):" for i, (v, e) in enumerate(heads.items())]
    return "\n".join([*lines, *(" " * 4 * len(heads) + part for part in statement.split("; "))]) + "\n"


def test_layer_norm() -> None:
    """The statistics belong to the item: the loop that stays outermost is the batch, without interchange."""
    everything, item = {"n": 3, "k": 7}, {"n": 3}
    text = (
        naive("mean[n] += x[n, k]", everything)
        + naive("mean[n] = mean[n] / 7.0", item)
        + naive("var[n] += (x[n, k] - mean[n]) * (x[n, k] - mean[n])", everything)
        + naive("var[n] = var[n] / 7.0", item)
        + naive("y[n, k] = (x[n, k] - mean[n]) / sqrt(var[n] + 0.001) * gamma[k] + beta[k]", everything)
    )
    shapes = {"x": (3, 7), "y": (3, 7), "mean": (3,), "var": (3,), "gamma": (7,), "beta": (7,)}
    result = optimised(validate(parse_program(text, {name: Buffer(name, shape) for name, shape in shapes.items()})))
    assert len(result.nests) == 1 and len([p for p, _ in loops(result.nests[0].body) if len(p) == 1]) == 1
    assert in_loops(result, "sqrt") == 1


@pytest.mark.parametrize("heads", ["nk", "kn"])
def test_l2_normalisation(heads: str) -> None:
    everything = {v: {"n": 3, "k": 7}[v] for v in heads}
    text = naive("s[n] += x[n, k] * x[n, k]", everything) + naive("y[n, k] = x[n, k] / sqrt(s[n] + 0.001)", everything)
    shapes = {"x": (3, 7), "y": (3, 7), "s": (3,)}
    result = optimised(validate(parse_program(text, {name: Buffer(name, shape) for name, shape in shapes.items()})))
    assert len(result.nests) == 1 and loop_of(result.nests[0].body[0]).var == "n"
    assert in_loops(result, "sqrt") == 1


@pytest.mark.parametrize(("inner", "extents"), [((), ()), (("w",), (5,)), (("d", "h", "w"), (2, 3, 2))])
def test_other_ranks(inner: tuple[str, ...], extents: tuple[int, ...]) -> None:
    everything = {"n": 4, "c": 3, **dict(zip(inner, extents, strict=True))}
    at = ", ".join(everything)
    text = (
        naive(f"mean[c] += x[{at}]", everything)
        + naive("mean[c] = mean[c] / 4.0", {"c": 3})
        + naive(f"var[c] += (x[{at}] - mean[c]) * (x[{at}] - mean[c])", everything)
        + naive(f"y[{at}] = (x[{at}] - mean[c]) / sqrt(var[c] + 0.001)", everything)
    )
    whole = tuple(everything.values())
    buffers = {
        "x": Buffer("x", whole),
        "y": Buffer("y", whole),
        "mean": Buffer("m", (3,)),
        "var": Buffer("v", (3,)),
    }
    result = optimised(validate(parse_program(text, buffers)))
    assert len(result.nests) == 1 and loop_of(next(node for _, node in loops(result.nests[0].body))).var == "c"
    assert in_loops(result, "sqrt") == 1


# --- Figs. 3.7 to 3.9 -----------------------------------------------------------------------------------
def figure_37(s: Schedule, target: Target) -> None:
    s.parallelize(phase="forward", loop_var="_neuron_index_1")
    s.vectorize(phase="forward", loop_var="_neuron_index_3", factor=16)
    s.unroll(phase="forward", loop_var="_neuron_index_3", factor=4, unroll_type=0)


def test_figure_37_becomes_figure_39(snapshot: SnapshotAssertion) -> None:
    program = batch_norm(FORWARD, n=2, c=2, h=8, w=64)
    target = TARGETS["avx512"]
    stages = finish(
        schedule_alone({"forward": program}, Recipe("Fig. 3.7", {"forward": figure_37}), target).stages["forward"]
    )
    source = generate(stages[-1].program, target).source
    assert "omp for" in source
    body = source.split("#pragma omp for")[1]
    assert len(set(re.findall(r"mean_t_lanes_parts_\d", body))) == 4  # four vector accumulators
    assert len(set(re.findall(r"var_t_lanes_parts_\d", body))) == 4
    assert body.count("_mm512_storeu_ps(&y") == 4
    assert body.count("sqrtf") == 1
    assert snapshot == stages[-1].program.text


def test_figure_37_computes_the_same() -> None:
    for width in (1, 15, 17, 64, 67):
        program = batch_norm(FORWARD, n=2, c=2, h=2, w=width)
        scheduled = schedule_alone({"forward": program}, Recipe("Fig. 3.7", {"forward": figure_37}), TARGETS["avx512"])
        assert_same_expanded(program, finish(scheduled.stages["forward"])[-1].program)


def test_the_tiled_branch_is_refused_and_names_the_loop() -> None:
    def tiled(s: Schedule, target: Target) -> None:
        s.tile("x", dim=0, factor=16)
        s.tile("y", dim=0, factor=16)
        s.parallelize(phase="forward", loop_var="_neuron_index_1_outer")
        s.vectorize(phase="forward", loop_var="_neuron_index_3", factor=16)

    with pytest.raises(Refused) as caught:
        schedule_alone(
            {"forward": batch_norm(FORWARD, c=32)},
            Recipe("Fig. 3.7", {"forward": tiled}),
            TARGETS["avx512"],
            "bn1.",
        )
    assert "is not contiguous in w" in caught.value.message
    assert "_neuron_index_1_inner" in str(caught.value.way_out)
    assert "neighbouring w are 16 elements apart in" in str(caught.value.witness)
