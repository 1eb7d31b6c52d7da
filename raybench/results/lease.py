"""One driver at a time below a URL: an object says who writes, and is written again and again.

A store has no lock, and the hosts' clocks differ. So whoever finds the lease of another driver
waits: if it is written again, its owner lives; if it stays the same for `STALE_S`, its owner has
died, or has lost the store and stops. Without conditional writes of the store one case stays open:
an owner that is stopped (SIGSTOP, a machine asleep) in the middle of a copy.
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
"""Seconds after which a living owner writes its lease again, at its next write at the latest."""
STALE_S = 120.0
"""Seconds without a new lease after which the owner counts as dead."""
SETTLE_S = 1.0
"""Seconds after which two drivers that take a lease at once both see which is the later."""
LOOK_S = 1.0


class LeaseLostError(Exception):
    """Another driver has taken the study over; one sentence."""


class Owner(NamedTuple):
    """Content of a lease."""

    lease: str
    """Name of the lease of one driver, from its start to its end."""
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
        """`say` gets a sentence if there is something to wait for."""
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
            UserError: The other owner lives.
        """
        before = self._read()
        # Of the same machine's folder: its lock is ours, so that driver is gone.
        if before and not before.is_released and before.machine != self._own.machine:
            self._wait(before)
        self._write(self._own)
        time.sleep(SETTLE_S)
        now = self._read()
        if now is None or now.lease != self._own.lease:
            raise self._held(now)
        return before is not None and before.machine == self._own.machine

    def beat(self) -> None:
        """Say that we live.

        Raises:
            LeaseLostError: The lease is another's, or gone.
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
        """Say so if that is due; to be called before each write."""
        if time.monotonic() - self._beaten >= BEAT_S:
            self.beat()

    def release(self) -> None:
        """Give the lease back if it is ours."""
        now = self._read()
        if now is not None and now.lease == self._own.lease:
            self._write(self._own._replace(is_released=True))

    def _wait(self, before: Owner) -> None:
        """Wait until an owner counts as dead, or gives the lease back."""
        self._say(
            f"{self.bucket.url}: {before.who} did not give it back; waiting for a sign of it, "
            f"{STALE_S:.0f} s at most."
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
        except (ValueError, TypeError):  # it ages like a dead owner's
            return Owner("", "", "a driver whose lease cannot be read", 0)

    def _write(self, owner: Owner) -> None:
        self.bucket.put(LEASE_KEY, json.dumps(owner._asdict()).encode() + b"\n")
        self._own, self._beaten = owner, time.monotonic()
