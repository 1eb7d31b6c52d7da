"""One command at a time in a results folder (a lock), and below a URL (a lease).

A lease is an object that says who writes, written again every few seconds. A store has no lock, and
the hosts' clocks differ, so a lease is judged by no host's clock: how old it is, is the difference
of two times that the *store* gave (of the lease, and of an object written beside it just now); from
then on whoever waits counts by himself, and a beat in between shows that the owner lives. What
cannot be shut out without a store's conditional writes: an owner that is stopped (SIGSTOP, a
machine asleep) between a look at the lease and the end of one upload.
"""

import errno
import json
import os
import platform
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout
from pydantic import TypeAdapter

from raybench.results.bucket import Bucket
from raybench.results.store import command
from raybench.spec.errors import UserError
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
        advice = "wait for it, end it, or name another folder with --out"
        if isinstance(self._lock, SoftFileLock):
            advice += f"; if it is gone, delete {self._lock.lock_file}"
        who = _in_words(owner_of(self.folder))
        return UserError(clean(f"{self.folder}: is in use by {who}; {advice}."))


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


LEASE_KEY = "study.lease"
LEASE_BEAT_S = 10.0
"""A living owner writes its lease again after this."""
LEASE_STALE_S = 60.0
"""An owner that wrote nothing for so long has died, or has lost the store: it stops, too."""
SETTLE_S = 1.0
"""Seconds after which two drivers that take a lease at once both see which is the later."""
LEASE_LOOK_S = 1.0


class LeaseLostError(Exception):
    """Another driver has taken the study over; one sentence."""


@dataclass(frozen=True)
class Owner:
    """Content of a lease."""

    lease: str
    """Name of the lease of one driver, from its start to its end."""
    spool: str
    """The local folder of the driver: whoever holds that folder's lock is its only driver."""
    who: str
    beat: int
    released: bool
    last: str | None
    """The spool that has what is below the URL: of whoever wrote there last, None of nobody.

    Another one than `spool` until the driver has brought what is there into its own (`settle`).
    """


OWNER = TypeAdapter(Owner)


class Lease:
    """The right to write below a URL."""

    def __init__(
        self, bucket: Bucket, spool: str, say: Callable[[str], None] = lambda sentence: None
    ) -> None:
        """`say` gets a sentence if there is something to wait for."""
        self.bucket, self._say = bucket, say
        self._own = Owner(uuid.uuid4().hex, spool, _who(), 0, released=False, last=None)
        self._confirmed = float("-inf")

    def take(self) -> str | None:
        """Take the lease; return the spool of whoever wrote last, None if nobody did.

        That stays in the lease until `settle`: a driver that ends before has brought nothing.
        Waits for at most LEASE_STALE_S where the last owner may have died. UserError names an owner
        that lives.
        """
        before = self._read()
        # Of the same spool: its lock is ours, so that driver is gone.
        if before is not None and not before.released and before.spool != self._own.spool:
            before = self._wait_until_stale(before)
        self._own = replace(self._own, last=before.last if before is not None else None)
        self._write()
        time.sleep(SETTLE_S)
        now = self._read()
        if now is None or now.lease != self._own.lease:
            raise self._held(now)
        self._confirmed = _seconds()
        return self._own.last

    def settle(self) -> None:
        """Say that our spool has what is there; only then may be written. Raises LeaseLostError."""
        self._own = replace(self._own, last=self._own.spool)
        self.beat()

    def beat(self) -> None:
        """Say that we live. Raises LeaseLostError where the lease is another's, or gone."""
        asked = _seconds()
        now = self._read()
        if now is None or now.lease != self._own.lease:
            who = f"by {now.who}" if now is not None else "and given back by another driver"
            raise LeaseLostError(
                f"{self.bucket.url}: the study was taken over {who} while this driver could not "
                "reach it"
            )
        self._own = replace(self._own, beat=self._own.beat + 1)
        self._write()
        self._confirmed = asked

    @property
    def is_held(self) -> bool:
        """Whether nobody can have taken the lease over yet."""
        return _seconds() - self._confirmed < LEASE_STALE_S - LEASE_BEAT_S

    def release(self) -> None:
        """Give the lease back if it is ours; it still says who wrote last."""
        now = self._read()
        if now is not None and now.lease == self._own.lease:
            self._own = replace(self._own, beat=self._own.beat + 1, released=True)
            self._write()

    def _wait_until_stale(self, before: Owner) -> Owner | None:
        """Return what the lease says then. Raises UserError where its owner lives."""
        began, age = time.monotonic(), self._age()
        if age < LEASE_STALE_S:
            self._say(
                f"{self.bucket.url}: {before.who} did not give it back; waiting for a sign of it, "
                f"{LEASE_STALE_S - age:.0f} s at most."
            )
        while age + time.monotonic() - began < LEASE_STALE_S:
            time.sleep(LEASE_LOOK_S)
            now = self._read()
            if now is None or now.released:
                return now
            if (now.lease, now.beat) != (before.lease, before.beat):
                raise self._held(now)
        return before

    def _age(self) -> float:
        """Return for how many seconds the lease was not written, by the store's clock."""
        probe = f"{LEASE_KEY}.{self._own.lease}"
        self.bucket.put(probe, b"{}\n")
        now, then = self.bucket.modified(probe), self.bucket.modified(LEASE_KEY)
        self.bucket.delete(probe)
        return max(0.0, now - then) if now is not None and then is not None else 0.0

    def _held(self, owner: Owner | None) -> UserError:
        return UserError(
            f"{self.bucket.url}: is in use by {owner.who if owner else 'another driver'}; wait for "
            "it, end it, or name another place with --out."
        )

    def _read(self) -> Owner | None:
        content = self.bucket.get(LEASE_KEY)
        if content is None:
            return None
        try:
            return OWNER.validate_json(content)
        except ValueError:
            # Nobody's words: it ages like a dead owner's.
            who = "somebody whose lease cannot be read"
            return Owner("", "", who, 0, released=False, last="")

    def _write(self) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        content = asdict(self._own) | {"written": now}  # for people alone
        self.bucket.put(LEASE_KEY, json.dumps(content).encode() + b"\n")


def _seconds() -> float:
    """Return a time that goes on while the machine is asleep, where it has such a clock."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _who() -> str:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return f"{platform.node()} since {since} ({command()})"
