"""Which configurations won: medians of confirmed runs, the tie set, the two winners."""

from dataclasses import dataclass

from raybench.results.load import StudyResults
from raybench.results.ranking import by_hits, kind_of, kinds, ranked

TIE = 0.05
"""Configurations whose medians are this close are not told apart."""
TIE_ACCURACY = 0.005
"""So are those whose median accuracies are: half a point."""


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

    With objective accuracy_at_budget both are the most accurate configuration. Where runs were
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
        is_near = table["median_accuracy"] >= first["median_accuracy"] - TIE_ACCURACY
        overlaps = table["high_accuracy"] >= first["low_accuracy"]
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
        runs = costs = runs[runs["best_accuracy"].notna()]
    if runs.empty:
        return None
    best, cheapest = runs["trial"].iloc[0], costs["trial"].iloc[0]
    return Verdict(best, cheapest, False, (best,))
