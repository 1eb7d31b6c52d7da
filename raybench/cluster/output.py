"""Output of runs: captured in each worker and collected by the worker pool, which keeps its end."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

KEPT_BYTES = 1 << 20
"""Bytes kept of a run's output: its end."""
MAX_FILE_BYTES = 8 << 20
"""Size above which a worker's file is emptied once it is read."""
STREAMS = (1, 2)
"""File descriptors of stdout and stderr, which C code and child processes also write to."""
CUT = b"... earlier output is left out ...\n"


def keep_end(content: bytes) -> bytes:
    """Return at most the last KEPT_BYTES bytes of an output, after a line that says so."""
    return content if len(content) <= KEPT_BYTES else CUT + content[-KEPT_BYTES:]


class Capture:
    """Captures the output of this process in a file, from `begin` to `end` of a run.

    This uses a file, not a pipe: C code that prints while it holds the interpreter lock would wait
    forever for a reader thread in the same process. Also, the file is still there after a crash.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, -1
        self._num_read = 0
        """Bytes of the file that were read so far."""
        self._before: list[int] = []

    def begin(self) -> None:
        """Redirect stdout and stderr to the file, unless this was already done."""
        if self._before:
            return
        _flush()
        self._file = os.open(self._path, os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_RDWR, 0o600)
        self._num_read = 0
        _taken(self._path).unlink(missing_ok=True)
        self._before = [os.dup(stream) for stream in STREAMS]
        for stream in STREAMS:
            os.dup2(self._file, stream)

    def take(self) -> bytes:
        """Return the end of the output since the last call."""
        if not self._before:
            return b""
        _flush()
        size = os.fstat(self._file).st_size
        start = max(self._num_read, size - KEPT_BYTES - 1)
        taken, self._num_read = os.pread(self._file, size - start, start), size
        if size > MAX_FILE_BYTES:  # all of it is read; the file is opened to append
            os.ftruncate(self._file, 0)
            self._num_read = 0
        _taken(self._path).write_text(str(self._num_read))
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
    for stream in (sys.stdout, sys.stderr):
        # The user's code may have closed a stream, or replaced it by an object without `flush`.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def output_path(scratch: str | Path, group: int, rank: int) -> Path:
    """Return the file for a worker's output, in the session's temporary folder on its host."""
    return Path(scratch) / f"printed-{group}-{rank}.txt"


def _taken(path: Path) -> Path:
    """Return the file that contains the number of bytes read from the output file so far."""
    return path.with_suffix(".taken")


def unsent_output(scratch: str | Path, group: int, num_workers: int) -> Iterator[tuple[int, bytes]]:
    """Yield (rank, output that was not sent) of each worker of a dead group on this host."""
    for rank in range(num_workers):
        path = output_path(scratch, group, rank)
        with contextlib.suppress(OSError), path.open("rb") as file:
            if (taken := _taken(path)).is_file():
                start = int(taken.read_text() or 0)
                file.seek(max(start, path.stat().st_size - KEPT_BYTES - 1))
            yield rank, keep_end(file.read())


def prefix_rank(content: bytes, rank: int, num_workers: int) -> bytes:
    """Return a worker's output, with the rank before each line if there are several workers."""
    if num_workers == 1 or not content:
        return content
    lines = content.decode(errors="replace").splitlines()
    return "".join(f"[rank {rank}] {line}\n" for line in lines).encode()
