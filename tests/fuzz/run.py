"""Many random cases, for as long as one likes: ``python tests/fuzz/run.py --cases 10000 --seed 1``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fuzz.checks import Wrong, make_case, random_pick


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; each case adds one")
    parser.add_argument("--commands", type=int, default=4, help="commands a case")
    parser.add_argument("--stop", type=int, default=1, help="end after so many wrong results")
    parser.add_argument("--short", action="store_true", help="one line a wrong result")
    options = parser.parse_args()
    wrong = applied = tried = 0
    start = time.time()
    for seed in range(options.seed, options.seed + options.cases):
        try:
            case = make_case(random_pick(seed), options.commands, finish=True)
            applied += sum(case.applied) - 3
            tried += len(case.applied) - 3
        except Wrong as error:
            wrong += 1
            shown = str(error).splitlines()[0] if options.short else str(error)
            print(f"seed {seed}: {shown}", flush=True)
            if wrong >= options.stop:
                break
    print(
        f"{seed - options.seed + 1} cases from seed {options.seed}, "
        f"{applied} of {tried} commands applied, {wrong} wrong, "
        f"{time.time() - start:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
