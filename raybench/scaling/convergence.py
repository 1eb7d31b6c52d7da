"""What runs at several batch sizes needed to reach a target: read, checked, one row a batch size.

A table (CSV or DataFrame) has a row per run:

| column | holds |
|---|---|
| batch_size | the global batch size |
| samples_to_target | training samples until the target was met; empty: it never was |
| samples_spent | optional: samples trained in all, for runs that never reached it |

Epochs or tokens do as well as samples, if all rows hold the same. Other columns are left alone,
but for `optimizer`: a change of it between batch sizes is said.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from raybench.spec.errors import UserError

Floats = npt.NDArray[np.float64]
REQUIRED = ("batch_size", "samples_to_target")
LEAST_SPREAD = 0.01
"""Of a run's logarithm: evaluations on a grid can make all runs of a batch size look equal."""


@dataclass(frozen=True)
class BatchSize:
    """The runs at one batch size."""

    batch_size: int
    num_runs: int
    num_reached: int
    samples: float | None
    """Median samples to target over the runs, those that did not reach it included; None where
    too few did for a median."""
    at_least: float | None
    """Where there is no median: what it is above at least, if the runs tell."""


@dataclass(frozen=True)
class Convergence:
    """All runs, by batch size."""

    batch_sizes: tuple[BatchSize, ...]
    """Smallest first."""
    spread: float
    """Standard deviation of the logarithm of one run's samples; 0 where no size was repeated."""
    notes: tuple[str, ...] = ()
    """Sentences on what limits the table."""

    def without(self, batch_size: int) -> "Convergence":
        """Return the other batch sizes."""
        rest = tuple(b for b in self.batch_sizes if b.batch_size != batch_size)
        return Convergence(rest, self.spread, self.notes)


def read(table: pd.DataFrame | Path | str) -> Convergence:
    """Read and check a table; a mistake in it is a UserError that names the row and column."""
    if isinstance(table, pd.DataFrame):
        name, first = "the table", 1
    else:
        name, first, table = str(table), 2, _from_file(Path(table))
    missing = [column for column in REQUIRED if column not in table.columns]
    if missing:
        found = ", ".join(map(str, table.columns)) or "none"
        raise UserError(f"{name}: no column {missing[0]!r}; its columns are: {found}")
    if table.empty:
        raise UserError(f"{name}: no rows; one row per run is needed")
    batch = _numbers(table, "batch_size", name, first)
    samples = _numbers(table, "samples_to_target", name, first)
    spent = (
        _numbers(table, "samples_spent", name, first)
        if "samples_spent" in table.columns
        else np.full(len(table), np.nan)
    )
    for row, value in enumerate(batch):
        if not value == np.floor(value):  # also where it is missing
            raise UserError(
                f"{name}, row {row + first}: batch_size must be a whole number, the global batch"
            )
    sizes = []
    for value in np.unique(batch):
        here = batch == value
        sizes.append(_batch_size(int(value), samples[here], spent[here]))
    if not any(size.samples for size in sizes):
        raise UserError(
            f"{name}: at no batch size did most runs reach the target; train longer, or choose a "
            "target that is reached"
        )
    return Convergence(tuple(sizes), _spread(batch, samples, sizes), _notes(table, sizes))


def _from_file(path: Path) -> pd.DataFrame:
    try:
        # As text: a number that is none is then named as it stands in the file.
        return pd.read_csv(path, dtype=str, skipinitialspace=True, skip_blank_lines=False)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: is not a CSV file with a line of column names ({error})"
        ) from error


def _numbers(table: pd.DataFrame, column: str, name: str, first: int) -> Floats:
    """Return a column as numbers above zero, NaN where it is empty."""
    numbers = pd.to_numeric(table[column], errors="coerce").to_numpy(dtype=float)
    for row, (given, number) in enumerate(zip(table[column], numbers, strict=True)):
        if not pd.isna(given) and not 0 < number < np.inf:
            raise UserError(
                f"{name}, row {row + first}: {column} is {str(given)!r}; it must be a number above "
                "0" + ("" if column == "batch_size" else ", or empty")
            )
    return np.asarray(numbers)


def _batch_size(value: int, samples: Floats, spent: Floats) -> BatchSize:
    reached = np.isfinite(samples)
    # A run of unknown length that missed may have been given up at once or after long.
    lasted = np.where(reached, samples, np.where(np.isfinite(spent), spent, np.inf))
    median = _median(lasted, reached)
    bound = float(np.median(np.where(np.isfinite(lasted), lasted, 0.0)))
    at_least = bound if median is None and bound > 0 else None
    return BatchSize(value, len(samples), int(reached.sum()), median, at_least)


def _median(lasted: Floats, reached: npt.NDArray[np.bool_]) -> float | None:
    """Return Kaplan and Meier's median (1958): runs that were given up count until then."""
    order = np.lexsort((~reached, lasted))
    share, half = 1.0, None
    for rank, run in enumerate(order):
        if not reached[run]:
            continue
        if half is not None:
            return (half + float(lasted[run])) / 2
        share *= 1 - 1 / (len(order) - rank)
        if share < 0.5 - 1e-9:
            return float(lasted[run])
        if share < 0.5 + 1e-9:
            half = float(lasted[run])
    return None


def _spread(batch: Floats, samples: Floats, sizes: list[BatchSize]) -> float:
    """Return a run's standard deviation: what 68 % of all runs are within of their median.

    Robust against single runs; the median deviation would be 0 where evaluations are coarse.
    """
    away: list[float] = []
    for size in sizes:
        runs = samples[(batch == size.batch_size) & np.isfinite(samples)]
        if size.samples is not None and len(runs) > 1:
            few = np.sqrt(len(runs) / (len(runs) - 1))
            away += list(few * np.abs(np.log(runs / size.samples)))
    return max(float(np.quantile(away, 0.683)), LEAST_SPREAD) if away else 0.0


def _notes(table: pd.DataFrame, sizes: list[BatchSize]) -> tuple[str, ...]:
    notes = []
    optimizers = set(table["optimizer"].dropna()) if "optimizer" in table.columns else set()
    if len(optimizers) > 1:
        names = ", ".join(sorted(map(str, optimizers)))
        notes.append(
            f"The optimizer is not the same in all runs ({names}): the curve mixes them; fit each "
            "by itself to tell them apart."
        )
    missed = [str(size.batch_size) for size in sizes if size.samples is None]
    if missed:
        notes.append(
            f"Most runs missed the target at batch size {', '.join(missed)}: the curve knows only "
            "that these need more than was spent, where that is given."
        )
    return tuple(notes)
