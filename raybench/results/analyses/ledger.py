"""Where the seconds of a study went."""

import pandas as pd

from raybench.core.clock import OTHER, PHASES
from raybench.results.analyses.frames import need


def ledger_totals(trials: pd.DataFrame) -> pd.DataFrame:
    """Return where the seconds of all runs went: phase, seconds, share of the sum of walls.

    `other` is what no phase accounts for; with it the rows sum to the walls.
    """
    need(trials, "trials", ("train_s",), known=("wall_s",))
    seconds = {phase: float(trials[f"{phase}_s"].sum()) for phase in (*PHASES, OTHER)}
    wall = float(trials["wall_s"].sum())
    rows = [
        {"phase": phase, "seconds": value, "share": value / wall if wall else 0.0}
        for phase, value in seconds.items()
    ]
    total = sum(seconds.values())
    rows.append({"phase": "sum", "seconds": total, "share": total / wall if wall else 0.0})
    return pd.DataFrame(rows)
