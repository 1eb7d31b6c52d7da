"""How a study's cost grows with its trials, as a table and a picture."""

import argparse
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure


def parser(about: str) -> argparse.ArgumentParser:
    """Return the arguments of a benchmark of many trials; `about` is its docstring."""
    result = argparse.ArgumentParser(description=about.splitlines()[0])
    result.add_argument("--trials", type=int, default=10_000)
    result.add_argument("--at-once", type=int, default=256)
    result.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return result


def table_lines(table: pd.DataFrame) -> list[str]:
    """Return the rows as Markdown."""
    lines = [f"| {' | '.join(table.columns)} |", "|---" * len(table.columns) + "|"]
    return lines + [
        f"| {' | '.join(f'{value:.4g}' for value in row)} |"
        for row in table.itertuples(index=False)
    ]


def draw(table: pd.DataFrame, parts: tuple[str, ...], path: Path) -> None:
    """Draw CPU (columns `ms a PART`) and memory (column `MB`) over the column `trials`."""
    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for part in parts:
        above.plot(table["trials"], table[f"ms a {part}"], label=f"a {part}")
    above.set(ylabel="CPU of the driver [ms]", yscale="log")
    above.legend(frameon=False)
    below.plot(table["trials"], table["MB"])
    below.set(xlabel="trials that have ended", ylabel="resident memory [MB]", ylim=(0, None))
    figure.savefig(path, dpi=90)
