"""Memory of the process that measures."""

from __future__ import annotations

import os
import sys


def rss_mb() -> float:
    """Return the memory of this process in MB, from ``/proc`` if available, else its peak."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        import resource

        scale = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, KiB elsewhere
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e6
