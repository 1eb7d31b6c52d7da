"""What became of all runs, in sentences: those that failed, where the seconds went, the cost."""

from raybench.core.text import clean, shorten
from raybench.results.failures import failures
from raybench.results.load import StudyResults
from raybench.results.printed import DISTURBED
from raybench.results.tables import ledger_totals
from raybench.results.words import counted, duration, price_of, span_s

LEAST = 0.05
"""Share from which on a phase is named."""
LONGEST = 100
"""Characters of a failure's message."""
IN_WORDS = {
    "queue": "waiting for free workers",
    "start": "starting workers",
    "lost": "lost with workers",
    "setup": "set-up",
    "compile": "compiling",
    "train": "training",
    "eval": "evaluation",
    "checkpoint": "checkpoints",
    "report": "reporting",
    "other": "unexplained",
}


def ledger_line(results: StudyResults) -> str:
    """Return the shares of the phases, the largest first."""
    trials = results.trials
    table = ledger_totals(trials)
    phases = table[(table["phase"] != "sum") & (table["share"] >= LEAST)]
    phases = phases.sort_values("share", ascending=False, kind="stable")
    shares = [
        f"{IN_WORDS[phase]} {100 * share:.0f} %"
        for phase, share in zip(phases["phase"], phases["share"], strict=True)
    ]
    total = float(trials["wall_s"].sum())
    return (
        f"Where the {total:,.0f} s of {counted(len(trials), 'run')} went: {', '.join(shares)}. "
        f"Only training counts{' for the target' if results.is_timed else ''}."
    )


def disturbed_line(results: StudyResults) -> list[str]:
    """Return how many runs others disturbed, and how many of all ran again for it; [] of none."""
    stays = results.trials["is_disturbed"].eq(True).fillna(False)
    again = results.trials["reruns"].fillna(0).gt(0)
    if not (stays | again).any():
        return []
    marked = f"; {stays.sum()} stay so, marked {DISTURBED}: their seconds are too long"
    return [
        f"Disturbed by other processes: {(stays | again).sum()} of "
        f"{counted(len(results.trials), 'run')}, {again.sum()} ran again"
        f"{marked if stays.any() else ''}."
    ]


def failed_line(results: StudyResults) -> list[str]:
    """Return how many runs failed and the most frequent cause; [] without any."""
    broken = failures(results.trials)
    if broken.empty:
        return []
    first = broken.iloc[0]
    most = "" if len(broken) == 1 else f" most often ({counted(first['runs'], 'run')})"
    message = shorten(clean(str(first["for example"])), LONGEST)
    runs = counted(int(broken["runs"].sum()), "run")
    return [f"Failed: {runs},{most} {first['failure']}: {message}"]


def effort_words(results: StudyResults) -> str:
    """Return how many runs there were, how long they trained, what that cost."""
    trials = results.trials
    if trials.empty:
        return "Nothing yet."
    failed = int((trials["state"] == "failed").sum())
    broken = f", {failed} of them failed" if failed else ""
    workers = float((trials["num_workers"] * trials["train_s"]).sum())
    words = (
        f"{counted(len(trials), 'run')}{broken}: {duration(float(trials['train_s'].sum()))} of "
        f"training, {workers:,.3g} worker-seconds"
    )
    span = span_s(results.trials)
    over = f", in {duration(span)} of wall-clock" if span else ""
    return f"{words}{price_of(results, workers)}{over}."
