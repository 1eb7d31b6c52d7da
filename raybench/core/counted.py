"""What a recorded run says when configurations are compared: the one rule of race and results."""

from collections.abc import Iterable, Sequence

from raybench.core.clock import OTHER, PHASES
from raybench.core.crossing import crossing
from raybench.core.objective import TIME
from raybench.core.record import MACHINE_FAULTS, Evaluation, RunRecord
from raybench.core.repeats import Repeat
from raybench.core.score import MIN_SECONDS


def is_told(record: RunRecord) -> bool:
    """Whether a run that was repeated says something of its configuration.

    Not if it was cut off, by the user or by the time budget, or lost; a run of a race that was
    stopped because it had lost (`cap`) does: it missed.
    """
    if record.failure in MACHINE_FAULTS:
        return False
    return record.state != "stopped" or record.stop == "cap"


def repeat_of(
    record: RunRecord, points: Sequence[Evaluation], *, chance: float | None = None
) -> Repeat:
    """Return what a run counts as; `points` are its evaluations, `chance` as in `crossing`.

    Train seconds to the target, a miss with all that it has spent (one that crashed with what it
    spent since its last evaluation too, which is training for all that is known) and the set-up and
    compilation of the run that begins in its place: what diverges at once is not free. With
    best_at_budget the best value, its sign turned where more is better.
    """
    is_failed = record.failure is not None
    if record.spec.objective.kind == TIME:
        found = None if is_failed else crossing(record, points, chance=chance)
        if found is None:
            unseen_s = max(record.ledger.get(OTHER, 0.0), 0.0) if is_failed else 0.0
            anew_s = record.ledger.get("setup", 0.0) + record.ledger.get("compile", 0.0)
            return Repeat(record.ledger["train"] + unseen_s + anew_s, is_hit=False)
        return Repeat(max(found.seconds, MIN_SECONDS), is_hit=True)
    if is_failed or record.best_value is None:
        return Repeat(0.0, is_hit=False)
    return Repeat(-record.spec.objective.judged_by.sign * record.best_value, is_hit=True)


def held_per_trained(runs: Iterable[RunRecord]) -> float:
    """Return worker-seconds that runs hold their workers for, and are billed for, to those of
    training: start-up, set-up, compilation, evaluation too, without the queue."""
    held = trained = 0.0
    for run in runs:
        phases = (*PHASES, OTHER)
        held += run.spec.num_workers * sum(
            run.ledger.get(phase, 0.0) for phase in phases if phase != "queue"
        )
        trained += run.spec.num_workers * run.ledger["train"]
    return held / trained if trained else 1.0


def first_trial(runs: Iterable[RunRecord]) -> str | None:
    """Return the trial that a study began with, whose own run had a cold start: it tells nothing.

    Trials are numbered as they are begun, so it is the one with the least number, or the reference
    run that counts as one. None without any.
    """
    names = (one.trial for one in runs if one.role == "trial")
    return min(names, key=lambda name: (name.isdigit(), len(name), name), default=None)
