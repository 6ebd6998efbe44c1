"""Tests under AddressSanitizer and UBSan: ``python -m tests.sanitize tests/codegen -k avx512`` is pytest with them.

Kernels are compiled with both, every array ends where its memory does, and any access beyond it, or undefined
behaviour, ends the process with a report.
"""

from __future__ import annotations

import os
import sys

from tests.sanitize import environment

if __name__ == "__main__":
    command = [sys.executable, "-m", "pytest", "-p", "tests.sanitize.plugin", "--capture=sys", *sys.argv[1:]]
    os.execve(sys.executable, command, environment())
