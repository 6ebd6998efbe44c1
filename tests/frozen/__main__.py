"""Compare forty nets with their frozen records, or freeze them again: ``python -m tests.frozen [--write] [TARGET …]``.

To see what changed in a kernel, write its texts at both revisions into folders, and compare these.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from swirl.target.machine import why_not
from swirl.target.targets import TARGETS
from tests.frozen.records import LIBRARY, read_records, record, write_records
from tests.frozen.specifications import specifications
from tests.frozen.test_frozen import differences


def main() -> None:
    """Record every specification for every target that runs here, and compare or write; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="freeze what is found")
    parser.add_argument("--texts", type=Path, help="a folder for the kernels' normalised C++, by digest")
    parser.add_argument("--only", default="", help="specifications with this in their names")
    running = [name for name, target in TARGETS.items() if why_not(target) is None]
    parser.add_argument("targets", nargs="*", default=running)
    given = parser.parse_args()
    count = 0
    for target in given.targets:
        frozen = read_records(target)
        for name, specification in specifications().items():
            if given.only not in name:
                continue
            texts: dict[str, str] = {}
            found = record(specification, target, texts)
            for line in differences(frozen["records"].get(name, {}), found):
                print(f"{target}, {name}: {line}", flush=True)
                count += 1
            frozen["records"][name] = found
            if given.texts:
                given.texts.mkdir(parents=True, exist_ok=True)
                for digest, text in texts.items():
                    (given.texts / f"{digest}.cpp").write_text(text)
        if given.write:
            write_records(target, {**frozen, "library": LIBRARY})
    print(f"{count} differences from what is frozen")
    if count and not given.write:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
