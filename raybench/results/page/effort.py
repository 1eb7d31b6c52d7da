"""What a study has taken, and what a training costs, in words."""

import pandas as pd

from raybench.results.answer import duration
from raybench.results.load import StudyResults
from raybench.results.words import counted, price_of


def effort_words(results: StudyResults) -> str:
    """Return how many runs there were, how long they trained, on how many workers' time."""
    trials = results.trials
    if trials.empty:
        return "Nothing yet."
    failed = int((trials["state"] == "failed").sum())
    broken = f", {failed} of them failed" if failed else ""
    workers = float((trials["num_workers"] * trials["train_s"]).sum())
    words = (
        f"{counted(len(trials), 'run')}{broken}: {duration(float(trials['train_s'].sum()))} of "
        f"training, {duration(workers)} of workers' time"
    )
    span = _wall(results)
    over = f", within {duration(span)} on the clock" if span else ""
    return f"{words}{price_of(results, workers)}{over}."


def _wall(results: StudyResults) -> float | None:
    """Return the seconds from the first run's begin to the last one's end; None if not known."""
    trials = results.trials
    ended = trials["finished_at"].dropna()
    if ended.empty:
        return None
    begun = (ended - pd.to_timedelta(trials["wall_s"].loc[ended.index], unit="s")).min()
    return float((ended.max() - begun).total_seconds())
