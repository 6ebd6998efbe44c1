"""The commands of recipes, by name, and the automatic passes."""

from swirl.transforms import commands
from swirl.transforms.command import COMMANDS

LAYOUT_COMMANDS = frozenset({"tile", "untile", "transpose", "set_padding"})
"""Commands on buffers: they take no phase."""

__all__ = ["COMMANDS", "LAYOUT_COMMANDS", "commands"]
