"""What is reached at every budget of training seconds."""

import pandas as pd

from raybench.core.metric import Metric
from raybench.results.analyses.frames import need


def best_at_every_budget(curves: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the envelope of learning curves: the rows where the best value so far improves.

    `curves` has the columns trial, train_s and the metric's name (`StudyResults.curves`, or the
    rows of some of its trials). Columns of the answer: train_s, the metric's name, trial; seconds
    and values both get better from row to row, so a budget of `s` seconds reaches what stands in
    the last row with `train_s <= s`. Empty without a value.
    """
    columns = ["train_s", metric.name, "trial"]
    need(curves, "curves", columns, known=("train_s",))
    points = curves[columns].dropna(subset=["train_s", metric.name])
    # Of values at the same second the best comes first, so that it alone stays.
    gain = metric.sign * points[metric.name]
    points = points.assign(gain=gain).sort_values(
        ["train_s", "gain"], ascending=[True, False], kind="stable"
    )
    before = points["gain"].cummax().shift(fill_value=-float("inf"))
    return points.loc[points["gain"] > before, columns].reset_index(drop=True)
