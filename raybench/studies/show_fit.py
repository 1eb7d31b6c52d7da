"""A fitted throughput model in words and numbers: how good it is, what it predicts."""

import pandas as pd
from rich.console import Console

from raybench.results.console import say_wrapped
from raybench.results.tables import print_frame
from raybench.scaling.fit_command import FittedGroup
from raybench.scaling.measurements import name_of

MOST_PRINTED = 40
BASELINE = (
    "same-batch efficiency: samples/s a worker over those predicted for one worker with the same "
    "batch, not for the best one"
)
"""Not that of measured cells, whose efficiency is over the best cell of one worker."""


def show_fit(console: Console, fitted: FittedGroup, table: pd.DataFrame) -> None:
    """Print what to know of a fit, and its predictions."""
    name = name_of(fitted.group)
    for line in [*([f"{name}:"] if name else []), *fitted.words()]:
        say_wrapped(console, line)
    if len(table):
        below = BASELINE
        if table["extrapolated"].any():
            below = f"~ beyond what was measured. {below}"
        more = len(table) - MOST_PRINTED
        if more > 0:
            below = f"{below}. {more} more rows are left out here"
        title = f"Predicted{f': {name}' if name else ''}"
        print_frame(console, printed_fit(table.head(MOST_PRINTED)), title, below=below)
    else:
        console.print()


def printed_fit(table: pd.DataFrame) -> pd.DataFrame:
    """Return predictions in their units, those beyond what was measured with a `~`."""
    marks = ["~" if beyond else "" for beyond in table["extrapolated"]]
    columns = {
        "~": marks,
        "workers": table["num_workers"],
        "nodes": table["num_nodes"],
        "batch per worker": table["batch_size_per_worker"],
        "accumulate": table["accumulate"],
        "step s": [f"{value:.4g}" for value in table["step_s"]],
        "90 % interval": [
            f"{low:.4g} to {high:.4g}"
            for low, high in zip(table["low_s"], table["high_s"], strict=True)
        ],
        "samples/s": table["samples_per_s"].round(1),
        "same-batch efficiency": [f"{value:.0%}" for value in table["efficiency"]],
    }
    if table["accumulate"].eq(1).all():
        del columns["accumulate"]
    return pd.DataFrame(columns)
