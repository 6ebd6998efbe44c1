"""Addresses of elements: subscripts of an array as one number."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from swirl.ir.affine import Affine, Ranges, affine
from swirl.ir.nest import constant


def element_address(
    shape: Sequence[int], indices: Sequence[ast.expr], ranges: Ranges, *, fix: bool = False
) -> Affine | None:
    """Elements between an array's start and the element with these subscripts; None where one is not quasi-affine.

    Quotients and remainders of one number are joined: ``a[i // 56, i % 56]`` is element ``i`` of rows of 56.

    Args:
        shape: of the array in memory.
        indices: one for each dimension.
        ranges: of the variables in them.
        fix: see :func:`swirl.ir.affine.affine`.
    """
    address, stride = Affine(), 1
    for index, extent in zip(reversed(indices), reversed(shape), strict=True):
        form = affine(index, ranges, fix=fix)
        if form is None:
            return None
        address, stride = address.add(form, stride), stride * extent
    return _joined(address, ranges)


def _joined(form: Affine, ranges: Ranges) -> Affine:
    """``f·k·(e // k) + f·(e % k)`` is ``f·e``, whatever ``e`` is."""
    divided = {key: atom for key in form.terms if isinstance(atom := form.atoms[key], ast.BinOp)}
    quotients = {_quotient(atom, ranges): key for key, atom in divided.items() if isinstance(atom.op, ast.FloorDiv)}
    for key, atom in divided.items():
        size, whole, factor = constant(atom.right), affine(atom.left, ranges), form.terms[key]
        quotient = quotients.get(_quotient(atom, ranges))
        if not isinstance(atom.op, ast.Mod) or quotient is None or size is None or whole is None:
            continue
        if form.terms[quotient] == factor * size:
            rest = Affine({k: c for k, c in form.terms.items() if k not in (key, quotient)}, form.constant, form.atoms)
            return _joined(rest.add(whole, factor), ranges)
    return form


def _quotient(atom: ast.BinOp, ranges: Ranges) -> tuple[frozenset[tuple[str, int]], int, int]:
    """The dividend's terms and constant, and the divisor, of ``e // k`` or ``e % k``; those of ``(x + y //
    d) // k`` are of ``d·x + y`` and ``d·k``."""
    dividend, divisor = affine(atom.left, ranges), constant(atom.right)
    assert dividend is not None and divisor is not None
    for key, factor in dividend.terms.items():
        inner = dividend.atoms[key]
        if factor == 1 and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.FloorDiv):
            size, whole = constant(inner.right), affine(inner.left, ranges)
            assert size is not None and whole is not None
            rest = Affine({k: c for k, c in dividend.terms.items() if k != key}, dividend.constant, dividend.atoms)
            flat = rest.scale(size).add(whole).to_expr()
            return _quotient(ast.BinOp(flat, ast.FloorDiv(), ast.Constant(divisor * size)), ranges)
    return frozenset(dividend.terms.items()), dividend.constant, divisor
