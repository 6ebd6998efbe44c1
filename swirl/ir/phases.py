"""The phases of a layer's programs."""

PHASES = ("forward", "backward", "update")
INFERENCE = "inference"
"""The phase that follows the commands for ``forward``, unless a recipe has a function of this name."""
PHASE_ALIASES = {"update_internal": "update"}
