"""Output of runs: captured in each worker, collected by the worker pool, and limited in size."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

KEPT_BYTES = 1 << 19
"""Bytes kept at the beginning of a run's output, and as many at the end."""
FILE_BYTES = 8 << 20
"""Size in bytes above which a worker's output file is emptied."""
LOOK_S = 1.0
STREAMS = (1, 2)
"""File descriptors of stdout and stderr, which C code and child processes also write to."""


class HeadAndTail:
    """A byte buffer that keeps only the first and the last KEPT_BYTES bytes."""

    def __init__(self) -> None:
        self._head, self._tail, self._num_dropped = b"", b"", 0

    def add(self, content: bytes) -> None:
        """Append bytes."""
        room = 0 if self._tail else KEPT_BYTES - len(self._head)
        self._head += content[:room]
        tail = self._tail + content[room:]
        self._num_dropped += max(0, len(tail) - KEPT_BYTES)
        self._tail = tail[-KEPT_BYTES:]

    def skip(self, num_bytes: int) -> None:
        """Count bytes as dropped without adding them; usually more than KEPT_BYTES bytes follow."""
        self._num_dropped += num_bytes

    def content(self) -> bytes:
        """Return the kept bytes; a line in the middle replaces the dropped bytes."""
        missing = f"\n... {self._num_dropped:,} bytes are left out here ...\n".encode()
        return self._head + (missing if self._num_dropped else b"") + self._tail


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
        self._kept = HeadAndTail()
        self._reading = threading.Lock()
        self._is_over = threading.Event()

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
        self._is_over = threading.Event()
        threading.Thread(target=self._shorten, args=[self._is_over], daemon=True).start()

    def take(self) -> bytes:
        """Return the output since the last call; of long output, only the beginning and end."""
        if not self._before:
            return b""
        _flush()
        with self._reading:
            self._read()
            kept, self._kept = self._kept, HeadAndTail()
        return kept.content()

    def end(self) -> None:
        """Restore stdout and stderr."""
        if not self._before:
            return
        _flush()
        self._is_over.set()
        for stream, before in zip(STREAMS, self._before, strict=True):
            os.dup2(before, stream)
            os.close(before)
        self._before = []
        with self._reading:
            os.close(self._file)
            self._file = -1

    def _read(self) -> None:
        """Read the new part of the file; if it is long, only its beginning and end."""
        size = os.fstat(self._file).st_size
        first = min(size, self._num_read + KEPT_BYTES)
        self._kept.add(os.pread(self._file, first - self._num_read, self._num_read))
        start = max(first, size - 2 * KEPT_BYTES)
        self._kept.skip(start - first)
        self._kept.add(os.pread(self._file, size - start, start))
        self._num_read = size
        if size > FILE_BYTES:  # output written in the meantime is lost, but counted as dropped
            self._kept.skip(os.fstat(self._file).st_size - size)
            os.ftruncate(self._file, 0)
            self._num_read = 0
        _taken(self._path).write_text(str(self._num_read))

    def _shorten(self, is_over: threading.Event) -> None:
        while not is_over.wait(LOOK_S):
            with self._reading:
                if self._file >= 0 and os.fstat(self._file).st_size > FILE_BYTES:
                    self._read()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # The user's code may have closed a stream, or replaced it by an object without `flush`.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def path_of(scratch: str | Path, group: int, rank: int) -> Path:
    """Return the file for a worker's output, in the session's temporary folder on its host."""
    return Path(scratch) / f"printed-{group}-{rank}.txt"


def _taken(path: Path) -> Path:
    """Return the file that contains the number of bytes read from the output file so far."""
    return path.with_suffix(".taken")


def left_behind(scratch: str | Path, group: int, num_workers: int) -> Iterator[tuple[int, bytes]]:
    """Yield (rank, output that was not sent) of each worker of a dead group on this host."""
    for rank in range(num_workers):
        path = path_of(scratch, group, rank)
        with contextlib.suppress(OSError), path.open("rb") as file:
            if (taken := _taken(path)).is_file():
                file.seek(int(taken.read_text() or 0))
            yield rank, file.read(FILE_BYTES)


def of_rank(content: bytes, rank: int, num_workers: int) -> bytes:
    """Return a worker's output, with the rank before each line if there are several workers."""
    if num_workers == 1 or not content:
        return content
    lines = content.decode(errors="replace").splitlines()
    return "".join(f"[rank {rank}] {line}\n" for line in lines).encode()
