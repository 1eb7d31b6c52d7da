"""One command at a time in a results folder."""

import errno
import fcntl
import json
import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from raybench.core.errors import UserError
from raybench.core.text import clean
from raybench.results.provenance import command

LOCK_FILE = "study.lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTSUP)
"""What a file system says that knows no locks."""
ATTEMPTS = 20
"""How often the file may change hands while it is looked at."""
MOST_BYTES = 100_000
TORN_S = 10.0
"""Age after which an owner's file that says nothing is one whose writer was killed."""


class StudyLock:
    """Holds a results folder, from `with` to its end; who holds it stands in its `study.lock`.

    The system gives the lock back when its process ends, however it ends, so what a killed one
    left is taken over at once. Where the file system knows no locks, a file is the lock: it is
    taken over when its process is gone from this host.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / LOCK_FILE
        self._handle: int | None = None
        self._own_file: bytes | None = None
        """What this process wrote where a file is the lock."""

    def __enter__(self) -> Self:
        """Take the lock; a UserError names who holds it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for _ in range(ATTEMPTS):
                if self._take():
                    return self
        except OSError as error:
            raise UserError(
                f"--out {self.folder}: cannot be written ({error.strerror}); name another folder."
            ) from None
        raise UserError(f"{self.path}: changes hands all the time; run the command again.")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the lock back; a deleted folder is no trouble."""
        with suppress(OSError):
            if self._own_file is not None and self._owner_file.read_bytes() == self._own_file:
                self._owner_file.unlink()
            if self._handle is not None and self._is_at_path(self._handle):
                self.path.unlink()
        if self._handle is not None:
            os.close(self._handle)
        self._handle = self._own_file = None

    @property
    def _owner_file(self) -> Path:
        return self.path.with_name(f"{LOCK_FILE}.owner")

    def _take(self) -> bool:
        """Try once; False if the file was given back or taken over meanwhile."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            found = os.pread(handle, MOST_BYTES, 0)
            os.close(handle)
            if error.errno in NO_LOCKS:
                return self._take_file()
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise self._held(_parse(found)) from None
            raise
        if not self._is_at_path(handle):  # its last holder has deleted it since it was opened
            os.close(handle)
            return False
        self._handle = handle
        os.ftruncate(handle, 0)
        os.pwrite(handle, _owner(), 0)
        return True

    def _take_file(self) -> bool:
        """Take the lock by making the owner's file, after removing one whose process is gone."""
        path, own = self._owner_file, path_of_this_process(self._owner_file)
        with suppress(FileNotFoundError):
            found = path.read_bytes()
            age_s = datetime.now(UTC).timestamp() - path.stat().st_mtime
            is_torn = not _parse(found) and age_s > TORN_S
            if not (is_torn or _is_gone(_parse(found))):
                raise self._held(_parse(found), delete=path)
            # Aside first: what is deleted must be what was looked at.
            path.rename(own)
            if own.read_bytes() != found:
                own.rename(path)
                return False
            own.unlink()
        content = _owner()
        own.write_bytes(content)
        try:
            os.link(own, path)  # whole from its first moment
        except FileExistsError:
            return False
        finally:
            own.unlink()
        self._own_file = content
        return True

    def _is_at_path(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self.path.stat())
        except FileNotFoundError:
            return False

    def _held(self, owner: dict[str, Any], *, delete: Path | None = None) -> UserError:
        who = f"process {owner.get('pid', '?')}"
        if owner:
            who += f" on {owner.get('host')} since {owner.get('since')} ({owner.get('command')})"
        advice = "wait for it, end it, or name another folder with --out"
        if delete is not None:
            advice += f"; if it is gone, delete {delete}"
        return UserError(clean(f"{self.folder}: is in use by {who}; {advice}."))


def path_of_this_process(path: Path) -> Path:
    """Return a path beside `path` that no other process uses."""
    return path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")


def _owner() -> bytes:
    content = {
        "pid": os.getpid(),
        "born": _born(os.getpid()),
        "host": platform.node(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
    }
    return json.dumps(content).encode()


def _parse(content: bytes) -> dict[str, Any]:
    """Return what a lock file says of its owner; nothing where it is torn."""
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_gone(owner: dict[str, Any]) -> bool:
    """Whether the owner was a process of this host and has ended; another host's is not known."""
    pid = owner.get("pid")
    if not isinstance(pid, int) or pid <= 0 or owner.get("host") != platform.node():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    # The number may be another process's by now.
    return owner.get("born") is not None and owner["born"] != _born(pid)


def _born(pid: int) -> str | None:
    """Return when a process began, in the system's own count; None where it does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
