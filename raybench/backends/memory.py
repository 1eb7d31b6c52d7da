"""The most memory that this process has had, from the operating system."""

import contextlib
import sys
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"
"""Written to RESET it sets the peak to what the process has now (proc(5), since Linux 4.0)."""


def forget_peak() -> None:
    """Let the peak begin anew, where the system can do it."""
    with contextlib.suppress(OSError):
        RESET.write_text(FORGET_PEAK)


def peak_bytes() -> int | None:
    """Return the most resident memory since `forget_peak`; None where it is not known."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return _peak_of_life()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return found[0] if found else None


def _peak_of_life() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
