"""Who builds a stored dataset, and who uses it: one lock file each, shared or held alone."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from raybench.core.errors import UserError
from raybench.data.store.place import VARIABLE

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
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
            is_held = _is_at(descriptor, self._path)
        except BlockingIOError:
            is_held = False
        except OSError as error:
            os.close(descriptor)
            if error.errno not in NO_LOCKS:
                raise
            raise UserError(
                f"{self._path.parent} lies on a file system without locks; set {VARIABLE} to a "
                "folder on a disk of this machine."
            ) from error
        except BaseException:  # Ctrl-C while it waits
            os.close(descriptor)
            raise
        if is_held:
            self._descriptor = descriptor
        else:
            os.close(descriptor)
        return is_held


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
