"""All searches by name: those of any space, and those that spaces of a certain kind have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from swirl.tune.automcl.search import ANNEALING, CONFIGURATIONS, annealing_search, configuration_search
from swirl.tune.searches import RANKED, SEARCHES, Search, Source, ranked_search

METHODS: Mapping[str, Callable[[Source, Random], Search]] = {
    **SEARCHES,
    RANKED: ranked_search,
    CONFIGURATIONS: configuration_search,
    ANNEALING: annealing_search,
}
"""A space without a ranking has nothing for ``ranked``, one that does not list its configurations nothing for the two
after it."""
