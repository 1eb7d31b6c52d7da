"""One command at a time in a results folder."""

import errno
import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from filelock import BaseFileLock, FileLock, SoftFileLease, Timeout

from raybench.core.errors import StudyError, UserError
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
BEAT_S = 5.0
"""A living owner touches its file again after this."""
STALE_S = 60.0
"""A file that was not touched for so long is of an owner that is gone, with its host."""
LOOK_S = 0.2


class StudyLock:
    """Holds a results folder, from `with` to its end; who does stands in a file beside the lock.

    The system gives the lock back when its process ends, however it ends (a file server does when
    the host ends), so what a killed one left is taken over at once. Where the file system knows no
    locks, a file is the lock: it is taken over when its process is gone from this host, or when
    another host's did not touch it for STALE_S. No host's clock is asked: whoever waits looks
    whether the file changes, and counts by himself. An owner that was only asleep stops (`check`).
    """

    def __init__(self, folder: Path, warn: Callable[[str], None] = lambda sentence: None) -> None:
        """`warn` gets a sentence if there is something to wait for."""
        self.folder, self._warn = folder, warn
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

    def check(self) -> None:
        """Raise StudyError if another process took the folder over, as it can a file's lock."""
        if not isinstance(self._lock, SoftFileLease):
            return
        owner = _read(self.folder / OWNER_FILE)
        if owner and json.dumps(owner) != self._owner:
            who = _in_words(owner)
        elif self._lock.compromise is not None:
            who = "another command"
        else:
            return
        raise StudyError(
            clean(
                f"{self.folder}: was taken over by {who} while this command could not reach it; "
                "it goes on there."
            )
        )

    def _acquire(self) -> None:
        try:
            self._lock.acquire(timeout=PATIENCE_S)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            self._lock = SoftFileLease(
                self.folder / SOFT_LOCK_FILE, lease_duration=STALE_S, heartbeat_interval=BEAT_S
            )
            self._acquire_soft(self._lock)

    def _acquire_soft(self, lock: SoftFileLease) -> None:
        """Wait for a sign of another host's owner; Timeout where there is one."""
        began, before = time.monotonic(), _touched(self.folder / SOFT_LOCK_FILE)
        has_said = False
        while True:
            try:
                lock.acquire(timeout=PATIENCE_S)
                return
            except Timeout:
                lives = _touched(self.folder / SOFT_LOCK_FILE) != before
                # One that no owner of today wrote is never touched.
                if lives or lock.owner is None or time.monotonic() - began > 2 * STALE_S:
                    raise
            if not has_said:
                who = _in_words(_read(self.folder / OWNER_FILE))
                self._warn(
                    f"{self.folder}: {who} did not give it back; waiting for a sign of it, "
                    f"{STALE_S:g} s at most."
                )
            has_said = True
            time.sleep(LOOK_S)

    def _held(self) -> UserError:
        advice = "wait for it, end it, or name another folder with --out"
        if isinstance(self._lock, SoftFileLease):
            advice += f"; if it is gone, delete {self._lock.lock_file}"
        who = _in_words(_read(self.folder / OWNER_FILE))
        return UserError(clean(f"{self.folder}: is in use by {who}; {advice}."))


def owner_in(folder: Path) -> str | None:
    """Return who works in a folder, in words; None where nobody does, as far as a reader knows.

    A killed process leaves its name behind: one of this host that is gone is nobody.
    """
    owner = _read(folder / OWNER_FILE)
    pid = owner.get("pid")
    if not owner or (owner.get("host") == platform.node() and not _lives(pid)):
        return None
    return clean(_in_words(owner))


def _lives(pid: object) -> bool:
    if not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True


def _owner() -> str:
    content = {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
    }
    return json.dumps(content)


def _in_words(owner: dict[str, Any]) -> str:
    who = f"process {owner.get('pid', '?')}"
    if owner:
        who += f" on {owner.get('host')} since {owner.get('since')} ({owner.get('command')})"
    return who


def _touched(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is touched or made anew; None where there is none."""
    try:
        with path.open("rb") as file:  # opened, for NFS asks its server then
            found = os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino


def _read(path: Path) -> dict[str, Any]:
    """Return what a file says of the lock's owner; nothing where it is torn."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
