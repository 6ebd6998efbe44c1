"""The sides of ``latte bench``, each in a process of its own, and what their environments fix."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from types import TracebackType
from typing import Any

import numpy as np

from latte.tools.bench.cases import Case
from latte.tools.bench.ours import Ours, our_side
from latte.tools.bench.whole_nets import WholeNet
from latte.tools.library.entries import Arrays
from swirl.config import child_environment
from swirl.errors import LatteError

REUSED_MEMORY = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4000000000:"
    "glibc.malloc.trim_threshold=20000000000",
}
HELD_TO_AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
}
"""What keeps PyTorch's libraries from AVX-512: oneDNN (convolutions), its own kernels and those that it compiles, MKL
(matrix products). The keys of the compiler's graph caches lack the instructions: it would take loops over vectors of 16
that another process has left there, compile them for vectors of 8, and compute half of the elements."""


PROBE = """
import torch
print("ATen", torch.backends.cpu.get_cpu_capability())
torch.nn.functional.conv2d(torch.ones(8, 64, 28, 28), torch.ones(64, 64, 3, 3))
torch.mm(torch.ones(256, 256), torch.ones(256, 256))
"""


def instruction_sets(environment: Mapping[str, str]) -> str:
    """Which instructions PyTorch's libraries say that they use, where they say so, in such an environment."""
    told = {**child_environment(), **environment, "ONEDNN_VERBOSE": "1", "MKL_VERBOSE": "1"}
    done = subprocess.run([sys.executable, "-c", PROBE], env=told, capture_output=True, text=True, check=False)
    patterns = {"ATen": r"^ATen (.*)$", "oneDNN": r"cpu,isa:(.*)$", "MKL": r"MKL.* for (.*), Lnx"}
    found = {name: re.search(pattern, done.stdout, re.MULTILINE) for name, pattern in patterns.items()}
    return ", ".join(f"{name}: {hit[1] if hit else 'does not say'}" for name, hit in found.items())


@dataclass(frozen=True)
class Side:
    """A side of a comparison.

    Args:
        name: as tables print it.
        peer: whether it is PyTorch.
        channels_last, compiled: of PyTorch, see :class:`latte.tools.bench.peer.Torch` and
            :class:`latte.tools.bench.peer_nets.TorchNet`.
        environment: variables of its process.
        level: of ours, with which commands of the recipe; see :mod:`latte.tools.bench.levels`. All by default.
        recipes: of ours, whether the layers have theirs.
        threads: by default those of the case.
    """

    name: str
    peer: bool = True
    channels_last: bool = False
    compiled: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    level: int | None = None
    recipes: bool = True
    threads: int | None = None


@dataclass(frozen=True)
class Turn:
    """Runs of a side, one after the other.

    Args:
        seconds: of each run.
        regions: parallel regions in these runs, of our side.
        shared: of these, in which two threads were on one core.
    """

    seconds: list[float]
    regions: int = 0
    shared: int = 0


OURS = "Latte"
WITHOUT_RECIPES = Side("default schedule", peer=False, recipes=False)
ON_ONE_THREAD = Side("one thread", peer=False, threads=1)


def sides(target: str, compile_peer: bool = True) -> list[Side]:
    """Ours, then PyTorch as it comes, tuned, and tuned and compiled.

    Args:
        target: that our side is compiled for; for avx2 the peers are held to it.
        compile_peer: whether ``torch.compile`` is one of them.
    """
    held = HELD_TO_AVX2 if target == "avx2" else {}
    reused = tuple({**held, **REUSED_MEMORY}.items())
    found = [
        Side(OURS, peer=False),
        Side("PyTorch", environment=tuple(held.items())),
        Side("PyTorch tuned", channels_last=True, environment=reused),
    ]
    compiled = Side("PyTorch compiled", channels_last=True, compiled=True, environment=reused)
    return [*found, compiled] if compile_peer else found


class Worker:
    """A side of a case in a process of its own.

    Raises:
        LatteError: the side has failed; the message is its last line.
    """

    def __init__(
        self,
        side: Side,
        case: Case,
        threads: int,
        target: str | None,
        blocks: bool,
        folder: Path,
        parameters: Path | None,
    ):
        self.side, self.folder = side, folder
        command = [sys.executable, "-c", "from latte.tools.bench.workers import serve; serve()"]
        environment = {**child_environment(), "OMP_NUM_THREADS": str(threads), **dict(side.environment)}
        self.errors = (folder / f"{side.name}.err").open("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment
        )
        self.about = self.ask(
            case=asdict(case),
            threads=threads,
            target=target,
            blocks=blocks,
            peer=side.peer,
            channels_last=side.channels_last,
            compiled=side.compiled,
            level=side.level,
            recipes=side.recipes,
            parameters=None if parameters is None else str(parameters),
        )

    def ask(self, **question: Any) -> Any:
        """The answer to a question."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: why, is told below
        answer = self.process.stdout.readline()
        if not answer:
            self.errors.seek(0)
            told = self.errors.read().strip().splitlines()
            why = told[-1] if told else "it said nothing"
            missing = re.search(r"No module named '(\w+)'", why)
            raise LatteError(f"{self.side.name} has failed: {why}" + (f"; pip install {missing[1]}" if missing else ""))
        found = json.loads(answer)
        if "error" in found:
            raise LatteError(f"{self.side.name}: {found['error']}")
        return found

    def results(self, data: Path) -> Arrays:
        """What the side computes of the data."""
        path = self.folder / f"{self.side.name}.npz"
        self.ask(do="results", data=str(data), to=str(path))
        with np.load(path) as found:
            return dict(found)

    def turn(self, phase: str, runs: int, warm: int = 0, pause: float = 0.0) -> Turn:
        """So many runs of a phase.

        Args:
            phase: as the sides call it.
            runs: that are counted.
            warm: before them, not counted.
            pause: seconds before each run, in which the side does nothing.
        """
        return Turn(**self.ask(do="seconds", phase=phase, runs=runs, warm=warm, pause=pause))

    def close(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.errors.close()


class Workers:
    """The workers of a case: used in a ``with`` statement, which ends their processes."""

    def __init__(self, case: Case, threads: int, target: str | None, blocks: bool):
        self.case, self.threads, self.target, self.blocks = case, threads, target, blocks
        self.folder = TemporaryDirectory(prefix="latte-bench-")
        self.running: dict[str, Worker] = {}

    def start(self, side: Side) -> Worker:
        """Start a side. Ours must be the first: the peers get its parameters."""
        parameters = None
        if side.peer:
            parameters = self.path("parameters.npz")
        threads = side.threads or self.threads
        worker = Worker(side, self.case, threads, self.target, self.blocks, Path(self.folder.name), parameters)
        self.running[side.name] = worker
        if not side.peer:
            worker.ask(do="parameters", to=str(self.path("parameters.npz")))
        return worker

    def drop(self, side: Side) -> None:
        """End a side that has failed."""
        worker = self.running.pop(side.name, None)
        if worker is not None:
            worker.close()

    def path(self, name: str) -> Path:
        """A file for what goes between the processes."""
        return Path(self.folder.name) / name

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.running.values():
            worker.close()
        self.folder.cleanup()


# --- in the process of a side ------------------------------------------------------------------------------
def serve() -> None:
    """Answer questions from the standard input: the first declares the side."""
    channel = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    side: Any = None
    for line in sys.stdin:
        try:
            question = json.loads(line)
            if side is None:
                side, answer = _declared(question)
            else:
                answer = _answered(side, question)
        except LatteError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=channel, flush=True)


def _declared(asked: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    case = Case(**asked["case"])
    if not asked["peer"]:
        asked_of_ours = ("threads", "target", "blocks", "level", "recipes")
        side = our_side(case, *(asked[name] for name in asked_of_ours))
        value = side.value_shape if hasattr(side, "value_shape") else ()
        return side, {
            "target": side.target,
            "value": value,
            "phases": side.phases,
            "untuned": list(map(str, side.net.report.untuned)),
        }
    from latte.tools.bench.peer_nets import torch_side  # PyTorch need not be installed for our side

    with np.load(asked["parameters"]) as parameters:
        return torch_side(case, asked["threads"], dict(parameters), asked["channels_last"], asked["compiled"]), {}


def _answered(side: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    match asked["do"]:
        case "parameters":
            np.savez(asked["to"], **side.parameters())
        case "results":
            with np.load(asked["data"]) as data:
                side.load(data["inputs"], data["gradient"])
            np.savez(asked["to"], **side.results())
        case "seconds":
            return asdict(_turn(side, asked["phase"], asked["runs"], asked["warm"], asked["pause"]))
        case "limits":
            found = side.limits.measure([], rounds=1)
            return {"peak": found.peak, "bandwidth": found.bandwidth}
        case "work":
            operations, touched = side.work(asked["phase"])
            planned = side.planned(asked["phase"]) if isinstance(side, WholeNet) else 0
            return {"operations": operations, "bytes": touched, "planned": planned}
    return {}


def _turn(side: Any, phase: str, runs: int, warm: int, pause: float) -> Turn:
    if warm:
        side.seconds(phase, warm)
    before = side.seen if isinstance(side, Ours) else None
    if pause:
        found = []
        for _ in range(runs):
            sleep(pause)
            found += side.seconds(phase, 1)
    else:
        found = side.seconds(phase, runs)
    if before is None:
        return Turn(found)
    after = side.seen
    return Turn(found, after.regions - before.regions, after.shared - before.shared)
