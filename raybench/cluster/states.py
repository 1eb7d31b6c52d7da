"""Saved states of runs (checkpoints and final weights), as files on the worker pool's host.

A worker writes a state to the pool's file if it sees that file, on the same host or a shared disk,
and sends it in parts if not; reading works alike. No process but the worker that trains holds a
whole state in memory.
"""

import contextlib
import io
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import ray

FOLDER = ".states"
"""Name of the folder that holds the states."""
PART_BYTES = 2**24
ANSWER_TIMEOUT_S = 30.0
"""Seconds after which a call of the pool is repeated; the pool itself answers sooner
(`worker_group.POLL_S`)."""
ASK_AGAIN_S = 1.0


def ask_pool(call: Callable[[], Any]) -> Any:
    """Return the answer to a call of the pool, however long it takes.

    The call is repeated: Ray does not resend an answer that was lost with a network connection.
    """
    while True:
        try:
            return ray.get(call(), timeout=ANSWER_TIMEOUT_S)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
            time.sleep(ASK_AGAIN_S)


def send(pool: Any, sender: str, state: BinaryIO) -> int:
    """Send a run state to the pool; return its size in bytes. Each sender sends one state at a
    time."""
    file: Path = ask_pool(lambda: pool.coming_file.remote(sender))
    with contextlib.suppress(OSError):  # the pool reports what is wrong with the disk
        if file.parent.is_dir():
            with file.open("wb") as there:
                shutil.copyfileobj(state, there, PART_BYTES)
            return state.tell()
    state.seek(0)
    num_bytes = 0
    while part := state.read(PART_BYTES):
        ask_pool(lambda: pool.take_part.remote(sender, num_bytes, part))  # noqa: B023 (called here)
        num_bytes += len(part)
    return num_bytes


def parts(pool: Any, file: Path) -> Iterator[bytes]:
    """Yield the parts of a state that the pool holds, from the file itself if this host has it.

    Raises:
        FileNotFoundError: the pool no longer holds the state.
    """
    if file.is_file():
        with file.open("rb") as here:
            yield from iter(lambda: here.read(PART_BYTES), b"")
        return
    for number in itertools.count():
        part = ask_pool(lambda: pool.give_part.remote(file, number * PART_BYTES))  # noqa: B023
        if part is None:
            raise FileNotFoundError(file)
        if not part:
            return
        yield part


def fetch(pool: Any, file: Path) -> bytes:
    """Return a whole state that the pool holds."""
    buffer = io.BytesIO()
    for part in parts(pool, file):
        buffer.write(part)
    return buffer.getvalue()


def place(pool: Any, file: Path, target: Path) -> None:
    """Write a state that the pool holds to `target`, as a hard link if possible."""
    with contextlib.suppress(OSError):
        os.link(file, target)
        return
    with target.open("wb") as there:
        for part in parts(pool, file):
            there.write(part)


class StateFiles:
    """The states that the pool holds, one file each."""

    def __init__(self, scratch: Callable[[], Path]) -> None:
        """Hold no state yet; `scratch` returns the session's temporary folder on this host."""
        self._scratch = scratch
        self._own: Path | None = None
        self.fault: OSError | None = None
        """Error that ended all writing, such as a full disk."""

    @property
    def folder(self) -> Path:
        """Folder of the run states: inside the study's folder if that exists, otherwise in the
        temporary folder."""
        if self._own is None or not self._own.is_dir():  # a study has ended, or was removed
            self._own = self._scratch() / FOLDER
            self._own.mkdir(exist_ok=True)
        return self._own

    def hold_in(self, folder: Path) -> None:
        """Hold states in a study's folder, if this host has it; a temporary folder may be small."""
        own = folder / FOLDER / self._scratch().name
        with contextlib.suppress(OSError):
            if folder.is_dir():
                own.mkdir(parents=True, exist_ok=True)
                self._own = own

    def write(self, sender: str, offset: int, part: bytes) -> None:
        """Write a part of a state that is on its way; sets `fault` if that fails."""
        try:
            number = os.open(self.coming(sender), os.O_WRONLY | os.O_CREAT)
            with os.fdopen(number, "wb") as file:
                file.seek(offset)
                file.write(part)
        except OSError as error:
            self.fault = self.fault or error

    def keep(self, sender: str, name: str, num_bytes: int) -> Path:
        """Give a complete state its name and return its file; OSError if it was not written."""
        coming, file = self.coming(sender), self.folder / name
        if not num_bytes:
            self.write(sender, 0, b"")
        try:
            if self.fault is not None:
                raise self.fault
            os.truncate(coming, num_bytes)
            coming.replace(file)
        except OSError as error:
            self.fault = error
            raise
        return file

    def adopt(self, file: Path, name: str) -> Path:
        """Hold a file of another folder; OSError if there is no such file, or no room."""
        own = self.folder / name
        own.unlink(missing_ok=True)
        try:
            os.link(file, own)
        except OSError:
            shutil.copyfile(file, own)
        return own

    def read(self, file: Path, offset: int) -> bytes | None:
        """Return a part of a state, empty at its end; None if it is held no longer."""
        try:
            with file.open("rb") as there:
                there.seek(offset)
                return there.read(PART_BYTES)
        except FileNotFoundError:
            return None

    def drop(self, sender: str) -> None:
        """Remove the unfinished state of a sender that has ended."""
        if self._own is not None:
            self.coming(sender).unlink(missing_ok=True)

    def coming(self, sender: str) -> Path:
        """Return the file of the state that a sender is sending."""
        return self.folder / f".{sender}.partial"
