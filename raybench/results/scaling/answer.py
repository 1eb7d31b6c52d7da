"""The answer of a scaling study in a sentence: what more workers brought, and how sure that is."""

import math
from typing import Any

import pandas as pd

from raybench.core.text import clean

SCALINGS = {
    "weak": (
        "Each worker keeps its batch (weak scaling)",
        "{batch_size_per_worker:,} samples each",
    ),
    "strong": ("All keep one batch (strong scaling)", "{global_batch_size:,} samples in all"),
}
"""What stays as workers are added, by the kind of scaling, and how large it is."""


def scaling_answer(cells: pd.DataFrame) -> list[str]:
    """Return a sentence on the best speed-up of each kind of scaling; [] where nothing ran on
    several workers and on one."""
    known = cells[(cells["n"] > 0) & (cells["num_workers"] > 1) & cells["speedup"].notna()]
    best = known.sort_values("speedup", ascending=False, kind="stable")
    rows = best.drop_duplicates("scaling").to_dict("records")
    return [_brings(row) for name in SCALINGS for row in rows if row["scaling"] == name]


def _brings(row: dict[Any, Any]) -> str:
    head, batch = SCALINGS[row["scaling"]]
    low, high, doubt = row["speedup_low"], row["speedup_high"], ""
    if not math.isnan(low):
        doubt = f"{low:.2f} to {high:.2f} over repeats; "
        if low <= 1 <= high:
            doubt = f"{low:.2f} to {high:.2f} over repeats, so it may be none; "
    return (
        f"{head}: {row['num_workers']} workers train {row['speedup']:.2f} times the samples a "
        f"second of the best single one, {100 * row['efficiency']:.0f} % of what so many could "
        f"({doubt}{clean(row['series'])}, {batch.format(**row)})."
    )
