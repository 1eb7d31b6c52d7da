"""Files of a session (the Ray connection of a command): temporary folders, output and run states.

A session has a temporary folder on each host. It is removed at the end of the session or, if the
session was killed, by the next session on the same host.

The output (stdout and stderr) of a run is captured by each worker in a file of this folder and
collected by the worker pool. Only the end of a long output is kept.

Run states (checkpoints and final weights) are files on the worker pool's host. A worker that can
access the pool's file, on the same host or on a shared disk, writes the state directly; other
workers send the state to the pool in chunks. Reading works in the same way.
"""

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import ray

PREFIX = "raybench-"
"""Prefix of the names of temporary folders."""
DATA = "data"
"""Subfolder of the temporary folder with datasets, which all workers of a host memory-map."""
ALIVE = "alive"
"""File in a temporary folder that is locked while the folder is in use. The operating system
releases the lock when the process ends, even if the process is killed."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Context manager that creates the driver's temporary folder, and removes it on exit.

    Also removes the folders of killed sessions on this host.
    """
    remove_stale_folders()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with _lock(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_locks: dict[Path, TextIO] = {}
"""Open lock files of the temporary folders that this process has created, keyed by folder."""


def scratch_on_this_host(scratch: str) -> Path:
    """Return the session's temporary folder on this host.

    This is the driver's folder `scratch` if this host can access it, otherwise a folder of the same
    name that this process creates and locks.
    """
    drivers_folder = Path(scratch)
    if drivers_folder.is_dir():
        return drivers_folder
    folder = Path(tempfile.gettempdir()) / drivers_folder.name
    if folder not in _locks:
        remove_stale_folders()
        folder.mkdir(exist_ok=True)
        _locks[folder] = _lock(folder)
    return folder


def remove_stale_folders() -> None:
    """Remove the temporary folders on this host whose session has ended."""
    for alive in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{ALIVE}"):
        try:
            with alive.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(alive.parent, ignore_errors=True)
        except OSError:
            continue  # the folder is in use, or belongs to another user


def _lock(folder: Path) -> TextIO:
    """Mark a temporary folder as in use; return its lock file, which must stay open."""
    file = (folder / ALIVE).open("w")
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


KEPT_OUTPUT_BYTES = 1 << 20
"""Maximum size in bytes of the kept end of a run's output."""
MAX_OUTPUT_FILE_BYTES = 8 << 20
"""Size in bytes above which a worker's output file is emptied after it was read."""
OUTPUT_STREAMS = (1, 2)
"""File descriptors of stdout and stderr, which C code and child processes also write to."""
OUTPUT_CUT = b"... earlier output is left out ...\n"
"""First line of an output whose beginning was removed."""


def keep_end(content: bytes) -> bytes:
    """Return the output; if it exceeds KEPT_OUTPUT_BYTES, OUTPUT_CUT replaces its beginning."""
    if len(content) <= KEPT_OUTPUT_BYTES:
        return content
    return OUTPUT_CUT + content[-KEPT_OUTPUT_BYTES:]


class Capture:
    """Captures the output of this process in a file, between the calls of `begin` and `end`.

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
        _flush_streams()
        self._file = os.open(self._path, os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_RDWR, 0o600)
        self._num_read = 0
        _count_file(self._path).unlink(missing_ok=True)
        self._before = [os.dup(stream) for stream in OUTPUT_STREAMS]
        for stream in OUTPUT_STREAMS:
            os.dup2(self._file, stream)

    def take(self) -> bytes:
        """Return the output since the last call, shortened by `keep_end`."""
        if not self._before:
            return b""
        _flush_streams()
        size = os.fstat(self._file).st_size
        start = max(self._num_read, size - KEPT_OUTPUT_BYTES - 1)
        taken, self._num_read = os.pread(self._file, size - start, start), size
        if size > MAX_OUTPUT_FILE_BYTES:  # all of it was read; later output goes to the empty file
            os.ftruncate(self._file, 0)
            self._num_read = 0
        _count_file(self._path).write_text(str(self._num_read))
        return keep_end(taken)

    def end(self) -> None:
        """Restore stdout and stderr."""
        if not self._before:
            return
        _flush_streams()
        for stream, before in zip(OUTPUT_STREAMS, self._before, strict=True):
            os.dup2(before, stream)
            os.close(before)
        self._before = []
        os.close(self._file)


def _flush_streams() -> None:
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
    """Yield the remaining output of those workers of a dead group that ran on this host.

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
                file.seek(max(start, path.stat().st_size - KEPT_OUTPUT_BYTES - 1))
            yield rank, keep_end(file.read())


def prefix_rank(content: bytes, rank: int, num_workers: int) -> bytes:
    """Return a worker's output; with several workers, each line begins with the rank."""
    if num_workers == 1 or not content:
        return content
    lines = content.decode(errors="replace").splitlines()
    return "".join(f"[rank {rank}] {line}\n" for line in lines).encode()


STATES_FOLDER = ".states"
"""Name of the folder for the run states."""
CHUNK_BYTES = 2**24
"""Maximum size in bytes of a chunk of a run state."""
ANSWER_TIMEOUT_S = 30.0
"""Seconds after which a call to the pool is repeated; the pool normally answers sooner, within
`worker_group.POLL_S`."""
ASK_AGAIN_S = 1.0
"""Seconds to wait before a call to the pool is repeated."""


def ask_pool(call: Callable[[], Any]) -> Any:
    """Call a method of the pool and return its answer, however long it takes.

    The call is repeated after a timeout, because Ray does not resend an answer that was lost with a
    network connection.

    Args:
        call: Function that calls the method and returns Ray's reference to the answer.
    """
    while True:
        try:
            return ray.get(call(), timeout=ANSWER_TIMEOUT_S)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
            time.sleep(ASK_AGAIN_S)


def send_state(pool: Any, group: int, state: BinaryIO) -> int:
    """Send a run state from a worker to the pool and return the size of the state in bytes.

    A worker group must not send two states at the same time.

    Args:
        pool: Handle of the `WorkerPool`.
        group: Number of the worker group.
        state: File object with the state.
    """
    file: Path = ask_pool(lambda: pool.incoming_file.remote(group))
    with contextlib.suppress(OSError):  # then send in chunks: the pool reports disk errors
        if file.parent.is_dir():
            with file.open("wb") as incoming:
                shutil.copyfileobj(state, incoming, CHUNK_BYTES)
            return state.tell()
    state.seek(0)
    num_bytes = 0
    while chunk := state.read(CHUNK_BYTES):
        ask_pool(lambda: pool.write_chunk.remote(group, num_bytes, chunk))  # noqa: B023 (called here)
        num_bytes += len(chunk)
    return num_bytes


def fetch_state(pool: Any, file: Path) -> bytes:
    """Return the content of a run state that the pool keeps in `file`.

    Reads the file directly if this host can access it, otherwise asks the pool for its chunks.

    Raises:
        FileNotFoundError: The pool no longer has the state.
    """
    if file.is_file():
        return file.read_bytes()
    content = bytearray()
    while chunk := ask_pool(lambda: pool.read_chunk.remote(file, len(content))):  # noqa: B023
        content += chunk
    if chunk is None:
        raise FileNotFoundError(file)
    return bytes(content)


def link_or_copy(file: Path, target: Path) -> None:
    """Make a file also available at the path `target`, as a hard link or, if that fails, a copy."""
    target.unlink(missing_ok=True)
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


class StateFiles:
    """Run states that the pool keeps, each in its own file."""

    def __init__(self, scratch: str) -> None:
        """Create an object without states; `scratch` is the session's temporary folder on the
        driver's host."""
        self._scratch = scratch
        self._folder: Path | None = None
        self.fault: OSError | None = None
        """First error while writing a state, such as a full disk; no state is kept after it."""

    @property
    def folder(self) -> Path:
        """Folder of the run states, in the study's folder (see `use_study_folder`) or, without one,
        in the temporary folder."""
        # There is no study, or its folder was removed.
        if self._folder is None or not self._folder.is_dir():
            self._folder = scratch_on_this_host(self._scratch) / STATES_FOLDER
            self._folder.mkdir(exist_ok=True)
        return self._folder

    def use_study_folder(self, folder: Path) -> None:
        """Keep later states in a study's folder, if that folder exists on this host.

        The disk of the temporary folder may be too small for them.
        """
        states = folder / STATES_FOLDER / Path(self._scratch).name
        with contextlib.suppress(OSError):
            if folder.is_dir():
                states.mkdir(parents=True, exist_ok=True)
                self._folder = states

    def write(self, group: int, offset: int, chunk: bytes) -> None:
        """Write a chunk of the state that a worker group is sending; if that fails, set `fault`.

        Args:
            group: Number of the worker group.
            offset: Position of the chunk in the state, in bytes.
            chunk: Content of the chunk.
        """
        try:
            number = os.open(self.incoming(group), os.O_WRONLY | os.O_CREAT)
            with os.fdopen(number, "wb") as file:
                file.seek(offset)
                file.write(chunk)
        except OSError as error:
            self.fault = self.fault or error

    def keep(self, group: int, name: str, num_bytes: int) -> Path:
        """Keep a state that was received completely.

        Args:
            group: Number of the worker group that has sent the state.
            name: Name of the file in `folder`.
            num_bytes: Size of the state in bytes.

        Returns:
            The file of the state.

        Raises:
            OSError: This state or an earlier one could not be written.
        """
        incoming, file = self.incoming(group), self.folder / name
        if not num_bytes:
            self.write(group, 0, b"")
        try:
            if self.fault is not None:
                raise self.fault
            os.truncate(incoming, num_bytes)
            incoming.replace(file)
        except OSError as error:
            self.fault = error
            raise
        return file

    def adopt(self, file: Path, name: str) -> Path:
        """Add a file from another folder under the name `name`, as a hard link or a copy; return
        the new path. May raise OSError."""
        target = self.folder / name
        link_or_copy(file, target)
        return target

    def read(self, file: Path, offset: int) -> bytes | None:
        """Return a chunk of a state: up to CHUNK_BYTES bytes, beginning at `offset`.

        The result is empty at the end of the state, and None if the file was deleted.
        """
        try:
            with file.open("rb") as state:
                state.seek(offset)
                return state.read(CHUNK_BYTES)
        except FileNotFoundError:
            return None

    def drop(self, group: int) -> None:
        """Remove the incomplete state of a worker group that has ended."""
        if self._folder is not None:
            self.incoming(group).unlink(missing_ok=True)

    def incoming(self, group: int) -> Path:
        """Return the file for the state that a worker group is sending."""
        return self.folder / f".group-{group}.partial"
