"""The commands of recipes, by name, and the automatic passes."""

from swirl.transforms import commands
from swirl.transforms.command import COMMANDS

LAYOUT_COMMANDS = frozenset(name for name, command in COMMANDS.items() if command.lays_out)
"""Commands on buffers: they take no phase."""

__all__ = ["COMMANDS", "LAYOUT_COMMANDS", "commands"]
