"""Temporary arrays become locals."""

from __future__ import annotations

from swirl.analysis.loop_facts import contractions
from swirl.schedule.rules.parting import lone_contractions
from swirl.schedule.rules.trials import Trials


def contract_temporaries(trials: Trials) -> None:
    """Temporaries that are read where they are made become locals, but for those of contractions, and those that
    would keep a contraction from loops of its own.

    rewrite:
        for x in range(64):                      for x in range(64):
            t[x] = exp(a[x])               →         t_local: float32 = exp(a[x])
            y[x] = t[x] * t[x]                       y[x] = t_local * t_local

    Hardware: a local is in a register; an array takes a store, loads, and a place in the caches.
    """
    program = trials.program
    found = [c for nest in program.nests for c in contractions(nest, program.buffers)]
    in_products = {access.name for c in found for access in (c.target, *c.operands)}
    own = [name for name, buffer in program.buffers.items() if buffer.role == "temporary" and name not in in_products]
    alone = lone_contractions(trials) if found and own else 0
    for name in own:
        trial = trials.scratch()
        if trial.apply(f"{name} is read in the iteration that makes it", "contract", name):
            left = lone_contractions(trial) if found else 0
            if left >= alone:
                trials.accept(trial)
                alone = left
