"""Entries of the store: where they are, a lock of each, room on its disk."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pooch
from rich.filesize import decimal

from raybench.spec.errors import UserError

VARIABLE = "RAYBENCH_CACHE"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
LEFT_FREE = 64 * 2**20  # bytes of the disk that are left to others


def store_folder() -> Path:
    """Return the folder of all stored datasets: `$RAYBENCH_CACHE`, else in the user's cache."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    return Path(pooch.os_cache("raybench")) / "datasets"


def make_store_folder() -> Path:
    """Return the folder, made where it was not there; UserError where it cannot be written to."""
    folder, why = store_folder(), "it cannot be written to"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"{folder}, where decoded datasets are kept, cannot be used ({why}); set {VARIABLE} "
            "to a folder that can be written to."
        )
    return folder


def require_room(num_bytes: int, what: str) -> None:
    """Raise UserError if the store's disk has no room for `num_bytes`, before they are written."""
    make_store_folder()
    free = free_bytes()
    if num_bytes + LEFT_FREE > free:
        raise no_room(what, num_bytes)


def free_bytes() -> int:
    """Return what the store's disk has left."""
    return shutil.disk_usage(store_folder()).free


def no_room(what: str, num_bytes: int | None = None) -> UserError:
    """Return the error that says how much is needed, how much there is, and what to do."""
    folder = store_folder()
    needed = "more room" if num_bytes is None else size_in_words(num_bytes)
    free = size_in_words(free_bytes())
    return UserError(
        f"{what} needs {needed} in {folder}, and its disk has {free} left; remove stored datasets "
        f"(`raybench data` lists them), or set {VARIABLE} to a folder on another disk."
    )


size_in_words = decimal
"""(bytes) -> their number with the unit it is read best in: 1.5 GB."""


def tell(sentence: str) -> None:
    """Say something of the store, beside a command's own output."""
    print(f"raybench: {sentence}", file=sys.stderr, flush=True)


NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Error codes of a file system that knows no locks."""
SUFFIX = ".lock"


class EntryLock:
    """Holds one entry of the store, alone (to build, to remove) or together with others (to use).

    The system gives it back when its process ends, however it ends. Each has an open file of its
    own, so threads of one process are kept apart as processes are.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: of the entry; the lock's file lies beside it."""
        self._path = folder.with_name(folder.name + SUFFIX)
        self._descriptor: int | None = None

    @classmethod
    @contextlib.contextmanager
    def alone(cls, folder: Path) -> Iterator[Self]:
        """Hold it alone, if need be after waiting."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = cls(folder)
        while not lock._try(fcntl.LOCK_EX, wait=True):
            pass
        try:
            yield lock
        finally:
            lock.release()

    def use(self, on_wait: Callable[[], None] = lambda: None) -> None:
        """Hold it together with others; `on_wait` is called if another has it alone."""
        if self._try(fcntl.LOCK_SH):
            return
        on_wait()
        while not self._try(fcntl.LOCK_SH, wait=True):
            pass

    def try_alone(self) -> bool:
        """Hold it alone if no other process (or thread) has it; return whether it does."""
        return self._try(fcntl.LOCK_EX)

    def release(self) -> None:
        """Give it back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def remove(self) -> None:
        """Remove the file, with the entry gone; whoever waits for it opens another. Holds it."""
        assert self._descriptor is not None
        self._path.unlink(missing_ok=True)
        self.release()

    def _try(self, kind: int, *, wait: bool = False) -> bool:
        """Take the lock, if need be waiting; False if another has it, or has removed its file."""
        self.release()
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        is_held = False
        try:
            fcntl.flock(self._descriptor, kind if wait else kind | fcntl.LOCK_NB)
            is_held = os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise UserError(
                f"{self._path.parent} lies on a file system without locks; set {VARIABLE} to a "
                "folder on a disk of this machine."
            ) from error
        finally:  # also at Ctrl-C while it waits
            if not is_held:
                self.release()
        return is_held


ABOUT = "about.json"
PART = ".part-"


@contextlib.contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Yield a folder to write to, which becomes `folder` if all goes well, or is gone."""
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}{PART}", dir=folder.parent))
    try:
        yield part
        part.chmod(0o755)  # mkdtemp's own keeps a machine's other users out
        shutil.rmtree(folder, ignore_errors=True)  # without ABOUT: removed by hand, in part
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)  # gone by now, unless something went wrong


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A dataset of the store, as it lies there."""

    folder: Path
    about: dict[str, Any]
    """Keys: layout, source, path, options, bytes, samples, created, description."""
    last_used: float
    """Seconds since 1970."""

    @property
    def key(self) -> str:
        """Its name in the store."""
        return self.folder.name


def list_entries(store: Path) -> list[Entry]:
    """Return all that is whole, the last used first."""
    found = []
    for file in store.glob(f"*/{ABOUT}"):
        if PART in file.parent.name:
            continue
        with contextlib.suppress(FileNotFoundError):  # another process removes it
            about = json.loads(file.read_text())
            found.append(Entry(folder=file.parent, about=about, last_used=file.stat().st_mtime))
    return sorted(found, key=lambda entry: entry.last_used, reverse=True)


def remove_entry(folder: Path) -> bool:
    """Remove an entry that nobody uses; return whether it is gone."""
    lock = EntryLock(folder)
    if not lock.try_alone():
        return False
    with contextlib.suppress(FileNotFoundError):  # two were asked to remove it
        shutil.rmtree(folder)
    lock.remove()
    return True


def remove_unfinished(store: Path, *, locked: Path | None = None) -> int:
    """Remove what killed builders have left, and return its bytes.

    Only of entries whose lock is free, or held here (`locked`).
    """
    freed = 0
    for part in store.glob(f"*{PART}*"):
        folder = store / part.name.partition(PART)[0]
        with contextlib.ExitStack() as held:
            if folder != locked:
                lock = EntryLock(folder)
                if not lock.try_alone():
                    continue
                held.callback(lock.release)
            freed += sum(file.stat().st_size for file in part.rglob("*") if file.is_file())
            shutil.rmtree(part)
    return freed
