"""The commands of recipes, one module each, named after it. They are found here: there is no list to keep."""

from importlib import import_module
from pkgutil import iter_modules

for found in iter_modules(__path__):
    import_module(f"{__name__}.{found.name}")
