"""What the store holds: who builds and uses an entry (a lock each), entries listed and removed."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from raybench.data.store.place import VARIABLE
from raybench.data.store.source import Source
from raybench.spec.errors import UserError

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What a file system says that knows no locks."""
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


def entries_of(store: Path, source: Source) -> list[Entry]:
    """Return the entries made of the same path with the same options, of whatever content."""
    options = json.loads(json.dumps(source.shown_options))
    wanted = {"source": source.name, "path": str(source.path.absolute()), "options": options}
    return [one for one in list_entries(store) if {**one.about, **wanted} == one.about]


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
