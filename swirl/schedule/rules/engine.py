"""The engine of the default schedule: what a rule is, and how a list of them runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from swirl.ir.types import has_doubles
from swirl.schedule.rules.trials import Trials


class Scope(Enum):
    """What the rules of a stage are applied to."""

    PHASE = "the whole phase"
    NESTS = "each nest"
    NEW_NESTS = "each nest until no new one appears"


class Then(Enum):
    """What comes after a rule that has applied."""

    NEXT_RULE = "the next rule"
    LAST_RULE = "the last rule of the nest: the others have nothing to do"
    NEXT_NEST = "the next nest, which it may have made"
    NEXT_OLD_NEST = "the next nest that it has not made"


@dataclass(frozen=True)
class Rule:
    """A rule of the default schedule.

    Args:
        name: by which lists and decisions call it.
        apply: finds what the rule is about in a phase, or in one nest of it, and applies commands; True where it has
            applied. Its docstring shows a loop nest before and after, and says why that is faster.
        what: it does, in one line.
        then: what comes after it where it has applied; else the next rule.
        vectors: whether it is for nests whose types the target has vectors of.
    """

    name: str
    apply: Callable[[Trials], bool | None]
    what: str
    then: Then = Then.NEXT_RULE
    vectors: bool = False


@dataclass(frozen=True)
class Stage:
    """Rules that are applied to one nest after the other, or to a whole phase, in their order."""

    scope: Scope
    rules: tuple[Rule, ...]


def stage(scope: Scope, *rules: Rule) -> Stage:
    """A :class:`Stage`."""
    return Stage(scope, rules)


def run(stages: Sequence[Stage], trials: Trials) -> None:
    """Apply the rules of all stages to a phase."""
    for each in stages:
        if each.scope is Scope.PHASE:
            for rule in each.rules:
                rule.apply(trials)
            continue
        number, there = 0, len(trials.program.nests)
        while number < (there if each.scope is Scope.NESTS else len(trials.program.nests)):
            before = len(trials.program.nests)
            then = _run_on_nest(each.rules, replace(trials, nest=number, partly=set()))
            number += 1 + (len(trials.program.nests) - before if then is Then.NEXT_OLD_NEST else 0)


def _run_on_nest(rules: Sequence[Rule], own: Trials, vectors: bool = True) -> Then:
    """Apply rules to a nest up to one that ends it; what comes then."""
    then = Then.NEXT_RULE
    for rule in rules:
        if (then is Then.LAST_RULE and rule is not rules[-1]) or (rule.vectors and not vectors):
            continue
        if rule.apply(own):
            then = rule.then
        if then in (Then.NEXT_NEST, Then.NEXT_OLD_NEST):
            break
    return then


def by_itself(rules: Sequence[Rule]) -> Callable[[Trials], None]:
    """Rules that schedule one nest. Where a command was accepted for some of the loops of one name only, these get
    names of their own, and the rules begin again."""

    def apply(nest: Trials) -> None:
        own = replace(nest, work=sum(found.work for found in nest.loops() if found.depth == 1))
        vectors = _has_vectors(own)
        trial = own.scratch()
        _run_on_nest(rules, trial, vectors)
        if not own.partly:
            own.accept(trial)
            return
        own.give_own_names(own.partly)
        _run_on_nest(rules, own, vectors)

    return apply


def _has_vectors(own: Trials) -> bool:
    """Whether the target has vectors of every type in the nest: intrinsics are of single precision."""
    return not (has_doubles(own.nests[0], own.program.buffers) and own.target.isa_flags)
