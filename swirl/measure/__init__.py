"""What this machine reaches."""

from swirl.older_spellings import older_place

__getattr__ = older_place(__name__, "rates", ("Limits", "Measured", "Times"))
