"""Remarks on a study: whether the result depends on the target, what became of the runs, and
whether the winner is at the end of a searched range.
"""

from raybench.report.tables import DISTURBED, failures
from raybench.report.words import (
    named_trials,
    target_in_words,
)
from raybench.results.analyses import ledger_totals
from raybench.results.ranking import ranked
from raybench.results.study import Study
from raybench.results.verdict import Verdict
from raybench.spec.errors import UserError
from raybench.spec.space import end_of, parse_space
from raybench.spec.text import clean, counted, shorten

FEWEST_REACHED, MOST_REACHED = 0.05, 0.9
"""If the share of trials that reach the target is outside this range, the target hardly
distinguishes trials."""
ENOUGH_TRIALS = 8


def target_warning(results: Study) -> list[str]:
    """Return a sentence if nearly all or nearly none of the search trials reach the target."""
    trials = ranked(results.trials)
    if results.target is None or not results.is_timed or len(trials) < ENOUGH_TRIALS:
        return []
    reached = int(trials["time_to_target_s"].notna().sum())
    easy, hard = ("low", "high") if results.metric.direction == "max" else ("high", "low")
    count = f"{reached} of {len(trials)} trials reach {target_in_words(results)}"
    if reached > MOST_REACHED * len(trials):
        return [f"{count}: a target this {easy} hardly distinguishes them; try a {hard}er one."]
    if reached < FEWEST_REACHED * len(trials):
        return [f"{count}: try a {easy}er target, or more max_train_seconds."]
    return []


def code_line(results: Study) -> list[str]:
    """Return a sentence if runs had different versions of the user's code."""
    versions = results.trials.dropna(subset=["code"]).groupby("code", sort=False)["trial"].agg(list)
    if len(versions) < 2:
        return []
    spans = {code: f"{min(names)} to {max(names)}" for code, names in versions.items()}
    runs = "; ".join(f"{code}: {span}" for code, span in spans.items())
    return [f"The code was changed between runs, which are compared all the same ({runs})."]


LEAST_SHARE = 0.05
"""Phases that took a smaller share of the time of all runs are not named."""
LONGEST_MESSAGE = 300
"""Maximum number of characters of a failure's message."""
IN_WORDS = {
    "queue": "waiting for free workers",
    "start": "starting workers",
    "lost": "lost with workers that died or did not answer",
    "setup": "set-up",
    "compile": "compiling",
    "train": "training",
    "eval": "evaluation",
    "checkpoint": "checkpoints",
    "report": "reporting",
    "other": "unexplained",
}


def ledger_line(results: Study) -> str:
    """Return a sentence on the share of each phase in the time of all runs, largest first."""
    trials = results.trials
    table = ledger_totals(trials)
    phases = table[(table["phase"] != "sum") & (table["share"] >= LEAST_SHARE)]
    phases = phases.sort_values("share", ascending=False, kind="stable")
    named = zip(phases["phase"], phases["share"], strict=True)
    shares = [f"{IN_WORDS[phase]} {100 * share:.0f} %" for phase, share in named]
    total = float(trials["wall_s"].sum())
    return (
        f"Where the {total:,.0f} s of {counted(len(trials), 'run')} went: {', '.join(shares)}. "
        f"Only training time counts toward the {'target' if results.is_timed else 'budget'}."
    )


def disturbed_line(results: Study) -> list[str]:
    """Return a sentence on how many runs were disturbed by other processes; [] if none."""
    number = int(results.trials["is_disturbed"].eq(True).sum())
    if not number:
        return []
    whose = "its times are" if number == 1 else "their times are"
    return [
        f"Slowed by other processes: {number} of {counted(len(results.trials), 'run')} (marked "
        f"{DISTURBED}); {whose} overstated."
    ]


def failed_line(results: Study) -> list[str]:
    """Return a sentence on the failed runs and their most frequent cause; [] if none failed."""
    broken = failures(results.trials)
    if broken.empty:
        return []
    first = broken.iloc[0]
    most = "" if len(broken) == 1 else f" most often ({counted(first['runs'], 'run')})"
    message = shorten(clean(str(first["for example"])), LONGEST_MESSAGE)
    runs = counted(int(broken["runs"].sum()), "run")
    return [f"Failed: {runs},{most} {first['failure']}: {message}"]


def unranked_lines(results: Study) -> list[str]:
    """Return a sentence for each reason why trials of the search were not ranked."""
    searched = results.trials[results.trials["phase"] == "search"]
    reasons = searched.groupby("unranked", sort=False)["trial"]
    return [f"Not ranked, {why}: {named_trials(list(trials))}." for why, trials in reasons]


def edge_lines(results: Study, verdict: Verdict | None) -> list[str]:
    """Return sentences on the keys whose value in the fastest trial is at an end of the searched
    range."""
    if verdict is None:
        return []
    study = results.study["study"]
    try:
        space = parse_space(study.get("space") or {}, study.get("fixed") or {}, "study.yaml")
    except UserError:  # written by another version
        return []
    spec = results.specs[verdict.fastest]
    ends: dict[str, list[str]] = {"upper": [], "lower": []}
    for key, dimension in space.items():
        if (end := end_of(dimension, key, spec)) is not None:
            ends[end].append(key)
    return [
        f"At the {end} end of what was searched: {' and '.join(keys)} of trial {verdict.fastest}; "
        "a wider range may have better ones."
        for end, keys in ends.items()
        if keys
    ]
