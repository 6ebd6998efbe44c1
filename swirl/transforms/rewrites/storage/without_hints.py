"""Nests without hints: prefetches, and stores past the caches."""

from __future__ import annotations

import ast

from swirl.ir.hints import prefetch_of, stored_value, streamed
from swirl.ir.nest import Nest
from swirl.ir.paths import walk
from swirl.ir.trees import name_of
from swirl.transforms.rewrites.blocks import rebuilt


def without_prefetches(nest: Nest) -> Nest:
    """The nest without its prefetches."""
    return _without(nest, {id(node): [] for _, node in walk(nest.body) if prefetch_of(node)})


def without_hints(nest: Nest, buffer: str) -> Nest:
    """The nest without hints about a buffer, whose elements become locals: its prefetches are taken out, and what is
    stored past the caches is stored as usual."""
    gone: dict[int, list[ast.stmt]] = {}
    for _, node in walk(nest.body):
        prefetch = prefetch_of(node)
        if prefetch is not None and prefetch.buffer == buffer:
            gone[id(node)] = []
        elif isinstance(node, ast.Assign) and streamed(node.value) and name_of(node.targets[0]) == buffer:
            gone[id(node)] = [ast.Assign(node.targets, stored_value(node.value))]
    return _without(nest, gone)


def _without(nest: Nest, instead: dict[int, list[ast.stmt]]) -> Nest:
    return nest.with_body(rebuilt(nest.body, instead)) if instead else nest
