"""What a record says about the machine and the software."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("tts-worker", "numpy", "onnxruntime", "torch")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide about speed, where they are installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def hardware() -> str:
    """Return CPU model, number of cores and memory.

    Clouds name several generations of processors alike, so the family and model numbers are added.
    """
    model = platform.machine()
    with contextlib.suppress(OSError, KeyError):
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        fields = dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in first.splitlines() if ":" in line)
        model = f"{fields['model name']} (family {fields['cpu family']}, model {fields['model']})"
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{os.cpu_count()} cores, {model}, {memory_gib:.0f} GiB"
