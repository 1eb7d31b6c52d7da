"""Output (stdout and stderr) of runs: captured by each worker and collected by the worker pool.

Only the end of a long output is kept.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

KEPT_BYTES = 1 << 20
"""Maximum size in bytes of the kept end of a run's output."""
MAX_FILE_BYTES = 8 << 20
"""Size in bytes above which a worker's output file is emptied after it was read."""
STREAMS = (1, 2)
"""File descriptors of stdout and stderr, which C code and child processes also write to."""
CUT = b"... earlier output is left out ...\n"
"""First line of an output whose beginning was removed."""


def keep_end(content: bytes) -> bytes:
    """Return an output, or the line CUT and the last KEPT_BYTES bytes if the output is longer."""
    return content if len(content) <= KEPT_BYTES else CUT + content[-KEPT_BYTES:]


class Capture:
    """Captures the output of this process in a file, from `begin` to `end` of a run.

    A pipe would not work: C code that prints while it holds the interpreter lock would wait forever
    for a reader thread in the same process. Also, a file is still there after a crash.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, -1
        self._num_read = 0
        """Number of bytes of the file that `take` has read so far."""
        self._before: list[int] = []
        """File descriptors of the original stdout and stderr; empty unless output is captured."""

    def begin(self) -> None:
        """Redirect stdout and stderr to the file, unless this was already done."""
        if self._before:
            return
        _flush()
        self._file = os.open(self._path, os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_RDWR, 0o600)
        self._num_read = 0
        _count_file(self._path).unlink(missing_ok=True)
        self._before = [os.dup(stream) for stream in STREAMS]
        for stream in STREAMS:
            os.dup2(self._file, stream)

    def take(self) -> bytes:
        """Return the output since the last call, shortened by `keep_end`."""
        if not self._before:
            return b""
        _flush()
        size = os.fstat(self._file).st_size
        start = max(self._num_read, size - KEPT_BYTES - 1)
        taken, self._num_read = os.pread(self._file, size - start, start), size
        if size > MAX_FILE_BYTES:  # all of it was read; later output is appended to the empty file
            os.ftruncate(self._file, 0)
            self._num_read = 0
        _count_file(self._path).write_text(str(self._num_read))
        return keep_end(taken)

    def end(self) -> None:
        """Restore stdout and stderr."""
        if not self._before:
            return
        _flush()
        for stream, before in zip(STREAMS, self._before, strict=True):
            os.dup2(before, stream)
            os.close(before)
        self._before = []
        os.close(self._file)


def _flush() -> None:
    """Write buffered output of Python to the file descriptors."""
    for stream in (sys.stdout, sys.stderr):
        # The user's code may have closed a stream, or replaced it by an object without `flush`.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def output_path(scratch: str | Path, group: int, rank: int) -> Path:
    """Return the file for a worker's output.

    Args:
        scratch: The session's temporary folder on the worker's host.
        group: Number of the worker group.
        rank: Rank of the worker.
    """
    return Path(scratch) / f"printed-{group}-{rank}.txt"


def _count_file(path: Path) -> Path:
    """Return the file that contains how many bytes of the output file `path` were read so far."""
    return path.with_suffix(".taken")


def unsent_output(scratch: str | Path, group: int, num_workers: int) -> Iterator[tuple[int, bytes]]:
    """Yield rank and remaining output of the workers of a dead group that ran on this host.

    Args:
        scratch: The session's temporary folder on this host.
        group: Number of the worker group.
        num_workers: Number of workers of the group.

    Yields:
        The rank, and the output that the worker had not sent to the pool when it died.
    """
    for rank in range(num_workers):
        path = output_path(scratch, group, rank)
        with contextlib.suppress(OSError), path.open("rb") as file:
            if (count_file := _count_file(path)).is_file():
                start = int(count_file.read_text() or 0)
                file.seek(max(start, path.stat().st_size - KEPT_BYTES - 1))
            yield rank, keep_end(file.read())


def prefix_rank(content: bytes, rank: int, num_workers: int) -> bytes:
    """Return a worker's output; with several workers, each line begins with the rank."""
    if num_workers == 1 or not content:
        return content
    lines = content.decode(errors="replace").splitlines()
    return "".join(f"[rank {rank}] {line}\n" for line in lines).encode()
