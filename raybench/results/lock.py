"""One command at a time in a results folder."""

import errno
import json
import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from raybench.core.errors import UserError
from raybench.core.text import clean
from raybench.results.provenance import command

LOCK_FILE = "study.lock"
OWNER_FILE = f"{LOCK_FILE}.owner"
SOFT_LOCK_FILE = f"{LOCK_FILE}.soft"
"""The lock where the file system knows none: its existence."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTSUP)
"""What a file system says that knows no locks."""
PATIENCE_S = 0.2
"""A killed process's file is taken over within it, and a new owner has said who it is."""


class StudyLock:
    """Holds a results folder, from `with` to its end; who does stands in a file beside the lock.

    The system gives the lock back when its process ends, however it ends, so what a killed one
    left is taken over at once. Where the file system knows no locks, a file is the lock: it is
    taken over when its process is gone from this host.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: BaseFileLock = FileLock(folder / LOCK_FILE, fallback_to_soft=False)
        self._owner = ""

    def __enter__(self) -> Self:
        """Take the lock; a UserError names who holds it."""
        try:
            self._acquire()
            self._owner = _owner()
            (self.folder / OWNER_FILE).write_text(self._owner)
        except Timeout:
            raise self._held() from None
        except OSError as error:
            self._lock.release()
            raise UserError(
                f"--out {self.folder}: cannot be written ({error.strerror}); name another folder."
            ) from None
        return self

    def __exit__(self, *error: object) -> None:
        """Give the lock back; a deleted folder is no trouble, nor one that another made anew."""
        with suppress(OSError):
            if (self.folder / OWNER_FILE).read_text() == self._owner:
                (self.folder / OWNER_FILE).unlink()
                (self.folder / LOCK_FILE).unlink()  # whoever waits for this one opens another
        self._lock.release()

    def _acquire(self) -> None:
        try:
            self._lock.acquire(timeout=PATIENCE_S)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            self._lock = SoftFileLock(self.folder / SOFT_LOCK_FILE)
            self._lock.acquire(timeout=PATIENCE_S)

    def _held(self) -> UserError:
        owner = _read(self.folder / OWNER_FILE)
        who = f"process {owner.get('pid', '?')}"
        if owner:
            who += f" on {owner.get('host')} since {owner.get('since')} ({owner.get('command')})"
        advice = "wait for it, end it, or name another folder with --out"
        if isinstance(self._lock, SoftFileLock):
            advice += f"; if it is gone, delete {self._lock.lock_file}"
        return UserError(clean(f"{self.folder}: is in use by {who}; {advice}."))


def _owner() -> str:
    content = {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
    }
    return json.dumps(content)


def _read(path: Path) -> dict[str, Any]:
    """Return what a file says of the lock's owner; nothing where it is torn."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
