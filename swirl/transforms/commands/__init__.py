"""The commands of recipes, one module each, named after it. They are found here: there is no list to keep."""

from importlib import import_module
from pkgutil import iter_modules

from swirl.transforms.command import COMMANDS

OLDER = {"simd": "vectorize", "swap_loops": "interchange", "unroll_no_jam": "unroll"}
"""Older spelling → command. Arguments that programs for the original Latte give differently are in
``latte/model/older_spellings.py``."""

for found in iter_modules(__path__):
    import_module(f"{__name__}.{found.name}")
COMMANDS.update({older: COMMANDS[now] for older, now in OLDER.items()})
