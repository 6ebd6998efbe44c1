"""Many random cases, for as long as one likes: ``python tests/fuzz/run.py --cases 100000 --seed 1 --workers 2``.

Each case has the number of its seed, so any part can be run again. Batches of cases run in separate processes: one that
crashes or hangs is halved until the case is found. Finished batches are kept in a folder (``--state``); the same call
after an interruption continues after them, as long as the sources are the same.

Each case is compared by two oracles: executed over rationals; and executed in the types that it declares, on data with
NaN, infinities, -0, denormals and huge values (``tests/fuzz/floats.py``). The compiled programs get such data, too.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

BATCH = 200
"""Cases of one process, and of one kernel for each target."""
DERIVATIVES = 100
"""Bodies of one process."""
NETS = 5
"""Nets of one process."""
OPTIMIZED = 20
"""Each batch of so many is compiled with the flags of real kernels, the others without optimisation."""
LIMIT = 1800
"""Seconds that a batch may take; more counts as an endless loop."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; each case adds one")
    parser.add_argument("--commands", type=int, default=5, help="commands a case")
    parser.add_argument("--nets", action="store_true", help="random nets with shipped recipes, and with their own")
    parser.add_argument("--derivatives", action="store_true", help="gradients of random bodies, against differences")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--stop", type=int, default=10, help="end after so many failures")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no batch after so many")
    parser.add_argument("--state", type=Path, help="folder in which finished batches are kept")
    parser.add_argument("--batch", action="store_true", help="run the cases in this process and print JSON")
    options = parser.parse_args()
    if options.batch:
        gc.set_threshold(100_000, 20, 20)  # as in tests/conftest.py
        optimized = options.seed // size(options) % OPTIMIZED == 0
        if options.nets:
            from tests.fuzz.net_batch import run_nets

            found = run_nets(options.seed, options.cases, optimized)
        elif options.derivatives:
            from tests.fuzz.derivative_checks import run_derivatives

            found = run_derivatives(options.seed, options.cases)
        else:
            from tests.fuzz.batch import run_batch

            found = run_batch(options.seed, options.cases, options.commands, optimized)
        print(json.dumps(found))
        return 0
    return run(options)


def size(options: argparse.Namespace) -> int:
    """Cases of one process."""
    return NETS if options.nets else DERIVATIVES if options.derivatives else BATCH


def run(options: argparse.Namespace) -> int:
    """All batches, progress, and the summary; 1 where something failed."""
    start = time.monotonic()
    total = Counter[str]()
    wrong: list[dict[str, Any]] = []
    print(f"{options.cases} cases from seed {options.seed}, {options.workers} worker(s)", flush=True)

    def one(first: int) -> list[dict[str, Any]]:
        if time.monotonic() - start > options.seconds or len(wrong) >= options.stop:
            return []
        count = min(size(options), options.seed + options.cases - first)
        return kept(options, first, count)

    with ThreadPoolExecutor(options.workers) as pool:
        for found in pool.map(one, range(options.seed, options.seed + options.cases, size(options))):
            if not found:  # no time left
                continue
            for batch in found:
                total.update(batch["counts"])
                for failure in batch["wrong"]:
                    wrong.append(failure)
                    print(f"\nseed {failure['seed']}: {failure['what']}\n\n{failure['test']}\n", flush=True)
            seconds = time.monotonic() - start
            print(
                f"{total['cases']} of {options.cases} cases, {total['cases'] / seconds:.1f} a second, "
                f"{len(wrong)} wrong",
                file=sys.stderr,
                flush=True,
            )
    print("\n".join(summary(total, time.monotonic() - start, options)))
    print(f"{len(wrong)} failures" + "".join(f"\n  seed {f['seed']}: {f['what']}" for f in wrong))
    return 1 if wrong else 0


def kept(options: argparse.Namespace, first: int, count: int) -> list[dict[str, Any]]:
    """What a batch found, read from the folder of finished ones or run now."""
    path = None
    if options.state is not None:
        kind = "nets" if options.nets else "derivatives" if options.derivatives else str(options.commands)
        path = options.state / f"{sources()}-{kind}" / f"{first}-{count}.json"
        if path.exists():
            return json.loads(path.read_text())
    found = list(processed(options, first, count))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(found))
        draft.replace(path)
    return found


def processed(options: argparse.Namespace, first: int, count: int) -> Iterator[dict[str, Any]]:
    """The results of a batch's process; of its halves, where that one crashes or does not end."""
    command = [
        sys.executable,
        __file__,
        "--batch",
        "--seed",
        str(first),
        "--cases",
        str(count),
        "--commands",
        str(options.commands),
        *(["--nets"] if options.nets else []),
        *(["--derivatives"] if options.derivatives else []),
    ]
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "SWIRL_SHARED_FROM": "0"}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment, check=False)
        if ran.returncode == 0:
            yield json.loads(ran.stdout.splitlines()[-1])
            return
        problem = f"exit status {ran.returncode}: {(ran.stderr.strip().splitlines() or ['no message'])[-1]}"
    except subprocess.TimeoutExpired:
        problem = f"no end within {LIMIT} s"
    if count == 1:
        what = {"seed": first, "what": problem, "test": f"{' '.join(command[1:])}  # shows it"}
        yield {"counts": {"cases": 1}, "wrong": [what]}
        return
    yield from processed(options, first, count // 2)
    yield from processed(options, first + count // 2, count - count // 2)


def summary(total: Counter[str], seconds: float, options: argparse.Namespace) -> list[str]:
    """Lines with the numbers of cases and of commands."""
    if options.nets:
        return [
            f"{total['cases']} nets from seed {options.seed} in {seconds:.0f} s, {total['exact']} in whole numbers, "
            f"{total['with recipes of their own']} with recipes of their own",
            *(f"{key}: {total[key]}" for key in sorted(total) if key.startswith(("compiled ", "refused "))),
        ]
    if options.derivatives:
        lines = [f"{total['cases']} bodies from seed {options.seed} in {seconds:.0f} s"]
        return lines + [f"{key}: {total[key]}" for key in sorted(total) if key != "cases"]
    tried = sorted(key.removeprefix("tried ") for key in total if key.startswith("tried "))
    all_tried = sum(total[f"tried {name}"] for name in tried)
    applied = sum(total[f"applied {name}"] for name in tried)
    lines = [
        f"{total['cases']} cases from seed {options.seed} in {seconds:.0f} s, "
        f"{total['cases'] / max(1, seconds):.1f} a second",
        f"{all_tried} commands, {applied} applied, {all_tried - applied} refused; "
        f"{total['changed']} cases with at least one applied",
    ]
    width = max(map(len, tried), default=0)
    lines += [
        f"  {name.ljust(width)} {total[f'applied {name}']:7} applied "
        f"{total[f'tried {name}'] - total[f'applied {name}']:7} refused"
        for name in tried
    ]
    for key in sorted(key for key in total if key.startswith(("compiled ", "no code "))):
        lines.append(f"{key}: {total[key]} cases")
    compared = [key for key in total if key.startswith("floats ")]
    how = ", ".join(f"{total[key]} {key.removeprefix('floats ')}" for key in sorted(compared))
    lines.append(f"in floating point: {how}")
    drawn = sorted((key for key in total if key.startswith("drawn ")), key=lambda key: -total[key])
    return lines + [f"  {total[key]:7} with {key.removeprefix('drawn ')}" for key in drawn]


def sources() -> str:
    """Identity of what is tested and of what makes the cases."""
    folders = [ROOT / name for name in ("swirl", "latte", "layers", "recipes", "tests/fuzz")]
    files = sorted(path for folder in folders for suffix in ("py", "j2") for path in folder.rglob(f"*.{suffix}"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
