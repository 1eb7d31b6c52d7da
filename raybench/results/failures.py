"""Failed runs by cause: two of one cause differ in numbers only."""

import re

import pandas as pd

from raybench.results.files import ERRORS_FOLDER

NUMBERS = re.compile(rf"\S*\b{ERRORS_FOLDER}/\S+|0x[0-9a-fA-F]+|\d+(?:\.\d+)?")

LONGEST = 2000
"""Characters of a message by which causes are told apart."""


def cause_of(failure: str, message: str | None) -> str:
    """Return the same text for failures of one cause, whatever numbers (sizes, pids, the trial's
    own file) their messages hold."""
    return f"{failure}: {NUMBERS.sub('#', (message or '')[:LONGEST])}"


def failures(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the distinct causes of failed runs, the most frequent first.

    Columns: failure, runs (how many), for example (the first one's message).
    """
    failed = trials[trials["state"] == "failed"]
    rows: dict[str, dict[str, str | int]] = {}
    for failure, message in zip(failed["failure"], failed["message"], strict=True):
        row = rows.setdefault(
            cause_of(failure, message),
            {"failure": failure, "runs": 0, "for example": message or "no message"},
        )
        row["runs"] = int(row["runs"]) + 1
    table = pd.DataFrame(rows.values(), columns=["failure", "runs", "for example"])
    return table.sort_values("runs", ascending=False, kind="stable", ignore_index=True)
