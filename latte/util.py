"""What benchmarks ask of the machine."""

from __future__ import annotations

import re
from pathlib import Path

from latte.model.source_location import user_location
from swirl.errors import LatteError

_CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")
_CPUINFO = Path("/proc/cpuinfo")


def get_cpu_freq() -> float:
    """The processor's nominal frequency in Hz: what the kernel says, else what is in its name, else the present one.

    Raises:
        LatteError: the system does not tell.
    """
    for name in ("base_frequency", "cpuinfo_max_freq"):
        if (path := _CPUFREQ / name).exists():
            return float(path.read_text()) * 1e3
    text = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    for pattern, unit in ((r"model name.*@ *([\d.]+) *GHz", 1e9), (r"cpu MHz\s*: *([\d.]+)", 1e6)):
        if (found := re.search(pattern, text)) is not None:
            return float(found[1]) * unit
    raise LatteError("the frequency of this processor is not known", location=user_location())
