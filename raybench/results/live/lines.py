"""A study as lines, where there is no screen to draw on: one for each event, for people and grep.

    2026-11-23T12:03:11Z t=72.1 search 3/40 finished trial=0003 time_to_target_s=1.23 ...

The moment (UTC), seconds since the first event, the phase with its runs done and in all, the event,
and what is known of it as `key=value`, always in the same order; values with spaces stand in
quotes. Events: `begin`, `starting`, `waits`, `finished`, `failed`, `status` (once a minute), `note`
(a sentence follows).
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from rich.console import Console

from raybench.core.record import RunRecord
from raybench.core.text import clean
from raybench.results.console import say
from raybench.results.live.state import Cause, LiveState
from raybench.results.live.words import Outcome

STATUS_S = 60.0
"""Seconds between two lines of how it stands."""


def now_utc() -> datetime:
    """Return this moment."""
    return datetime.now(UTC)


class EventLines:
    """Prints what happens to a study; `moment` is the clock on the wall."""

    def __init__(
        self, console: Console, state: LiveState, moment: Callable[[], datetime] = now_utc
    ) -> None:
        self._console, self._state, self._moment = console, state, moment
        self._status_s = state.began_s

    def write(self, at: float, event: str, values: Mapping[str, object], text: str = "") -> None:
        """Print an event; None and empty values are left out."""
        pace = self._state.pace
        total = "?" if pace.num_runs is None else pace.num_runs
        head = (
            f"{self._moment().strftime('%Y-%m-%dT%H:%M:%SZ')} t={at - self._state.began_s:.1f} "
            f"{self._state.phase} {pace.num_done}/{total} {event}"
        )
        pairs = [
            f"{key}={_value(value)}" for key, value in values.items() if value not in (None, "")
        ]
        say(self._console, " ".join([head, *pairs, *([text] if text else [])]))

    def finished(
        self, record: RunRecord, cause: Cause | None, at: float, outcome: Outcome | None
    ) -> None:
        """Print how a run ended, and how long it takes until all have."""
        left = self._state.time_left(at)
        left_s = None if left is None else f"{left.seconds:.0f}"
        config = self._state.label(record.spec)
        if cause is not None:
            values: dict[str, object] = {"trial": record.trial, "failure": record.failure}
            if cause.count == 1:
                values["message"] = record.message
            else:
                values |= {"same_as": cause.trial, "count": cause.count}
            self.write(at, "failed", values | {"left_s": left_s, "config": config})
            return
        metric, best = record.spec.objective.judged_by, self._state.best
        seconds = record.time_to_target_s
        found: dict[str, object] = {
            "trial": record.trial,
            "time_to_target_s": None if seconds is None else f"{seconds:.2f}",
            "train_s": f"{record.ledger['train']:.2f}",
            metric.name: None if record.best_value is None else f"{record.best_value:.5g}",
            "stop": record.stop,
            "best": "yes" if best is not None and best.trial == record.trial else None,
            "outcome": None if outcome is None else outcome(record),
            "left_s": left_s,
            "config": config,
        }
        self.write(at, "finished", found)

    def status(self, at: float) -> None:
        """Print how it stands, if nothing was said of that for STATUS_S."""
        if at - self._status_s < STATUS_S:
            return
        self._status_s, state = at, self._state
        left, share, best = state.time_left(at), state.busy_share(at), state.best
        num_all = "?" if state.num_workers is None else state.num_workers
        values: dict[str, object] = {
            "running": len(state.training),
            "not_yet": len(state.runs) - len(state.training),
            "workers": None if state.num_training is None else f"{state.num_training}/{num_all}",
            "busy": None if share is None else f"{share:.2f}",
            "failed": sum(cause.count for cause in list(state.causes.values())) or None,
            "best": None if best is None else best.trial,
            "left_s": None if left is None else f"{left.seconds:.0f}",
        }
        self.write(at, "status", values)


def _value(value: object) -> str:
    """Return a value without spaces, or in quotes."""
    text = clean(str(value))
    is_plain = text and not any(character in text for character in ' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=False)
