"""Targets: what code is made for, and which of them this machine can run."""

from swirl.older_spellings import older_place
from swirl.target.targets import TARGETS, Target, get_target

__all__ = ["TARGETS", "Target", "get_target"]

OF_THE_MACHINE = ("cache_bytes", "processor_identity", "processor_name", "resolve_target", "why_hidden", "why_not")
__getattr__ = older_place(__name__, "machine", OF_THE_MACHINE)
