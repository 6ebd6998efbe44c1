"""For pytest under the sanitizers: arrays end where their memory ends, kernels are compiled quickly."""

from __future__ import annotations

import swirl.build.jit
import swirl.run.memory
from tests.sanitize import ExactArena, sanitized

assert sanitized(), "run this by python -m tests.sanitize"
swirl.run.memory.Arena = ExactArena  # type: ignore[misc, assignment]
defaults = swirl.build.jit.build.__kwdefaults__
assert defaults is not None
defaults["optimize"] = "-O1"
