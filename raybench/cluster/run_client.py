"""One run in a group lent by the hub, seen by the process that asked for it."""

import time
from typing import Any

import ray

from raybench.cluster.admission import Shape
from raybench.cluster.protocol import (
    Advance,
    Command,
    Finish,
    Finished,
    Lent,
    Progress,
    Reply,
    RunFailed,
    Start,
)
from raybench.core.clock import OTHER, merge_ranks
from raybench.core.record import Evaluation
from raybench.core.spec import RunSpec

SLICE_TIMEOUT_S = 600.0
"""A worker that has not reached its next evaluation by then (or within three times the
objective's `max_train_seconds`, if that is longer) is taken for hung."""


class RunClient:
    """Asks for workers on creation; drives one run on them, evaluation by evaluation.

    `close` must be called at the end, whatever happened. Raises RunFailed where the run
    cannot go on; what it has measured until then stays readable.
    """

    def __init__(
        self,
        hub: Any,
        trial: str,
        spec: RunSpec,
        *,
        keep: bool = True,
        slice_timeout_s: float | None = None,
    ) -> None:
        self._hub, self._trial, self._spec, self._keep = hub, trial, spec, keep
        limit = 3 * spec.objective.max_train_seconds
        self._timeout_s = slice_timeout_s or max(SLICE_TIMEOUT_S, limit)
        self._asked = time.perf_counter()
        self._between: float | None = None
        """When the last answer came; the owner's own time runs from there."""
        self._report_s = 0.0
        """Seconds between commands, and of commands and answers on their way."""
        self._lent: Lent | None = None
        self._worker_ledger: dict[str, float] = {}
        self.num_parameters: int | None = None
        self.batch_statistics: bool | None = None
        self.chance = 0.0
        """Accuracy of guessing; known after the first evaluation."""
        self.concurrent = 0

    def acquire(self) -> None:
        """Wait for the workers."""
        self.take(self._hub.acquire.remote(self._trial, self.shape))

    def take(self, reference: Any) -> None:
        """Wait for workers that were asked for by `hub.acquire.remote`."""
        self._lent = _get(reference)
        self._between = time.perf_counter()
        waited = self._lent.queue_s + self._lent.start_s
        self._report_s += max(0.0, self._between - self._asked - waited)

    def start(self) -> Evaluation:
        """Build the run and train to its first evaluation."""
        return self._progress(Start(spec=self._spec.document()))

    def advance(self) -> Evaluation:
        """Train to the next evaluation."""
        return self._progress(Advance())

    def finish(self, *, save: bool = False, test: bool = False) -> Finished:
        """End the run; return the weights and the test accuracy if asked for."""
        replies = self._command(Finish(save=save, test=test))
        finished = [reply for reply in replies if isinstance(reply, Finished)]
        self._worker_ledger = merge_ranks([reply.ledger for reply in finished])
        return finished[0]

    def close(self) -> None:
        """Give the workers back."""
        self.concurrent = _get(self._hub.release.remote(self._trial, keep=self._keep))

    @property
    def shape(self) -> Shape:
        """The worker group the run needs."""
        return shape_of(self._spec)

    @property
    def hosts(self) -> list[str]:
        """Host of every rank; empty before workers were given."""
        return self._lent.hosts if self._lent else []

    @property
    def devices(self) -> list[str]:
        """Device of every rank; empty before workers were given."""
        return self._lent.devices if self._lent else []

    def ledger(self) -> tuple[dict[str, float], float]:
        """Return seconds by phase, and the wall seconds since workers were asked for.

        Every phase is measured by itself: `queue` and `start` by the hub, the others by the
        workers; to their `report` comes what the owner has measured of its own time and of the
        travel. `other` is what then is left of the wall time.
        """
        now = time.perf_counter()
        wall = now - self._asked
        if self._lent is None:  # it never got workers: all of it was waiting
            return {"queue": wall, OTHER: 0.0}, wall
        phases = {"queue": self._lent.queue_s, "start": self._lent.start_s} | self._worker_ledger
        own = self._report_s + (now - self._between if self._between else 0.0)
        phases["report"] = phases.get("report", 0.0) + own
        known = sum(seconds for name, seconds in phases.items() if name != "input")
        return phases | {OTHER: wall - known}, wall

    def account(self) -> dict[str, Any]:
        """Return what the run's record holds of its workers and its time."""
        ledger, wall = self.ledger()
        return {
            "ledger": ledger,
            "wall_s": wall,
            "num_parameters": self.num_parameters,
            "batch_statistics": self.batch_statistics,
            "concurrent": self.concurrent,
            "hosts": self.hosts,
            "devices": self.devices,
        }

    def _progress(self, command: Command) -> Evaluation:
        replies = self._command(command)
        first = replies[0]
        assert isinstance(first, Progress)
        self.num_parameters = first.num_parameters
        self.batch_statistics = first.batch_statistics
        self.chance = 1.0 / first.num_classes
        self._worker_ledger = dict(first.evaluation.ledger)
        return first.evaluation

    def _command(self, command: Command) -> list[Reply]:
        sent = time.perf_counter()
        if self._between is not None:
            self._report_s += sent - self._between
        self._between = None
        replies: list[Reply] = _get(self._hub.command.remote(self._trial, command, self._timeout_s))
        self._between = time.perf_counter()
        busy = max(r.busy_s for r in replies if isinstance(r, Progress | Finished))
        self._report_s += self._between - sent - busy
        return replies


def shape_of(spec: RunSpec) -> Shape:
    """Return the worker group a run needs."""
    return Shape(spec.framework, spec.num_workers, spec.cpus_per_worker, spec.gpus_per_worker)


def _get(reference: Any) -> Any:
    """Wait for a hub call; its RunFailed comes out as itself, not wrapped by Ray."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RunFailed):
            raise error.cause from None
        raise
