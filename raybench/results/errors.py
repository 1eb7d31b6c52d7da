"""Tracebacks of failed runs: kept in a file each, named in the run's message."""

from raybench.results.store import Store


def keep_error(store: Store, trial: str, message: str, traceback: str) -> str:
    """Write a traceback, where there is one; return the message with the file's name."""
    if not traceback:
        return message
    path = store.write_error(trial, traceback)
    return f"{message} (traceback: {path.relative_to(store.folder)})"
