"""Which dimension of a contraction has which part in a product, or in a convolution: by what they move, not by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from swirl.errors import CommandError
from swirl.tune.problem import Problem, Tensor


@dataclass(frozen=True)
class Product:
    """A product C = D · Wᵀ, with whatever names.

    Args:
        problem: the contraction.
        m, n, k: the dimensions with the paper's names: rows of D, rows of W, and the sum. Of several that could be,
            ``n`` is one along which neighbours of C are neighbours in memory, the others are the longest.
        left, right: names of D and W.
        outer: the other dimensions of C.
        sums: the other ones that are summed over.
    """

    problem: Problem
    m: str
    n: str
    k: str
    left: str
    right: str
    outer: tuple[str, ...]
    sums: tuple[str, ...]

    @property
    def extents(self) -> tuple[int, int, int]:
        """M, K and N."""
        return self.problem.extents[self.m], self.problem.extents[self.k], self.problem.extents[self.n]


@dataclass(frozen=True)
class Window:
    """A subscript over pixels and taps: ``s * pixel + d * tap``; of a gradient's gather ``(pixel - tap) // 2``, whose
    divisor is left out: the formulas are then bounds.

    Args:
        pixel: the dimension of the result.
        tap: the dimension that is summed over.
        stride, dilation: s and d.
    """

    pixel: str
    tap: str
    stride: int
    dilation: int


@dataclass(frozen=True)
class Convolution:
    """A convolution, with whatever names.

    Args:
        problem: the contraction.
        oc, ic: channels of the result and of the source.
        windows: from the outermost one to that along a row.
        data, weights: names of the operands.
        outer: the other dimensions of the result, such as images.
        sums: the other ones that are summed over.
    """

    problem: Problem
    oc: str
    ic: str
    windows: tuple[Window, ...]
    data: str
    weights: str
    outer: tuple[str, ...]
    sums: tuple[str, ...]

    @property
    def ow(self) -> str:
        """Pixels of a row of the result."""
        return self.windows[-1].pixel


def product_of(problem: Problem) -> Product:
    """The roles of a product's dimensions.

    Raises:
        CommandError: it is not a product of two arrays, each of which has a dimension of the result for itself.
    """
    output, operands = _operands(problem)
    single = all(len(s.terms) <= 1 and s.divisor == 1 for tensor in problem.tensors for s in tensor.subscripts)
    if not single:
        raise CommandError(f"{problem.nest} is not a product: an operand is read in windows", way_out="a convolution")
    first, second = operands
    own = [_only(problem, tensor, other) for tensor, other in ((first, second), (second, first))]
    if not all(own):
        alone = first.name if not own[0] else second.name
        raise CommandError(f"{problem.nest} is not a product: {alone} has no dimension of the result for itself")
    together = [d for d in (*own[0], *own[1]) if d not in output.apart and d not in problem.beside]
    n = _longest(problem, together or own[1] or own[0])
    left, right = (first, second) if n in own[1] else (second, first)
    m = _longest(problem, own[0] if n in own[1] else own[1])
    shared = [d for d in problem.sums if d in left.dimensions and d in right.dimensions]
    if not shared:
        raise CommandError(f"{problem.nest} is not a product: nothing that is summed over moves both operands")
    k = _longest(problem, shared)
    return Product(problem, m, n, k, left.name, right.name, *_others(problem, {m, n, k}))


def convolution_of(problem: Problem) -> Convolution:
    """The roles of a convolution's dimensions.

    Raises:
        CommandError: no operand is read in windows; or the other one has no channels for itself.
    """
    _, operands = _operands(problem)
    windows = [_windows(problem, tensor) for tensor in operands]
    if bool(windows[0]) == bool(windows[1]):
        what = "both operands are" if windows[0] else "no operand is"
        raise CommandError(f"{problem.nest} is not a convolution: {what} read in windows", way_out="a product")
    data, weights = operands if windows[0] else operands[::-1]
    found = windows[0] or windows[1]
    filters = _only(problem, weights, data)
    taps = {each.tap for each in found}
    channels = [d for d in problem.sums if d in data.dimensions & weights.dimensions and d not in taps]
    if not filters or not channels:
        missing = "channels of the result" if not filters else "channels that are summed over"
        raise CommandError(f"{problem.nest} is not a convolution with {missing}", way_out="another method")
    oc, ic = _longest(problem, filters), _longest(problem, channels)
    own = {oc, ic, *taps, *(each.pixel for each in found)}
    return Convolution(problem, oc, ic, found, data.name, weights.name, *_others(problem, own))


def _operands(problem: Problem) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    output, *operands = problem.tensors
    if len(operands) != 2:
        raise CommandError(f"{problem.nest} does not multiply two arrays", way_out="another method")
    return output, (operands[0], operands[1])


def _only(problem: Problem, tensor: Tensor, other: Tensor) -> list[str]:
    """The dimensions of the result that move one operand alone."""
    return [d for d in problem.extents if d in problem.results and d in tensor.dimensions - other.dimensions]


def _windows(problem: Problem, tensor: Tensor) -> tuple[Window, ...]:
    """The windows in which an operand is read.

    Raises:
        CommandError: a subscript has two dimensions, but they are not a pixel and a tap.
    """
    found = []
    for each in tensor.subscripts:
        if len(each.terms) < 2:
            continue
        pixels = [(d, factor) for d, factor in each.terms if d in problem.results]
        taps = [(d, factor) for d, factor in each.terms if d not in problem.results]
        if len(pixels) != 1 or len(taps) != 1:
            raise CommandError(f"{problem.nest}: {tensor.name} is not read in windows of a pixel and a tap")
        found.append(Window(pixels[0][0], taps[0][0], abs(pixels[0][1]), abs(taps[0][1])))
    return tuple(found)


def _longest(problem: Problem, dimensions: Iterable[str]) -> str:
    return max(dimensions, key=lambda d: problem.extents[d])


def _others(problem: Problem, own: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The dimensions without a role: of the result, and of the sum."""
    outer = tuple(d for d in problem.extents if d in problem.results and d not in own)
    return outer, tuple(d for d in problem.sums if d not in own)
