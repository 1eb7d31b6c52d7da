"""Files of a session (the Ray connection of a command): its temporary folders and run states.

A session has a temporary folder on each host. It is removed at the end of the session or, if the
session was killed, by the next session on the same host.

Run states (checkpoints and final weights) are files on the worker pool's host. A worker that can
access the pool's file, on the same host or on a shared disk, writes the state directly; other
workers send the state to the pool in parts. Reading works in the same way.
"""

import contextlib
import fcntl
import os
import shutil
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
    """Context manager: create the driver's temporary folder, and remove it on exit.

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
"""Open lock files of the temporary folders that this process has created, by folder."""


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


FOLDER = ".states"
"""Name of the folder for the run states."""
PART_BYTES = 2**24
"""Maximum size in bytes of a part of a run state that is sent in parts."""
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


def send(pool: Any, group: int, state: BinaryIO) -> int:
    """Send a run state from a worker to the pool and return the size of the state in bytes.

    A worker group must not send two states at the same time.

    Args:
        pool: Handle of the `WorkerPool`.
        group: Number of the worker group.
        state: File object with the state.
    """
    file: Path = ask_pool(lambda: pool.incoming_file.remote(group))
    with contextlib.suppress(OSError):  # then send in parts: the pool reports disk errors
        if file.parent.is_dir():
            with file.open("wb") as incoming:
                shutil.copyfileobj(state, incoming, PART_BYTES)
            return state.tell()
    state.seek(0)
    num_bytes = 0
    while part := state.read(PART_BYTES):
        ask_pool(lambda: pool.take_part.remote(group, num_bytes, part))  # noqa: B023 (called here)
        num_bytes += len(part)
    return num_bytes


def fetch(pool: Any, file: Path) -> bytes:
    """Return the content of a run state that the pool keeps in `file`.

    Reads the file directly if this host can access it, otherwise asks the pool for its parts.

    Raises:
        FileNotFoundError: The pool no longer has the state.
    """
    if file.is_file():
        return file.read_bytes()
    content = bytearray()
    while part := ask_pool(lambda: pool.give_part.remote(file, len(content))):  # noqa: B023
        content += part
    if part is None:
        raise FileNotFoundError(file)
    return bytes(content)


def place(file: Path, target: Path) -> None:
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
            self._folder = scratch_on_this_host(self._scratch) / FOLDER
            self._folder.mkdir(exist_ok=True)
        return self._folder

    def use_study_folder(self, folder: Path) -> None:
        """Keep later states in a study's folder, if it exists on this host, because the disk of the
        temporary folder may be small."""
        states = folder / FOLDER / Path(self._scratch).name
        with contextlib.suppress(OSError):
            if folder.is_dir():
                states.mkdir(parents=True, exist_ok=True)
                self._folder = states

    def write(self, group: int, offset: int, part: bytes) -> None:
        """Write a part of the state that a worker group is sending; if that fails, set `fault`.

        Args:
            group: Number of the worker group.
            offset: Position of the part in the state, in bytes.
            part: Content of the part.
        """
        try:
            number = os.open(self.incoming(group), os.O_WRONLY | os.O_CREAT)
            with os.fdopen(number, "wb") as file:
                file.seek(offset)
                file.write(part)
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
        place(file, target)
        return target

    def read(self, file: Path, offset: int) -> bytes | None:
        """Return the PART_BYTES bytes of a state from `offset` on: fewer or none at the end of the
        state, None if the file was deleted."""
        try:
            with file.open("rb") as state:
                state.seek(offset)
                return state.read(PART_BYTES)
        except FileNotFoundError:
            return None

    def drop(self, group: int) -> None:
        """Remove the incomplete state of a worker group that has ended."""
        if self._folder is not None:
            self.incoming(group).unlink(missing_ok=True)

    def incoming(self, group: int) -> Path:
        """Return the file for the state that a worker group is sending."""
        return self.folder / f".group-{group}.partial"
