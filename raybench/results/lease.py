"""One driver at a time writes a URL: an object that says who, written again every few seconds.

A store has no lock, and the hosts' clocks differ, so a lease is judged by no host's clock: how
old it is, is the difference of two times that the *store* gave (of the lease, and of an object
written beside it just now); from then on whoever waits counts by himself, and a beat in between
shows that the owner lives. What cannot be shut out without a store's conditional writes: an owner
that is stopped (SIGSTOP, a machine asleep) between a look at the lease and the end of one upload.
"""

import json
import platform
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from raybench.core.errors import UserError
from raybench.results.bucket import Bucket
from raybench.results.provenance import command

LEASE_KEY = "study.lease"
BEAT_S = 10.0
"""A living owner writes its lease again after this."""
STALE_S = 60.0
"""An owner that wrote nothing for so long has died, or has lost the store: it stops, too."""
SETTLE_S = 1.0
"""Of two that take a lease at once, the later is seen by both after this."""
LOOK_S = 1.0


class LeaseLostError(Exception):
    """Another driver has taken the study over; one sentence."""


@dataclass(frozen=True)
class Owner:
    """What a lease says."""

    lease: str
    """Of one driver, from its start to its end."""
    spool: str
    """The local folder of the driver: whoever holds that folder's lock is its only driver."""
    who: str
    beat: int
    is_released: bool
    last: str | None
    """The spool that has what is below the URL: of whoever wrote there last, None of nobody.

    Another one than `spool` until the driver has brought what is there into its own (`settle`).
    """


class Lease:
    """The right to write below a URL."""

    def __init__(
        self, bucket: Bucket, spool: str, say: Callable[[str], None] = lambda sentence: None
    ) -> None:
        """`say` gets a sentence if there is something to wait for."""
        self.bucket, self._say = bucket, say
        self._own = Owner(uuid.uuid4().hex, spool, _who(), 0, is_released=False, last=None)
        self._confirmed = float("-inf")

    def take(self) -> str | None:
        """Take the lease; return the spool of whoever wrote last, None if nobody did.

        That stays in the lease until `settle`: a driver that ends before has brought nothing.
        Waits for at most STALE_S where the last owner may have died. UserError names an owner
        that lives.
        """
        before = self._read()
        # Of the same spool: its lock is ours, so that driver is gone.
        if before is not None and not before.is_released and before.spool != self._own.spool:
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
        return _seconds() - self._confirmed < STALE_S - BEAT_S

    def release(self) -> None:
        """Give the lease back if it is ours; it still says who wrote last."""
        now = self._read()
        if now is not None and now.lease == self._own.lease:
            self._own = replace(self._own, beat=self._own.beat + 1, is_released=True)
            self._write()

    def living_owner(self) -> str | None:
        """Return who has the lease, None if nobody has it who wrote it within STALE_S."""
        now = self._read()
        if now is None or now.is_released or self._age() >= STALE_S:
            return None
        return now.who

    def _wait_until_stale(self, before: Owner) -> Owner | None:
        """Return what the lease says then. Raises UserError where its owner lives."""
        began, age = time.monotonic(), self._age()
        if age < STALE_S:
            self._say(
                f"{self.bucket.url}: {before.who} did not give it back; waiting for a sign of it, "
                f"{STALE_S - age:.0f} s at most."
            )
        while age + time.monotonic() - began < STALE_S:
            time.sleep(LOOK_S)
            now = self._read()
            if now is None or now.is_released:
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
            found: dict[str, Any] = json.loads(content)
            last = found.get("last", found["spool"])  # without `last`: of an earlier version
            return Owner(
                lease=str(found["lease"]),
                spool=str(found["spool"]),
                who=str(found["who"]),
                beat=int(found["beat"]),
                is_released=found["released"] is True,
                last=str(last) if last is not None else None,
            )
        except (ValueError, KeyError, TypeError):
            # Nobody's words: it ages like a dead owner's.
            who = "somebody whose lease cannot be read"
            return Owner("", "", who, 0, is_released=False, last="")

    def _write(self) -> None:
        own = self._own
        content = {
            "lease": own.lease,
            "spool": own.spool,
            "who": own.who,
            "beat": own.beat,
            "released": own.is_released,
            "last": own.last,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),  # for people alone
        }
        self.bucket.put(LEASE_KEY, json.dumps(content).encode() + b"\n")


def _seconds() -> float:
    """Return a time that goes on while the machine is asleep, where it has such a clock."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _who() -> str:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return f"{platform.node()} since {since} ({command()})"
