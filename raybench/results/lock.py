"""Lock of a results folder, so that only one command at a time writes to it."""

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
"""File whose existence is the lock, on file systems that do not support locks."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTSUP)
"""Error codes of a file system that does not support locks."""
PATIENCE_S = 0.2
"""Seconds to wait for the lock: enough for taking over the lock file of a killed process, and for a
new owner to write OWNER_FILE."""


class StudyLock:
    """Locks a results folder while its context is open; a file next to the lock names the owner.

    The operating system releases the lock when the process ends, even if it is killed. On a file
    system that does not support locks, the existence of SOFT_LOCK_FILE is the lock. That file is
    taken over if its process ran on this host and has ended; if another host left it, the user has
    to delete it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: BaseFileLock = FileLock(folder / LOCK_FILE, fallback_to_soft=False)
        self._owner = ""

    def __enter__(self) -> Self:
        """Acquire the lock; UserError names the process that holds it."""
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
        """Release the lock, even if the folder was deleted or another process created it again."""
        with suppress(OSError):
            if (self.folder / OWNER_FILE).read_text() == self._owner:
                (self.folder / OWNER_FILE).unlink()
                (self.folder / LOCK_FILE).unlink()  # processes that wait for it open a new one
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
"""State of the process that owns a folder. `died`: it ended without releasing the folder;
`unknown`: it is on another host."""


def owner_of(folder: Path) -> dict[str, Any] | None:
    """Return the content of a folder's OWNER_FILE; None if there is no such file, {} if its content
    is invalid."""
    try:
        found = json.loads((folder / OWNER_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def driver_of(owner: Mapping[str, Any]) -> Driver:
    """Return the state of an owner's process; a killed process leaves OWNER_FILE behind."""
    if owner.get("host") != platform.node() or not isinstance(owner.get("pid"), int):
        return "unknown"
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return "died"
    except (PermissionError, OverflowError):  # process of another user; number out of range
        return "unknown"
    return "lives"


def owner_in(folder: Path) -> str | None:
    """Return a description of a folder's owner; None without an owner, or if its process has
    died."""
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
