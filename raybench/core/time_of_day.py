"""The machine's time of day, which files and finished runs carry; durations are of others."""

from datetime import UTC, datetime


def unix_seconds() -> float:
    """Return the seconds since 1970, as files' times have them; the machine may set it anew."""
    return datetime.now(UTC).timestamp()
