"""What a study has taken, and what a training costs, in words."""

import pandas as pd

from raybench.results.load import StudyResults
from raybench.results.plot_parts import plural


def effort_words(results: StudyResults) -> str:
    """Return how many runs there were, how long they trained, on how many workers' time."""
    trials = results.trials
    if trials.empty:
        return "Nothing yet."
    failed = int((trials["state"] == "failed").sum())
    broken = f", {failed} of them failed" if failed else ""
    workers = float((trials["num_workers"] * trials["train_s"]).sum())
    words = (
        f"{plural(len(trials), 'run')}{broken}: {duration(float(trials['train_s'].sum()))} of "
        f"training, {duration(workers)} of workers' time"
    )
    span = _wall(results)
    over = f", within {duration(span)} on the clock" if span else ""
    return f"{words}{price_words(results, workers)}{over}."


def price_words(results: StudyResults, worker_seconds: float) -> str:
    """Return what this many cost, where the study has a price per worker-hour."""
    price = results.study["study"].get("price")
    if price is None:
        return ""
    return f" or {worker_seconds / 3600 * price:.3g} in money, at {price:g} per worker-hour"


def duration(seconds: float) -> str:
    """Return `42 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def _wall(results: StudyResults) -> float | None:
    """Return the seconds from the first run's begin to the last one's end; None if not known."""
    trials = results.trials
    ended = trials["finished_at"].dropna()
    if ended.empty:
        return None
    begun = (ended - pd.to_timedelta(trials["wall_s"].loc[ended.index], unit="s")).min()
    return float((ended.max() - begun).total_seconds())
