"""What users look at in a net: layers, memory, times, what the compiler did."""

from __future__ import annotations

from latte.compiling import planned_memory
from latte.explain.explanation import Explanation, explain
from latte.explain.memory import MemoryReport, memory_report
from latte.explain.summary import Summary, summary
from latte.model.ensemble import Ensemble
from latte.model.graph import Graph
from latte.profiling.measuring import profile
from latte.profiling.profile import Profile
from latte.runtime.executable import Executable
from latte.runtime.gradient_check import GradientCheck, check_gradients
from latte.runtime.session import Session
from latte.runtime.timings import Timings, timings


class Looking:
    """The part of a net that shows it, compiled or not."""

    graph: Graph

    @property
    def compiled(self) -> bool:
        """Whether the net is compiled."""
        raise NotImplementedError

    @property
    def session(self) -> Session:
        """The compiled net that runs."""
        raise NotImplementedError

    @property
    def executable(self) -> Executable:
        """The compiled net for the batch size last used."""
        raise NotImplementedError

    def summary(self) -> Summary:
        """Layers, shapes, parameters, memory, operations; see :func:`latte.explain.summary.summary`."""
        return summary(self.graph, self.executable if self.compiled else None)

    def memory(self) -> MemoryReport:
        """What the net needs, by layer and phase: before it is compiled or has any; see
        :class:`latte.explain.memory.MemoryReport`."""
        if not self.compiled:
            return planned_memory(self.graph)
        self.session.settle()
        return memory_report(self.executable)

    def explain(self, ensemble: Ensemble | str, phase: str | None = None) -> Explanation:
        """What the compiler did with an ensemble; see :func:`latte.explain.explanation.explain`."""
        self.session.settle()
        return explain(self.executable, ensemble, phase)

    def check_gradients(
        self, layer: Ensemble | str | None = None, *, batch_size: int | None = None, directions: int = 3
    ) -> GradientCheck:
        """Compare gradients with differences of forward; see :func:`latte.runtime.gradient_check.check_gradients`."""
        return check_gradients(self.graph, layer, batch_size=batch_size, directions=directions)

    def timings(self, phase: str = "forward", repeat: int = 10) -> Timings:
        """How long each layer takes; see :func:`latte.runtime.timings.timings`."""
        return timings(self.session, phase, repeat)

    def profile(self, repeat: int = 10) -> Profile:
        """How long each loop nest takes, beside the machine's limits; see :func:`latte.profiling.measuring.profile`."""
        return profile(self.session, repeat)
