"""Seconds in words."""

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def spent(seconds: float) -> str:
    """Return time that has passed, in whole seconds as long as they matter: `1 min 12 s`."""
    whole = max(int(seconds), 0)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < 10 * MINUTE:
        return f"{whole // 60} min {whole % 60} s"
    if whole < HOUR:
        return f"{whole // 60} min"
    if whole < 2 * DAY:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole / DAY:.1f} days"


def about(seconds: float) -> str:
    """Return time to come, no more precise than it is known: `95 s`, `12 min`, `3.2 h`."""
    seconds = max(seconds, 0.0)
    if seconds < 20:
        return f"{seconds:.0f} s"
    if seconds < 2 * MINUTE:
        return f"{5 * round(seconds / 5)} s"
    if seconds < 100 * MINUTE:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        return f"{seconds / HOUR:.1f} h"
    return f"{seconds / DAY:.1f} days"
