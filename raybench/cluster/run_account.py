"""Where the seconds of a run went, by its owner's clock: through several attempts at it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from raybench.cluster.protocol import Lent
from raybench.core.clock import OTHER, PHASES
from raybench.core.record import Evaluation


@dataclass(frozen=True, kw_only=True)
class _Point:
    """The account at a moment of the run; the beginning, unless it says more."""

    at: float
    queue_s: float = 0.0
    start_s: float = 0.0
    report_s: float = 0.0
    lost_s: float = 0.0
    worker: Mapping[str, float] = field(default_factory=dict)
    """What the workers account for."""


class RunAccount:
    """Every phase is measured by itself: `queue` and `start` by the pool, most by the workers.

    To their `report` comes what the owner measures of its own time and of the travel; `other` is
    what is left of the wall time. An attempt (from asking for workers until they are lost, or it
    ends) goes on from a point that the run was at before: what lies between that point and the
    attempt is `lost`. While an attempt has not reached an evaluation that point is the last one
    that was reached, and then the one that it really went on from, since it repeats the others.
    Waiting is never lost: it stays in `queue`.
    """

    def __init__(self) -> None:
        self.is_lent = False
        """Whether the run has ever had workers."""
        self._earlier_s = 0.0
        """Wall seconds of another driver, up to the checkpoint that this one goes on from."""
        self._queue_s = 0.0
        self._between: float | None = None
        """When the last answer came; the owner's own time runs from there."""
        self._asked: float | None = None
        """When workers were asked for; what follows is of the present attempt."""
        self._own_start_s = self._own_report_s = self._before_queue_s = 0.0
        self._worker: Mapping[str, float] = {}
        self._first = self._base = self._last = _Point(at=0.0)
        self._kept: _Point | None = None
        """Where the newest checkpoint of this session was taken."""
        self._has_evaluated = False

    def asks(self) -> None:
        """Begin an attempt: workers are asked for."""
        now = time.perf_counter()
        if self._asked is None:
            self._first = self._last = _Point(at=now)
        self._asked, self._between, self._base = now, None, self._last
        self._own_start_s = self._own_report_s = 0.0
        self._before_queue_s, self._has_evaluated = self._queue_s, False
        self._worker = self._last.worker

    def has(self, lent: Lent) -> None:
        """Workers were given."""
        assert self._asked is not None
        self.is_lent, self._between = True, time.perf_counter()
        waited = lent.queue_s + lent.start_s
        self._queue_s += lent.queue_s
        self._own_start_s += lent.start_s
        self._own_report_s += max(0.0, self._between - self._asked - waited)
        if lent.resume is not None and self._kept is None and not self._earlier_s:
            worker = lent.resume.ledger
            self._earlier_s = sum(s for phase, s in worker.items() if phase in PHASES)
            self._first = self._last = self._base = _Point(at=self._first.at, worker=worker)
            self._worker = worker

    def begins_anew(self) -> None:
        """The checkpoint is refused: what led up to it, in another session, is no part of it."""
        self._earlier_s, self._kept, self._worker = 0.0, None, {}
        self._first = self._last = _Point(at=self._first.at)

    def sends(self) -> float:
        """Note that a command goes out; return when."""
        sent = time.perf_counter()
        if self._between is not None:
            self._own_report_s += sent - self._between
        self._between = None
        return sent

    def hears(self, *, sent: float, busy_s: float) -> None:
        """Note the answer to a command; its workers were busy for so long."""
        self._between = time.perf_counter()
        self._own_report_s += self._between - sent - busy_s

    def reached(self, evaluation: Evaluation, *, is_saved: bool) -> None:
        """Note an evaluation, and whether the run can be continued from it."""
        if not self._has_evaluated:
            self._has_evaluated, self._base = True, self._kept or self._first
        self._worker = dict(evaluation.ledger)
        assert self._between is not None
        self._last = self._point(self._between)
        if is_saved:
            self._kept = self._last

    def ended(self, ledger: Mapping[str, float]) -> None:
        """Take the workers' account of the whole run."""
        self._worker = ledger

    def now(self) -> tuple[dict[str, float], float]:
        """Return the seconds by phase so far, and those of the wall."""
        now = time.perf_counter()
        wall = 0.0 if self._asked is None else now - self._first.at + self._earlier_s
        if not self.is_lent:  # it never got workers: all of it was waiting
            return {"queue": wall, OTHER: 0.0}, wall
        here = self._point(now)
        phases = {"queue": here.queue_s, "start": here.start_s, "lost": here.lost_s, **here.worker}
        own = here.report_s + (now - self._between if self._between is not None else 0.0)
        phases["report"] = phases.get("report", 0.0) + own
        known = sum(seconds for name, seconds in phases.items() if name in PHASES)
        return phases | {OTHER: wall - known}, wall

    def _point(self, at: float) -> _Point:
        base = self._base
        assert self._asked is not None
        waited = self._before_queue_s - base.queue_s
        return _Point(
            at=at,
            queue_s=self._queue_s,
            start_s=base.start_s + self._own_start_s,
            report_s=base.report_s + self._own_report_s,
            lost_s=base.lost_s + self._asked - base.at - waited,
            worker=self._worker,
        )
