"""The best candidate of a loop and its place, in lanes: what is printed, the same bits, what is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc

import pytest

from swirl.errors import Refused
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.ir.validate import validate
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from tests.support import assert_all_compile_to_same, assert_same

SHAPES = {"x": (3, 21), "m": (3,), "w": (3,), "p": (3,), "q": (3,), "r": (3,), "s": (3,)}
INTEGERS = {"p", "q", "r", "s"}


def program(body: str) -> Program:
    buffers = {
        name: Buffer(f"net.{name}", shape, "int32" if name in INTEGERS else "float32")
        for name, shape in SHAPES.items()
        if f"{name}[" in body
    }
    return validate(parse_program(body, buffers))


def search(order: str = ">", nan: bool = True, start: int = 0, stop: int = 21) -> Program:
    """The place of the best of a row's elements, and the row's number."""
    test = f"candidate {order} m[i]" + (" or candidate != candidate" if nan else "")
    return program(f"""
for i in range(3):
    for k in range({start}, {stop}):
        candidate: float32 = x[i, k]
        better: bool = {test}
        p[i] = k if better else p[i]
        q[i] = i if better else q[i]
        m[i] = candidate if better else m[i]
""")


def vectorized(before: Program, lanes: int = 4) -> Program:
    return COMMANDS["vectorize"](before, "k", lanes)


def test_prints_lanes() -> None:
    after = vectorized(search(nan=False), 2)
    assert after.nests[0].body_text == cleandoc("""
        for i in range(3):
            m_t: float32 = m[i]
            p_t: int32 = p[i]
            q_t: int32 = q[i]
            m_t_lanes: float32[2] = empty(2)
            for k_lane in vector(2):
                m_t_lanes[k_lane] = m_t
            k_lanes: int32[2] = empty(2)
            for k_lane in vector(2):
                k_lanes[k_lane] = -1
            for k in range(0, 21, 2):
                candidate: float32[2] = empty(2)
                for k_lane in vector(min(2, 21 - k)):
                    candidate[k_lane] = x[i, k + k_lane]
                better: bool[2] = empty(2)
                for k_lane in vector(min(2, 21 - k)):
                    better[k_lane] = candidate[k_lane] > m_t_lanes[k_lane]
                    k_lanes[k_lane] = k + k_lane if better[k_lane] else k_lanes[k_lane]
                    m_t_lanes[k_lane] = candidate[k_lane] if better[k_lane] else m_t_lanes[k_lane]
            for k_lane in vector(1):
                own: float32 = m_t_lanes[k_lane]
                other: float32 = m_t_lanes[k_lane + 1]
                later: bool = k_lanes[k_lane + 1] > k_lanes[k_lane]
                wins: bool = other > own or (other == own and (not later))
                k_lanes[k_lane] = k_lanes[k_lane + 1] if wins else k_lanes[k_lane]
                m_t_lanes[k_lane] = other if wins else own
            p_t = k_lanes[0] if k_lanes[0] != -1 else p_t
            q_t = i if k_lanes[0] != -1 else q_t
            m_t = m_t_lanes[0]
            q[i] = q_t
            p[i] = p_t
            m[i] = m_t""")


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("order", [">", ">=", "<", "<="])
def test_any_order(order: str, nan: bool) -> None:
    """Of elements many of which are the same, zeros of either sign, infinite, or not numbers."""
    before = search(order, nan)
    after = vectorized(before)
    assert "m_t_lanes" in after.nests[0].text
    for seed in range(6):
        assert_same(before, after, keeps_bits=True, seeds=(seed,))


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 3), (1, 2), (2, 21), (5, 5), (1, 17)])
def test_any_bounds(start: int, stop: int) -> None:
    before = search(start=start, stop=stop)
    assert_same(before, vectorized(before), keeps_bits=True, seeds=range(3))


OTHERS = {
    "two winners": """
for i in range(3):
    for k in range(21):
        greater: bool = x[i, k] > m[i]
        p[i] = k if greater else p[i]
        m[i] = x[i, k] if greater else m[i]
        less: bool = x[i, k] < w[i]
        q[i] = k if less else q[i]
        w[i] = x[i, k] if less else w[i]
""",
    "rows of an image": """
for i in range(3):
    for j in range(3):
        for k in range(7):
            better: bool = x[i, 7 * j + k] > m[i]
            p[i] = j if better else p[i]
            q[i] = k if better else q[i]
            m[i] = x[i, 7 * j + k] if better else m[i]
""",
    "a triangle": """
for i in range(3):
    for j in range(21):
        for k in range(j + 1):
            better: bool = x[i, k] > m[i] or x[i, k] != x[i, k]
            p[i] = k if better else p[i]
            m[i] = x[i, k] if better else m[i]
""",
    "no place": """
for i in range(3):
    for k in range(21):
        better: bool = x[i, k] > m[i]
        m[i] = x[i, k] if better else m[i]
""",
    "another place": """
for i in range(3):
    for k in range(21):
        better: bool = x[i, k] > m[i]
        p[i] = 20 - k if better else p[i]
        m[i] = x[i, k] if better else m[i]
""",
    "an if": """
for i in range(3):
    for k in range(21):
        if x[i, k] > m[i]:
            m[i] = x[i, k]
            p[i] = k
""",
    "two ifs, of which one exchanges its sides": """
for i in range(3):
    for k in range(21):
        candidate: float32 = 2.0 * x[i, k]
        if m[i] <= candidate:
            p[i] = 2 * k + i
            m[i] = candidate
        if w[i] > x[i, k] or x[i, k] != x[i, k]:
            w[i] = x[i, k]
            q[i] = 3
""",
    "what is not a number comes first": """
for i in range(3):
    for k in range(21):
        better: bool = x[i, k] != x[i, k] or m[i] < x[i, k]
        p[i] = k if better else p[i]
        m[i] = x[i, k] if better else m[i]
""",
    "several places": """
for i in range(3):
    for k in range(21):
        better: bool = x[i, k] > m[i]
        p[i] = k if better else p[i]
        q[i] = 4 * i + k if better else q[i]
        w[i] = float32(k) if better else w[i]
        m[i] = x[i, k] if better else m[i]
""",
    "the candidate changes afterwards": """
for i in range(3):
    for k in range(21):
        candidate: float32 = x[i, k]
        better: bool = candidate >= m[i]
        m[i] = candidate if better else m[i]
        candidate = 0.5 * candidate
        p[i] = k if better else p[i]
        w[i] += candidate
""",
    "a sum beside it": """
for i in range(3):
    for k in range(21):
        better: bool = x[i, k] > m[i]
        p[i] = k if better else p[i]
        m[i] = x[i, k] if better else m[i]
        w[i] += x[i, k]
""",
}


def others() -> Iterator[tuple[Program, Program]]:
    for body in OTHERS.values():
        before = program(body)
        yield before, vectorized(before)


@pytest.mark.parametrize("name", OTHERS)
def test_beside_other_loops_and_statements(name: str) -> None:
    before = program(OTHERS[name])
    assert_same(before, vectorized(before), seeds=range(3))


def test_compiled(target: Target) -> None:
    every = [vectorized(search(order, nan), 8) for order in (">", ">=", "<", "<=") for nan in (False, True)]
    assert_all_compile_to_same([*every, *(after for _, after in others())], target, seed=1)


# --- left alone -------------------------------------------------------------------------------------------------
LEFT = {
    "another candidate": """
for i in range(3):
    for k in range(21):
        better: bool = x[i, k] > m[i]
        p[i] = k if better else p[i]
        m[i] = x[i, k] + 1.0 if better else m[i]
""",
    "the winner is read in the loop": """
for i in range(3):
    for k in range(21):
        better: bool = x[i, k] > m[i]
        p[i] = k if better else p[i]
        m[i] = x[i, k] if better else m[i]
        w[i] = m[i]
""",
    "the condition is read": """
for i in range(3):
    for k in range(21):
        better: bool = x[i, k] > m[i]
        p[i] = k if better else p[i]
        m[i] = x[i, k] if better else m[i]
        w[i] += 1.0 if better else 0.0
""",
    "the candidate changes": """
for i in range(3):
    for k in range(21):
        candidate: float32 = x[i, k]
        better: bool = candidate >= m[i]
        candidate = 0.5 * candidate
        p[i] = k if better else p[i]
        m[i] = candidate if better else m[i]
""",
    "the candidate's element changes": """
for i in range(3):
    for k in range(21):
        better: bool = x[i, k] >= m[i]
        p[i] = k if better else p[i]
        if k > 5:
            x[i, k] = 0.5 * x[i, k]
        m[i] = x[i, k] if better else m[i]
""",
    "an if with an else": """
for i in range(3):
    for k in range(21):
        if x[i, k] > m[i]:
            m[i] = x[i, k]
            p[i] = k
        else:
            p[i] = 5
""",
    "a place of data": """
for i in range(3):
    for k in range(21):
        better: bool = x[i, k] > m[i]
        p[i] = k % r[i] if better else p[i]
        m[i] = x[i, k] if better else m[i]
""",
    "another element is kept, too": """
for i in range(3):
    for k in range(21):
        better: bool = x[i, k] > m[i]
        p[i] = k if better else p[i]
        w[i] = x[i, 20 - k] if better else w[i]
        m[i] = x[i, k] if better else m[i]
""",
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_no_winner_gets_no_lanes(name: str) -> None:
    with pytest.raises(Refused):
        vectorized(program(LEFT[name]))
