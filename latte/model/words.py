"""Words of bodies, whose source is read: calling them is a mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swirl.errors import DeclarationError


def _only_in_bodies(name: str) -> Callable[..., Any]:
    def word(*_: Any) -> Any:
        raise DeclarationError(f"{name}() has a meaning only in the body of a neuron or ensemble, which is never run")

    word.__name__ = name
    word.of_bodies = True  # type: ignore[attr-defined]
    return word


eachindex = _only_in_bodies("eachindex")
range_dim = _only_in_bodies("range_dim")
enumerate_dim = _only_in_bodies("enumerate_dim")
rand = _only_in_bodies("rand")
stop_gradient = _only_in_bodies("stop_gradient")
fmax = _only_in_bodies("fmax")
fmin = _only_in_bodies("fmin")
exp = _only_in_bodies("exp")
expm1 = _only_in_bodies("expm1")
log = _only_in_bodies("log")
log1p = _only_in_bodies("log1p")
sqrt = _only_in_bodies("sqrt")
tanh = _only_in_bodies("tanh")
erf = _only_in_bodies("erf")
sin = _only_in_bodies("sin")
cos = _only_in_bodies("cos")
atan = _only_in_bodies("atan")
floor = _only_in_bodies("floor")
float32 = _only_in_bodies("float32")
int32 = _only_in_bodies("int32")
INFINITY = float("inf")


def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``, a helper for bodies. It and its derivative are zero for ``x`` below -88.7, where the
    exponential is infinite."""
    return 1.0 / (1.0 + exp(-x))
