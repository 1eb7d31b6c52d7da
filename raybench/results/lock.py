"""Lock of a results folder, so that only one command at a time writes to it."""

import json
import os
import platform
import warnings
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import psutil
from filelock import FileLock, Timeout

from raybench.results.store import command
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.text import clean

LOCK_FILE = "study.lock"
OWNER_FILE = f"{LOCK_FILE}.owner"
PATIENCE_S = 0.2
"""Seconds to wait for the lock: enough for taking over the lock file of a killed process, and for a
new owner to write OWNER_FILE."""


class StudyLock:
    """Locks a results folder while its context is open; a file next to the lock names the owner.

    The operating system releases the lock when the process ends, even if it is killed. On a file
    system that does not support locks, the existence of LOCK_FILE is the lock (`filelock`). That
    file is taken over if its process ran on this host and has ended; if another host left it, the
    user has to delete it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = FileLock(folder / LOCK_FILE, timeout=PATIENCE_S)
        self._owner = ""

    def __enter__(self) -> Self:
        """Acquire the lock; UserError names the process that holds it."""
        try:
            with warnings.catch_warnings(action="ignore"):  # that the file system knows no locks
                self._lock.acquire()
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

    def _held(self) -> UserError:
        owner = owner_of(self.folder)
        advice = "wait for it, end it, or name another folder with --out"
        if owner.get("host") != platform.node():
            advice += f"; if it is gone, delete {self.folder / LOCK_FILE}"
        return UserError(
            clean(f"{self.folder}: is in use by {_in_words(owner)}; {advice}."),
            ErrorCode.STUDY_IN_USE,
        )


def owner_of(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's OWNER_FILE; {} if there is none, or if it is invalid."""
    try:
        found = json.loads((folder / OWNER_FILE).read_bytes())
        return found if isinstance(found["pid"], int) else {}
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return {}


def owner_in(folder: Path) -> str | None:
    """Return a description of the other process that owns a folder; None if there is none, or if
    it ran on this host and has died (a killed process leaves OWNER_FILE behind)."""
    owner = owner_of(folder)
    is_here, pid = owner.get("host") == platform.node(), owner.get("pid", 0)
    is_own_or_dead = is_here and (pid == os.getpid() or not psutil.pid_exists(pid))
    return None if not owner or is_own_or_dead else clean(_in_words(owner))


def _owner() -> str:
    content = {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
    }
    return json.dumps(content)


def _in_words(owner: Mapping[str, Any]) -> str:
    who = f"process {owner.get('pid', '?')}"
    if owner:
        who += f" on {owner.get('host')} since {owner.get('since')} ({owner.get('command')})"
    return who
