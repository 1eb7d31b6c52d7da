"""One command at a time in a results folder (`lease.py`: below a URL)."""

import errno
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from raybench.results.store import command
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.text import clean

LOCK_FILE = "study.lock"
OWNER_FILE = f"{LOCK_FILE}.owner"
SOFT_LOCK_FILE = f"{LOCK_FILE}.soft"
"""The lock where the file system knows none: its existence."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTSUP)
"""Error codes of a file system that knows no locks."""
PATIENCE_S = 0.2
"""A killed process's file is taken over within it, and a new owner has said who it is."""


class StudyLock:
    """Holds a results folder, from `with` to its end; who does stands in a file beside the lock.

    The system gives the lock back when its process ends, however it ends (a file server does when
    the host ends), so what a killed one left is taken over at once. Where the file system knows no
    locks, a file is the lock: it is taken over when its process is gone from this host; one that
    another host left is the user's to delete.
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
                f"--out {self.folder}: cannot be written ({error.strerror}); name another folder.",
                ErrorCode.NOT_WRITABLE,
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
        advice = "wait for it, end it, or name another folder with --out"
        if isinstance(self._lock, SoftFileLock):
            advice += f"; if it is gone, delete {self._lock.lock_file}"
        who = _in_words(owner_of(self.folder))
        return UserError(
            clean(f"{self.folder}: is in use by {who}; {advice}."), ErrorCode.STUDY_IN_USE
        )


Driver = Literal["lives", "died", "unknown"]
"""`died`: it is gone and did not give the place back; `unknown`: it is on a host whose processes
are not seen from here."""


def owner_of(folder: Path) -> dict[str, Any] | None:
    """Return what who writes the study in a folder says of itself; None where nobody does, nothing
    where it is torn."""
    try:
        found = json.loads((folder / OWNER_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def driver_of(owner: Mapping[str, Any]) -> Driver:
    """Say whether the process of an owner is there: a killed one leaves its name behind."""
    if owner.get("host") != platform.node() or not isinstance(owner.get("pid"), int):
        return "unknown"
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return "died"
    except (PermissionError, OverflowError):  # another user's; no number of a process
        return "unknown"
    return "lives"


def owner_in(folder: Path) -> str | None:
    """Return who works in a folder, in words; None where nobody does, as far as a reader knows."""
    owner = owner_of(folder)
    return clean(_in_words(owner)) if owner and driver_of(owner) != "died" else None


def _owner() -> str:
    content = {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
    }
    return json.dumps(content)


def _in_words(owner: Mapping[str, Any] | None) -> str:
    owner = owner or {}
    who = f"process {owner.get('pid', '?')}"
    if owner:
        who += f" on {owner.get('host')} since {owner.get('since')} ({owner.get('command')})"
    return who
