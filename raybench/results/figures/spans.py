"""When each run of a study had its workers, and what ran beside what."""

from dataclasses import dataclass

import pandas as pd

from raybench.results.load import StudyResults

SLACK_S = 1.0
"""Records tell the second in which a run finished, not when in it."""
LEAST_PAUSE_S, PAUSE_SHARE = 30.0, 0.1
"""Nothing ran for so long, and so much of all other time: the study was interrupted there."""


@dataclass(frozen=True)
class Spans:
    """The runs of a study over its wall-clock, interruptions left out."""

    runs: pd.DataFrame
    """trial, role, state, is_hit, group (words), lane (0, 1, ...), begin, end: seconds since the
    first run began, that is since it had workers. By lane, then by begin."""
    lanes: list[str]
    """The group that each lane is of."""
    pauses: dict[float, float]
    """Where the study was interrupted, and for how many seconds."""
    total_s: float


def spans(results: StudyResults) -> Spans:
    """Return when each run had its workers, in rows (lanes) that no two runs share at a time.

    A run had workers from `finished_at - wall_s + queue_s` on. Records do not name worker groups;
    a lane holds runs of one framework and worker count that followed each other, as the runs of a
    group do, so there are as many lanes as groups were at work at once.
    """
    trials = results.trials
    known = trials["finished_at"].notna() & trials["wall_s"].notna()
    runs = trials[known]
    end = runs["finished_at"].astype("int64") / 1e6
    begin = end - (runs["wall_s"] - runs["queue_s"].fillna(0.0)).clip(lower=0.0)
    workers = runs["num_workers"].map(lambda count: f"{count:.0f} worker{'s' * (count != 1)}")
    table = pd.DataFrame(
        {
            "trial": runs["trial"],
            "role": runs["role"],
            "state": runs["state"],
            "is_hit": runs["time_to_target_s"].notna(),
            "group": runs["framework"].astype(str) + ", " + workers,
            "begin": begin - begin.min() if len(begin) else begin,
            "end": end - begin.min() if len(begin) else end,
        }
    )
    table, pauses = _without_pauses(table)
    lanes, names = _packed(table)
    table = table.assign(lane=lanes).sort_values(["lane", "begin"], ignore_index=True)
    return Spans(table, names, pauses, float(table["end"].max()) if len(table) else 0.0)


def _without_pauses(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[float, float]]:
    if table.empty:
        return table, {}
    ordered = table.sort_values("begin")
    busy_until = ordered["end"].cummax().shift()
    gaps = (ordered["begin"] - busy_until).clip(lower=0.0).fillna(0.0)
    busy = float(ordered["end"].max() - gaps.sum())
    pauses: dict[float, float] = {}
    begin, end, cut = table["begin"].copy(), table["end"].copy(), 0.0
    is_long = gaps > max(LEAST_PAUSE_S, PAUSE_SHARE * busy)
    for at, gap in zip(ordered["begin"][is_long], gaps[is_long], strict=True):
        later = table["begin"] >= at
        begin[later] -= gap
        end[later] -= gap
        pauses[at - gap - cut] = gap
        cut += gap
    return table.assign(begin=begin, end=end), pauses


def _packed(table: pd.DataFrame) -> tuple["pd.Series[int]", list[str]]:
    """Return the lane of each run, and the group of each lane: the first that is free."""
    lane = pd.Series(0, index=table.index)
    names: list[str] = []
    for group in sorted(set(table["group"])):
        free: list[float] = []
        own = table[table["group"] == group].sort_values(["begin", "end"])
        for index, begin, end in zip(own.index, own["begin"], own["end"], strict=True):
            are_free = (n for n, until in enumerate(free) if until <= begin + SLACK_S)
            place = next(are_free, len(free))
            free[place : place + 1] = [end]
            lane[index] = len(names) + place
        names += [group] * len(free)
    return lane, names


def phases(runs: pd.DataFrame) -> pd.DataFrame:
    """Return when each role of `Spans.runs` was at work: role, runs, begin, end; by begin."""
    found = runs.groupby("role").agg(
        runs=("trial", "size"), begin=("begin", "min"), end=("end", "max")
    )
    return found.reset_index().sort_values("begin", ignore_index=True)


def best_so_far(results: StudyResults, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the search's runs as they ended: end [s], trial, value, best.

    `value` is the seconds to the target where some run reached it, else the metric's best; `best`
    is the best of all up to then.
    """
    table = results.trials.set_index("trial")
    ended = runs[runs["role"].isin(("trial", "finalist"))].sort_values("end", kind="stable")
    own = table.loc[ended["trial"]]
    is_seconds = results.is_timed and own["crossed_s"].notna().any()
    value = own["crossed_s"] if is_seconds else own[results.metric.best_column]
    found = pd.DataFrame(
        {"end": ended["end"].to_numpy(), "trial": own.index, "value": value.to_numpy(dtype=float)}
    )
    found = found.dropna(subset=["value"]).reset_index(drop=True)
    is_more = not is_seconds and results.metric.direction == "max"
    found["best"] = found["value"].cummax() if is_more else found["value"].cummin()
    return found
