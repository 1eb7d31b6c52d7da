"""Whether the result hangs on the target: too easy or too hard, and one point either side."""

from raybench.core.score import small_difference
from raybench.results.analyses import ONE_POINT, time_to_target
from raybench.results.load import StudyResults
from raybench.results.ranking import ranked

FEW, MANY = 0.05, 0.9
"""Shares of trials that reach the target, outside of which it hardly distinguishes them."""
ENOUGH_TRIALS = 8


def target_warning(results: StudyResults) -> str | None:
    """Return a sentence where nearly all or nearly no search trials reach the target."""
    trials = ranked(results.trials)
    every = len(trials)
    trials = trials[trials["stop"] != "cap"]  # too slow to win, not unable to get there
    if results.target is None or not results.is_timed or len(trials) < ENOUGH_TRIALS:
        return None
    reached = int(trials["time_to_target_s"].notna().sum())
    easy, hard = ("low", "high") if results.metric.direction == "max" else ("high", "low")
    slow = every - len(trials)
    apart = f" ({slow} others were stopped as too slow before they could)" if slow else ""
    count = f"{reached} of {len(trials)} trials reach {_shown(results, results.target)}{apart}"
    if reached > MANY * len(trials):
        return f"{count}: a target this {easy} hardly distinguishes them; try a {hard}er one."
    if reached < FEW * len(trials):
        return f"{count}: try a {easy}er target, or more max_train_seconds."
    return None


def _shown(results: StudyResults, target: float) -> str:
    return f"{target:.1%}" if results.metric.is_share else f"{results.metric.words} {target:.4g}"


def fastest_at(results: StudyResults, target: float) -> tuple[str, float, int] | None:
    """Return which search trial would have been first at another target, when, and of how many.

    From the learning curves alone. Trials end when they reach the study's own target, so few
    of them tell anything of a higher one.
    """
    curves = results.curves[results.curves["trial"].isin(ranked(results.trials)["trial"])]
    if curves.empty:
        return None
    hold = int(results.study["study"]["objective"].get("hold", 1))
    times = time_to_target(
        curves, results.metric, target, hold=hold, chance=results.value_at_start
    ).dropna(subset=["seconds"])
    if times.empty:
        return None
    first = times.nsmallest(1, "seconds")
    return str(first["trial"].iloc[0]), float(first["seconds"].iloc[0]), len(times)


def sensitivity_lines(results: StudyResults) -> list[str]:
    """Return a sentence for an easier target and a harder one, one point off, where curves tell."""
    if results.target is None or not results.is_timed:
        return []
    if len(ranked(results.trials)) < ENOUGH_TRIALS:
        return []
    lines, metric = [], results.metric
    step = metric.sign * small_difference(metric, results.target, results.chance, points=ONE_POINT)
    for target in (results.target - step, results.target + step):
        found = fastest_at(results, target) if target <= 1 or not metric.is_share else None
        if found is not None:
            name, seconds, count = found
            config = results.label(results.specs[name])
            trials = "trial" if count == 1 else "trials"
            lines.append(
                f"With target {_shown(results, target)} trial {name} ({config}) would lead the "
                f"search after {seconds:.2f} s; {count} {trials} reached it."
            )
    return lines
