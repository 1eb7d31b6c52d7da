"""Lease of a URL: one driver at a time, named in an object that it keeps rewriting.

Object stores have no locks, and the clocks of hosts differ. So a driver that finds the lease of
another one waits: if the lease is rewritten, its owner is running; if it stays the same for
`STALE_S`, its owner has died, or has lost the store and stops. Not covered is an owner that is
suspended (SIGSTOP, a sleeping machine) in the middle of a copy.
"""

import json
import platform
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from raybench.results.bucket import Bucket
from raybench.results.store import command
from raybench.spec.errors import ErrorCode, UserError

LEASE_KEY = "study.lease"
BEAT_S = 15.0
"""Seconds between two writes of the lease by its owner."""
STALE_S = 120.0
"""Seconds without a rewritten lease after which the owner counts as dead."""
SETTLE_S = 1.0
"""Seconds after which two drivers that take a lease at once both see the later one."""
LOOK_S = 1.0


class LeaseLostError(Exception):
    """Another driver has taken the study over; the message is one sentence."""


class Owner(NamedTuple):
    """Content of a lease."""

    lease: str
    """Unique name of the lease."""
    machine: str
    """The driver's folder on its machine; the lock of that folder lets one driver in."""
    who: str
    beat: int
    is_released: bool = False


class Lease:
    """The right to write below a URL."""

    def __init__(
        self, bucket: Bucket, machine: str, say: Callable[[str], None] = lambda sentence: None
    ) -> None:
        """Prepare the lease; `say` is called with a sentence before waiting for another driver."""
        self.bucket, self._say = bucket, say
        since = datetime.now(UTC).isoformat(timespec="seconds")
        who = f"{platform.node()} since {since} ({command()})"
        self._own = Owner(uuid.uuid4().hex, machine, who, 0)
        self._beaten = 0.0

    def take(self) -> bool:
        """Take the lease, once another owner counts as dead.

        Returns:
            Whether the owner before was a driver of the same folder on the same machine.

        Raises:
            UserError: Another driver is running.
        """
        before = self._read()
        # With the same folder: this process has its lock, so that driver has ended.
        if before and not before.is_released and before.machine != self._own.machine:
            self._wait(before)
        self._write(self._own)
        time.sleep(SETTLE_S)
        now = self._read()
        if now is None or now.lease != self._own.lease:
            raise self._held(now)
        return before is not None and before.machine == self._own.machine

    def beat(self) -> None:
        """Rewrite the lease.

        Raises:
            LeaseLostError: The lease is another driver's, or gone.
        """
        now = self._read()
        if now is None or now.lease != self._own.lease:
            who = f"by {now.who}" if now is not None else "and given back by another driver"
            raise LeaseLostError(
                f"{self.bucket.url}: the study was taken over {who} while this driver could not "
                "reach it"
            )
        self._write(self._own._replace(beat=self._own.beat + 1))

    def check(self) -> None:
        """Call `beat` if it is due; called before each write."""
        if time.monotonic() - self._beaten >= BEAT_S:
            self.beat()

    def release(self) -> None:
        """Release the lease if this driver has it."""
        now = self._read()
        if now is not None and now.lease == self._own.lease:
            self._write(self._own._replace(is_released=True))

    def _wait(self, before: Owner) -> None:
        """Wait until an owner counts as dead, or releases the lease."""
        self._say(
            f"{self.bucket.url}: {before.who} did not release it; waiting at most "
            f"{STALE_S:.0f} s for a sign of that driver."
        )
        ends = time.monotonic() + STALE_S
        while time.monotonic() < ends:
            time.sleep(LOOK_S)
            now = self._read()
            if now is None or now.is_released:
                return
            if now != before:
                raise self._held(now)

    def _held(self, owner: Owner | None) -> UserError:
        return UserError(
            f"{self.bucket.url}: is in use by {owner.who if owner else 'another driver'}; wait for "
            "it, end it, or name another place with --out.",
            ErrorCode.STUDY_IN_USE,
        )

    def _read(self) -> Owner | None:
        content = self.bucket.get(LEASE_KEY)
        if content is None:
            return None
        try:
            return Owner(**json.loads(content))
        except (ValueError, TypeError):  # becomes stale like that of a dead owner
            return Owner("", "", "a driver whose lease cannot be read", 0)

    def _write(self, owner: Owner) -> None:
        self.bucket.put(LEASE_KEY, json.dumps(owner._asdict()).encode() + b"\n")
        self._own, self._beaten = owner, time.monotonic()
