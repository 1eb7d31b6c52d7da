"""The answer of a scaling study in sentences: what more workers brought, and how sure that is."""

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
HEADLINES = {"weak": "where each keeps its batch", "strong": "where all keep one batch"}
"""The same for a headline."""


def scaling_answer(cells: pd.DataFrame) -> list[str]:
    """Return a sentence on the best speed-up of each kind of scaling; [] where nothing ran on
    several workers and on one."""
    return [_brings(row) for row in best_gains(cells)]


def scaling_headline(cells: pd.DataFrame) -> str:
    """Return the same in one short sentence; "" where there is none."""
    words, counted = [], None
    for row in best_gains(cells):
        number = row["num_workers"]
        gain = f"{row['speedup']:.2f} times"
        if number != counted:
            gain = f"{number} workers train {gain} as fast as the best single one"
        doubt = " (by the repeats perhaps no gain)" if _is_open(row) else ""
        words.append(f"{gain} {HEADLINES[row['scaling']]}{doubt}")
        counted = number
    return f"{', '.join(words)}." if words else ""


def best_gains(cells: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the cell of the best speed-up of each kind of scaling, weak before strong."""
    known = cells[(cells["n"] > 0) & (cells["num_workers"] > 1) & cells["speedup"].notna()]
    best = known.sort_values("speedup", ascending=False, kind="stable")
    rows = best.drop_duplicates("scaling").to_dict("records")
    return [row for name in SCALINGS for row in rows if row["scaling"] == name]


def _is_open(row: dict[Any, Any]) -> bool:
    """Whether the repeats leave it open that there is a gain; NaN of a single one does not."""
    return bool(row["speedup_low"] <= 1 <= row["speedup_high"])


def _brings(row: dict[Any, Any]) -> str:
    head, batch = SCALINGS[row["scaling"]]
    low, high = row["speedup_low"], row["speedup_high"]
    doubt = ", so it may be no gain" if _is_open(row) else ""
    spread = "" if math.isnan(low) else f" ({low:.2f} to {high:.2f} over repeats{doubt})"
    return (
        f"{head}: {row['num_workers']} workers train {row['speedup']:.2f} times the samples a "
        f"second of the best single one{spread}; efficiency "
        f"{100 * row['efficiency']:.0f} % ({clean(row['series'])}, {batch.format(**row)})."
    )
