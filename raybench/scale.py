"""`python -m raybench.scale --fit FILE.csv`: fit measured step times, predict other cells."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from raybench import cli
from raybench.core.errors import UserError
from raybench.core.text import clean
from raybench.results.console import make_console, say
from raybench.results.printed import print_frame
from raybench.scaling.fit_command import FittedGroup, check_out, fit_groups, write_predictions
from raybench.scaling.measurements import name_of

MOST_PRINTED = 40


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench scale", description=__doc__)
    result.add_argument(
        "--fit",
        type=Path,
        required=True,
        metavar="FILE.csv",
        help="measured steps: columns num_workers, num_nodes, batch_size_per_worker, step_s; also "
        "read: accumulate (passes of a step), model, gpu_type (one fit for each pair of them); "
        "rows of the same cell are repeats",
    )
    result.add_argument(
        "--predict",
        metavar="8,16,64|FILE.csv",
        help="numbers of workers: at every batch size measured, on nodes as full as the fullest "
        "measured; or a CSV of cells with the columns of --fit but step_s",
    )
    result.add_argument(
        "--out",
        type=Path,
        metavar="PREDICTIONS.csv",
        help="write the predictions: step_s, low_s and high_s (90 %%), samples_per_s, efficiency",
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parser().parse_args(arguments)
    return cli.run_command(lambda: fit(options.fit, options.predict, options.out))


def fit(file: Path, predict: str | None, out: Path | None) -> int:
    """Fit each group, print how good it is and what it predicts, write the predictions."""
    if out is not None:
        if predict is None:
            raise UserError(
                f"--out {clean(str(out))}: there is nothing to write without --predict."
            )
        check_out(out, file)
    console, tables = make_console(sys.stdout), []
    for fitted in fit_groups(file, predict):
        tables.append(fitted.predictions)
        show(console, fitted, tables[-1])
    if out is not None:
        write_predictions(out, tables)
        say(console, f"predictions: {out}")
    return cli.DONE


def show(console: Console, fitted: FittedGroup, table: pd.DataFrame) -> None:
    """Print what to know of a fit, and its predictions."""
    name = name_of(fitted.group)
    for line in [*([f"{name}:"] if name else []), *fitted.words()]:
        say(console, line)
    if len(table):
        below = "~ beyond what was measured" if table["extrapolated"].any() else ""
        more = len(table) - MOST_PRINTED
        if more > 0:
            below = ". ".join(filter(None, [below, f"{more} more rows are left out here"]))
        title = f"Predicted{f': {name}' if name else ''}"
        print_frame(console, _printed(table.head(MOST_PRINTED)), title, below=below)
    else:
        console.print()


def _printed(table: pd.DataFrame) -> pd.DataFrame:
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
        "efficiency": [f"{value:.0%}" for value in table["efficiency"]],
    }
    if table["accumulate"].eq(1).all():
        del columns["accumulate"]
    return pd.DataFrame(columns)


if __name__ == "__main__":
    sys.exit(main())
