"""Which configurations may be the best, by the runs of each."""

import pandas as pd

from raybench.core.errors import UserError
from raybench.core.repeats import Repeat, expected_running_time, interval, pooled, ranked, tied
from raybench.results.analyses.frames import need

BEST, TIED, ONCE, WORSE = "best", "not told apart", "ran once", "worse"
"""Standings: `ran once` is what cannot be excluded either, but was never repeated."""


def standings(runs: pd.DataFrame, *, is_timed: bool = True) -> pd.DataFrame:
    """Return how configurations stand, best first, with 90 % intervals.

    `runs` has a row per run: trial (which configuration), seconds (to the target, or all that a
    miss has spent), is_hit (whether it reached the target). With `is_timed=False` seconds holds a
    value instead, the less the better (turn an accuracy's sign), and is_hit whether the run did
    not fail. `StudyResults.repeats` is such a frame.

    | column | holds |
    |---|---|
    | trial, runs, hits | the configuration; its runs, and those that hit |
    | standing | `best`, `not told apart` from it, `ran once`, or `worse` |
    | expected | expected running time: seconds of all runs over hits; of values their mean |
    | low, high | ends of its 90 % interval, by the noise that all configurations share |

    The order is that of the race: by the upper end of what the runs allow (`core.repeats`).
    """
    need(runs, "repeats", ("trial", "seconds", "is_hit"))
    if runs["seconds"].isna().any():
        raise UserError("repeats: 'seconds' must be known of every run; of a miss what it spent.")
    groups: dict[str, list[Repeat]] = {}
    columns = runs["trial"], runs["seconds"].astype(float), runs["is_hit"].astype(bool)
    for trial, seconds, is_hit in zip(*columns, strict=True):
        groups.setdefault(trial, []).append(Repeat(seconds, is_hit))
    noise = pooled(groups.values(), is_timed=is_timed)
    order = ranked(groups, noise, is_timed=is_timed)
    ties = tied({trial: groups[trial] for trial in order}, noise, is_timed=is_timed)
    words = dict.fromkeys(ties.once, ONCE) | dict.fromkeys(ties.repeated, TIED)
    rows = []
    for place, trial in enumerate(order):
        own = groups[trial]
        hits = [one.seconds for one in own if one.is_hit]
        mean = sum(hits) / len(hits) if hits else float("inf")
        expected = expected_running_time(own) if is_timed else mean
        low, high = interval(own, noise, is_timed=is_timed)
        rows.append(
            {
                "trial": trial,
                "standing": BEST if place == 0 and hits else words.get(trial, WORSE),
                "runs": len(own),
                "hits": len(hits),
                "expected": expected,
                # An interval is around the geometric mean: a slow run may leave the mean outside.
                "low": min(low, expected),
                "high": max(high, expected),
            }
        )
    columns_of = ["trial", "standing", "runs", "hits", "expected", "low", "high"]
    return pd.DataFrame(rows, columns=columns_of)
