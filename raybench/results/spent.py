"""Where the seconds of all runs went, in a line."""

import pandas as pd

from raybench.results.tables import ledger_totals
from raybench.results.words import counted

LEAST = 0.05
"""Share from which on a phase is named."""
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


def ledger_line(trials: pd.DataFrame) -> str:
    """Return the shares of the phases, the largest first; only training counts for a target."""
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
        "Only training counts for the target."
    )
