"""Runs that something else on the machine disturbed: told by their seconds, and run again."""

import statistics
import threading
from dataclasses import replace

from raybench.core.record import MACHINE_FAULTS, RunRecord
from raybench.core.spec import RunSpec

TRIES = 2
"""How often a run is begun again at most because it was disturbed; then it stands, marked."""
IN_VAIN = 3
"""Runs begun again, in a row, that were disturbed again: the machine is busy, and until a run is
undisturbed none is begun again any more."""
SLOW = 1.5
"""A run that needs so many times the processor's seconds a sample of others like it had a throttled
core: seeds and learning rates change them by a tenth at most."""
LIKE_IT = 3
"""Undisturbed runs of its kind that this needs."""
LEARNT_BY = ("learning_rate", "seed", "schedule", "warmup_epochs", "objective", "epochs")
"""Keys of a run spec that change what is learnt, not what a sample costs."""
NEAR = 2.0
"""A trial that reached the target later than so many times the best undisturbed one, even without
the seconds that others took, would not win undisturbed either: it is not run again."""


RUNS_AGAIN = (
    "trial {name} was disturbed: others had its cores for {seconds:.2f} s of its training; it runs "
    "again."
)


def is_cut(record: RunRecord) -> bool:
    """Whether a run was ended by what says nothing of it."""
    return record.stop in ("interrupted", "time_budget") or record.failure in MACHINE_FAULTS


class Disturbed:
    """Judges every run of a study when it has ended; asked in any thread."""

    def __init__(self) -> None:
        self._costs: dict[str, list[float]] = {}
        """Processor seconds a sample of undisturbed runs, by what decides them."""
        self._best_s = float("inf")
        self._in_vain = 0
        self._judging = threading.RLock()
        self.is_quiet = True
        """Whether the last run that ended was undisturbed."""

    @property
    def gives_up(self) -> bool:
        """Whether no run is begun again, because the machine stays busy."""
        return self._in_vain >= IN_VAIN

    def judged(self, record: RunRecord, *, reruns: int) -> RunRecord:
        """Return a record with how often it was run before, and what a throttled core took."""
        with self._judging:
            record = replace(record, reruns=reruns)
            if not record.samples:  # it failed before it had trained
                return record
            cost = record.ledger.get("train_cpu", 0.0) / record.samples
            costs = self._costs.setdefault(_kind(record.spec), [])
            usual = statistics.median(costs) if len(costs) >= LIKE_IT else cost
            if cost > SLOW * usual:
                slow_s = record.ledger["train"] * (1 - usual / cost)
                taken_s = max(slow_s, record.disturbed_s)
                record = replace(record, ledger=record.ledger | {"disturbed": taken_s})
            self.is_quiet = not record.is_disturbed
            if self.is_quiet:
                self._in_vain = 0
                if cost:
                    costs.append(cost)
                if record.role == "trial" and record.time_to_target_s is not None:
                    self._best_s = min(self._best_s, record.time_to_target_s)
            elif reruns:
                self._in_vain += 1
            return record

    def runs_again(self, record: RunRecord) -> bool:
        """Whether a run of that record is to be begun again: it was disturbed, and would decide."""
        if record.reruns >= TRIES or self.gives_up:
            return False
        if not record.is_disturbed or is_cut(record):
            return False
        if record.role != "trial" or record.time_to_target_s is None:
            return True
        return record.time_to_target_s - record.disturbed_s < NEAR * self._best_s


def _kind(spec: RunSpec) -> str:
    document = spec.document()
    return repr(sorted((key, str(document[key])) for key in document if key not in LEARNT_BY))
