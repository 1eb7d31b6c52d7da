"""The machine's time of day: what files and finished runs carry. Durations are of `perf_counter`."""

from datetime import UTC, datetime


def unix_seconds() -> float:
    """Return the seconds since 1970, as files' times have them; the machine may set it anew."""
    return datetime.now(UTC).timestamp()
