"""Freeze anew, or look: ``python -m tests.frozen [--write] [--texts FOLDER] [TARGET …]``.

To see what changed in a kernel, write its texts at both revisions into folders, and compare these.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from swirl.target import TARGETS, why_not
from tests.frozen.records import LIBRARY, record
from tests.frozen.specifications import specifications
from tests.frozen.test_frozen import RECORDS, differences


def main() -> None:
    """Record every specification for every target that runs here, and compare or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="freeze what is found")
    parser.add_argument("--texts", type=Path, help="a folder for the kernels' normalised C++, by digest")
    parser.add_argument("--only", default="", help="specifications with this in their names")
    running = [name for name, target in TARGETS.items() if why_not(target) is None]
    parser.add_argument("targets", nargs="*", default=running)
    given = parser.parse_args()
    for target in given.targets:
        path = RECORDS / f"{target}.json"
        frozen = json.loads(path.read_text()) if path.exists() else {"library": LIBRARY, "records": {}}
        for name, specification in specifications().items():
            if given.only not in name:
                continue
            texts: dict[str, str] = {}
            found = record(specification, target, texts)
            for line in differences(frozen["records"].get(name, {}), found):
                print(f"{target}, {name}: {line}", flush=True)
            frozen["records"][name] = found
            if given.texts:
                given.texts.mkdir(parents=True, exist_ok=True)
                for digest, text in texts.items():
                    (given.texts / f"{digest}.cpp").write_text(text)
        if given.write:
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({**frozen, "library": LIBRARY}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
