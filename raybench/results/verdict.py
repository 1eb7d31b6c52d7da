"""Which configurations won: medians of confirmed runs, the tie set, the two winners."""

from dataclasses import dataclass

from raybench.core.score import small_difference
from raybench.results.load import StudyResults
from raybench.results.ranking import by_hits, kind_of, kinds, ranked

TIE = 0.05
"""Configurations whose medians are this close are not told apart."""
TIE_POINTS = 0.005
"""So are those whose medians of a share are: half a point (`small_difference`)."""


@dataclass(frozen=True)
class Verdict:
    """The fastest and the cheapest configuration of a study."""

    fastest: str
    """Trial with the least train seconds to the target."""
    cheapest: str
    """Trial with the least worker-seconds to the target."""
    is_confirmed: bool
    """Whether both stand on repeated runs; otherwise on one search trial each."""
    ties: tuple[str, ...]
    """Trials that cannot be told from the fastest, itself included."""


def judge(results: StudyResults) -> Verdict | None:
    """Name the winners; None if no run reached the target.

    With objective best_at_budget both are the configuration with the best value. Where runs were
    on several models of GPU, the winners of the first of `judge_each`.
    """
    return next(iter(judge_each(results).values()), None)


def judge_each(results: StudyResults) -> dict[str, Verdict]:
    """Name the winners among the runs on each model of GPU, that of the best run first.

    "" stands for runs without one. Where a run was confirmed, models of which none was come last.
    """
    found: dict[str, Verdict] = {}
    for kind in kinds(results.trials):
        verdict = _confirmed_winners(results, kind) or _winners_of_the_search(results, kind)
        if verdict is not None:
            found[kind] = verdict
    return dict(sorted(found.items(), key=lambda one: not one[1].is_confirmed))


def _confirmed_winners(results: StudyResults, kind: str) -> Verdict | None:
    table = results.confirmed
    of_kind = results.trials["trial"][kind_of(results.trials) == kind]
    table = table[table["trial"].isin(of_kind)]
    table = table[table["median_s"] < float("inf") if results.is_timed else table["hits"] > 0]
    if table.empty:
        return None
    first = cheapest = table.iloc[0]
    if results.is_timed:
        is_near = table["median_s"] <= first["median_s"] * (1 + TIE)
        overlaps = table["low_s"] <= first["high_s"]
        cheapest = by_hits(table, "worker_seconds_to_target", "num_workers").iloc[0]
    else:
        metric = results.metric
        best = first[f"median_{metric.name}"]
        tie = small_difference(metric, best, results.chance, points=TIE_POINTS)
        is_near = metric.sign * table[f"median_{metric.name}"] >= metric.sign * best - tie
        ends = ("high", "low") if metric.direction == "max" else ("low", "high")
        luckiest, unluckiest = (f"{end}_{metric.name}" for end in ends)
        overlaps = metric.sign * (table[luckiest] - first[unluckiest]) >= 0
    ties = tuple(table["trial"][is_near | overlaps])
    return Verdict(first["trial"], cheapest["trial"], True, ties)


def _winners_of_the_search(results: StudyResults, kind: str) -> Verdict | None:
    runs = ranked(results.trials)
    runs = runs[kind_of(runs) == kind]
    if results.is_timed:
        # What was confirmed by now was refuted.
        is_refuted = runs["trial"].isin(results.confirmed["trial"])
        runs = runs[runs["time_to_target_s"].notna() & ~is_refuted]
        costs = runs.sort_values("worker_seconds_to_target", kind="stable")
    else:
        runs = costs = runs[runs[results.metric.best_column].notna()]
    if runs.empty:
        return None
    best, cheapest = runs["trial"].iloc[0], costs["trial"].iloc[0]
    return Verdict(best, cheapest, False, (best,))
