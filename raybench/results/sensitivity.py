"""Whether the result hangs on the target: too easy or too hard, and one point either side."""

from raybench.core.objective import time_to_target
from raybench.results.load import StudyResults
from raybench.results.ranking import ranked

FEW, MANY = 0.05, 0.9
"""Shares of trials that reach the target, outside of which it hardly tells them apart."""
ENOUGH_TRIALS = 8
STEP = 0.01
"""One point of accuracy."""


def target_warning(results: StudyResults) -> str | None:
    """Return a sentence where nearly all or nearly no search trials reach the target."""
    trials = ranked(results.trials)
    trials = trials[trials["stop"] != "cap"]  # too slow to win, not unable to get there
    if results.target is None or not results.is_timed or len(trials) < ENOUGH_TRIALS:
        return None
    reached = int(trials["time_to_target_s"].notna().sum())
    count = f"{reached} of {len(trials)} trials reach {results.target:.1%}"
    if reached > MANY * len(trials):
        return f"{count}: a target this low hardly tells them apart; try a higher one."
    if reached < FEW * len(trials):
        return f"{count}: try a lower target, or more max_train_seconds."
    return None


def fastest_at(results: StudyResults, target: float) -> tuple[str, float, int] | None:
    """Return which search trial would have been first at another target, when, and of how many.

    From the learning curves alone. Trials end when they reach the study's own target, so few
    of them tell anything of a higher one.
    """
    names = set(ranked(results.trials)["trial"])
    hold = int(results.study["study"]["objective"].get("hold", 1))
    times: dict[str, float] = {}
    for name, curve in results.curves.groupby("trial", sort=False):
        if name not in names:
            continue
        accuracies, seconds = curve["accuracy"].tolist(), curve["train_s"].tolist()
        found = time_to_target(accuracies, seconds, target=target, hold=hold)
        if found is not None:
            times[str(name)] = found
    if not times:
        return None
    first = min(times, key=lambda name: times[name])
    return first, times[first], len(times)


def sensitivity_lines(results: StudyResults) -> list[str]:
    """Return a sentence for one point below the target and one above, where curves tell."""
    if results.target is None or not results.is_timed:
        return []
    if len(ranked(results.trials)) < ENOUGH_TRIALS:
        return []
    lines = []
    for target in (results.target - STEP, results.target + STEP):
        found = fastest_at(results, target) if target <= 1 else None
        if found is not None:
            name, seconds, count = found
            config = results.label(results.specs[name])
            lines.append(
                f"With target {target:.1%} trial {name} ({config}) would lead the search "
                f"after {seconds:.2f} s; {count} {'trial' if count == 1 else 'trials'} reached it."
            )
    return lines
