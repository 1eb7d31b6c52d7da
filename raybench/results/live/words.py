"""What the views say of a study, in words that are the same in all of them."""

from collections.abc import Callable

from raybench.core.metric import Metric
from raybench.core.record import RunRecord
from raybench.results.live.durations import about
from raybench.results.live.state import Cause, LiveRun, LiveState
from raybench.results.words import target_words

PHASES = {
    "reference": "reference runs",
    "search": "search",
    "finalist": "placements that were only predicted",
    "race": "race",
    "confirm": "winners alone",
    "scaling": "scaling",
    "train": "training",
}
STARTING = "starting workers"
FOLLOWS = {
    "search": "the race and the winners' runs alone",
    "finalist": "the race and the winners' runs alone",
    "race": "the winners' runs alone",
}
"""What the time after a phase is for."""
Outcome = Callable[[RunRecord], str]
"""Says how a run ended that did not fail, where none is the best of them."""


def left_words(state: LiveState, at: float) -> str:
    """Return the time left for a head: `about 95 s left`; empty while nothing is known of it."""
    left = state.time_left(at)
    if left is None:
        return ""
    if left.is_budget:
        return f"at most {about(left.seconds)} left (time budget)"
    return f"about {about(left.seconds)} left"


def follows_words(state: LiveState) -> str:
    """Return what follows the phase, and how much of the time left it is."""
    words = FOLLOWS.get(state.phase)
    is_told = words is not None and state.after_s > 0 and not state.is_over
    return f"about {about(state.after_s)} of it for {words}" if is_told else ""


def result_words(record: RunRecord) -> str:
    """Return what a run that did not fail came to, in a few words."""
    metric, target = record.spec.objective.judged_by, record.spec.objective.target
    if record.time_to_target_s is not None and target is not None:
        return f"{record.time_to_target_s:.2f} s to {target_words(metric, target)}"
    return f"{metric_words(metric, record.best_value)} after {record.ledger['train']:.2f} s"


def metric_words(metric: Metric, value: float | None) -> str:
    """Return a value with its name where a number alone does not tell it: `97.3 %`, `RMSE 0.4`."""
    return f"{'' if metric.is_share else f'{metric.words} '}{metric.shown(value)}"


def best_words(state: LiveState) -> str:
    """Return the best run so far, against the target where there is one."""
    best, target = state.best, state.target
    if best is None:
        return "none yet"
    words = f"{result_words(best)} (one run)"
    if target is not None and best.time_to_target_s is None and best.best_value is not None:
        lacks = state.metric.gap(target, best.best_value)
        points = f"{100 * lacks:.1f} points" if state.metric.is_share else f"{lacks:.3g}"
        words += f", {points} short of {target_words(state.metric, target)}"
    return words


def reached_words(state: LiveState) -> str:
    """Return how many runs of the search reached the target; empty where there is none."""
    if state.target is None or not state.num_searched:
        return ""
    what = target_words(state.metric, state.target)
    return f"{what}, reached by {state.num_reached} of {state.num_searched}"


def workers_words(state: LiveState, at: float) -> str:
    """Return how many workers train now, and their share of the last minute."""
    training, num_all = state.num_training, state.num_workers
    if training is None:
        count = len(state.training)
        return f"{count} run{'' if count == 1 else 's'} training"
    words = f"{training} training" if num_all is None else f"{training} of {num_all} training"
    share = state.busy_share(at)
    return words if share is None else f"{words}, {100 * share:.0f} % of the last minute"


def cause_words(cause: Cause) -> str:
    """Return failures of one cause."""
    return f"{cause.count} {cause.failure} ({cause.message})"


def standing_words(state: LiveState, run: LiveRun, at: float) -> str:
    """Return what a run does that has shown no evaluation."""
    waiting = state.waiting.get(run.name)
    if waiting is not None:
        return f"waits for {waiting[0]}, {waiting[1]:.0f} s"
    return f"{STARTING}, {at - run.asked_s:.0f} s"
