"""The body of `raybench scale --fit`: measurements and what `--predict` asks for in, models and
predictions out, and how far a model is off at a cell that it did not see.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from raybench.scaling.averaged import (
    STEPS,
    NextCell,
    StepPrediction,
    ThroughputModel,
    least_sure,
    next_cells,
)
from raybench.scaling.measurements import (
    Asked,
    Cell,
    Group,
    Measurements,
    Observed,
    name_of,
    read_rows,
)
from raybench.scaling.network import NetworkRatio
from raybench.scaling.throughput import PRIORS
from raybench.spec.errors import UserError
from raybench.spec.text import clean, counted

MOST_WORKERS = 1_000_000


def check_predict(predict: str | None) -> None:
    """Refuse what no `--predict` can be, before anything runs: only then is known what was
    measured, and on which GPUs."""
    if predict is not None and _worker_numbers(predict) is None:
        read_rows(Path(predict), Asked)


def cells_matched(text: str, measured: Measurements) -> tuple[dict[Group, list[Cell]], list[str]]:
    """Return the cells to predict for each pair that was measured, each once, and a sentence for
    each pair that nobody measured.

    `text` is numbers of workers with commas between them, which are predicted at all batches
    measured, on nodes as full as any seen; or the name of a CSV file, in which an empty model or
    GPU type is every one.
    """
    workers = _worker_numbers(text)
    asked: dict[Group, list[Cell]] = {}
    if workers is not None:
        for group, measurements in measured.groups.items():
            cells = [cell for cell, _ in measurements]
            most = max(cell.num_workers / cell.num_nodes for cell in cells)
            batches = sorted({(cell.batch_size_per_worker, cell.accumulate) for cell in cells})
            asked[group] = [Cell(k, math.ceil(k / most), *one) for k in workers for one in batches]
        return asked, []
    missing: dict[Group, str] = {}
    for number, row in read_rows(Path(text), Asked).items():
        (model, gpu_type), groups = row.group, list(measured.groups)
        groups = [one for one in groups if model in ("", one[0]) and gpu_type in ("", one[1])]
        for group in [row.group] if row.group in groups else groups:
            cells = asked.setdefault(group, [])
            if row.cell not in cells:
                cells.append(row.cell)
        if not groups and row.group not in missing:
            there = ", ".join(name_of(group) or "no names" for group in measured.groups)
            missing[row.group] = (
                f"{clean(text)}, row {number}: {name_of(row.group)} was not measured; "
                f"{measured.source} has {there}."
            )
    return asked, list(missing.values())


def _worker_numbers(text: str) -> list[int] | None:
    """Return numbers of workers; None for the name of a file."""
    if not re.fullmatch(r"[-+.,\s\deE]*", text):
        return None
    numbers = []
    for part in text.split(","):
        digits = part.strip().lstrip("0")
        if not re.fullmatch(r"[0-9]{1,7}", digits) or int(digits) > MOST_WORKERS:
            raise UserError(
                f"--predict {text[:40]}: {part.strip()[:20]!r} is no number of workers; write 1 to "
                f"{MOST_WORKERS:,} with commas between them, such as 8,16,64, or a file."
            )
        numbers.append(int(digits))
    return sorted(set(numbers))


def prediction_table(model: ThroughputModel, cells: Sequence[Cell], group: Group) -> pd.DataFrame:
    """Return a row for each cell.

    | column | holds |
    |---|---|
    | model, gpu_type | the pair, "" where the measurements do not name it |
    | num_workers, num_nodes, batch_size_per_worker, accumulate | the cell |
    | step_s | predicted seconds of an optimizer step |
    | low_s, high_s | nine of ten measurements are between them |
    | samples_per_s | of all workers together |
    | efficiency | samples/s a worker over those of one worker with the same batch, predicted too |
    | extrapolated | whether more workers, more nodes or another batch than any measured |
    """
    rows = [
        {
            "model": group[0],
            "gpu_type": group[1],
            **vars(found.cell),
            "step_s": found.step_s,
            "low_s": found.low_s,
            "high_s": found.high_s,
            "samples_per_s": found.samples_per_s,
            "efficiency": efficiency,
            "extrapolated": is_beyond(model, found.cell),
        }
        for found, efficiency in zip(model.predict(cells), model.efficiency(cells), strict=True)
    ]
    return pd.DataFrame(rows)


def is_beyond(model: ThroughputModel, cell: Cell) -> bool:
    """Say whether a cell is outside of what was measured."""
    seen = model.observed.cells
    batches = [one.batch_size_per_worker for one in seen]
    return (
        cell.num_workers > max(one.num_workers for one in seen)
        or cell.num_nodes > max(one.num_nodes for one in seen)
        or not min(batches) <= cell.batch_size_per_worker <= max(batches)
    )


MOST = 40
"""Cells that are left out, one after the other: enough to tell the median error."""


@dataclass(frozen=True)
class LeftOut:
    """A measured cell, predicted from all others."""

    measured_s: float
    """Median of its repeats."""
    predicted: StepPrediction

    @property
    def error(self) -> float:
        """Relative: 0.1 is predicted 10 % too slow."""
        return self.predicted.step_s / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.predicted.low_s <= self.measured_s <= self.predicted.high_s


def leave_one_out(model: ThroughputModel) -> list[LeftOut]:
    """Return measured cells as the others predict them; nothing for a single one.

    Of more than MOST cells, so many are left out, evenly from the first to the last: each of them
    is a fit.
    """
    observed = model.observed
    number = len(observed.cells)
    if number < 2:
        return []
    seconds = np.exp(observed.log_seconds)
    chosen = np.unique(np.linspace(0, number - 1, min(number, MOST)).round().astype(int))
    return [
        LeftOut(float(seconds[i]), model.without(i).predict([observed.cells[i]])[0])
        for i in map(int, chosen)
    ]


def median_error(cells: list[LeftOut]) -> float:
    """Return the median of the relative errors' sizes."""
    return float(np.median([abs(cell.error) for cell in cells]))


@dataclass(frozen=True)
class FittedGroup:
    """One pair of a model and a GPU type: its fit, how good it is, what was asked."""

    group: Group
    num_rows: int
    model: ThroughputModel
    asked: list[Cell]
    network: NetworkRatio | None = None
    """Network between hosts, where it was measured apart."""

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """Cells as the others predict them."""
        return leave_one_out(self.model)

    @cached_property
    def measure_next(self) -> tuple[Cell, list[NextCell]] | None:
        """The least sure of what was asked beyond any measured, and the cells to measure for it."""
        beyond = [cell for cell in self.asked if is_beyond(self.model, cell)]
        if not beyond:
            return None
        asked = least_sure(self.model, beyond)
        return asked, next_cells(self.model, asked)

    @property
    def predictions(self) -> pd.DataFrame:
        """The table of what was asked; see `prediction_table`."""
        return prediction_table(self.model, self.asked, self.group)

    def words(self) -> list[str]:
        """Return what to know of the fit, in sentences."""
        cells = self.model.observed.cells
        workers = sorted({cell.num_workers for cell in cells})
        nodes = max(cell.num_nodes for cell in cells)
        on = f"up to {nodes} nodes" if nodes > 1 else "one node"
        shown = workers if len(workers) <= 8 else [*workers[:3], "...", workers[-1]]
        numbers = ", ".join(map(str, shown))
        lines = [
            f"{self.num_rows} rows, {len(cells)} cells: {numbers} workers, {on}.",
            _quality(self.left_out, len(cells)),
        ]
        unseen, more = "", ""
        if any(cell.num_workers > 1 for cell in self.asked) and workers == [1]:
            unseen = "worker: what the exchange costs"
        elif any(cell.num_nodes > 1 for cell in self.asked) and nodes == 1 and not self.network:
            unseen = "node: what the network costs"
            more = "; a run of two workers on two nodes helps"
        if unseen:
            lines.append(
                f"Never measured on more than one {unseen} is a guess from what is usual, and the "
                f"intervals are as wide{more}."
            )
        if self.network is not None:
            lines.append(self.network.words())
        if self.measure_next is not None and self.measure_next[1]:
            lines.append(_next_words(self.model, *self.measure_next))
        return lines


def fits(
    measured: Measurements, asked: dict[Group, list[Cell]], network: NetworkRatio | None = None
) -> Iterator[FittedGroup]:
    """Fit each group of measurements, with what is asked of it."""
    priors = PRIORS if network is None else network.priors
    for group, rows in measured.groups.items():
        model = ThroughputModel.fit(Observed.of(rows), priors)
        cells = asked.get(group, [])
        yield FittedGroup(group, len(rows), model, cells, network)


def _next_words(model: ThroughputModel, asked: Cell, cells: Sequence[NextCell]) -> str:
    (now,) = model.predict([asked])
    each = [
        f"{place_of(one.cell)} (to ±{one.spread:.0%}; {STEPS} steps are {one.worker_seconds:,.3g} "
        "worker-seconds)"
        for one in cells
    ]
    return (
        f"Least sure is {place_of(asked)}, ±{now.spread:.0%}; measure next {', then '.join(each)}."
    )


def place_of(cell: Cell) -> str:
    """Return where a cell's step runs, and on what, in words."""
    on = f" on {cell.num_nodes} nodes" if cell.num_nodes > 1 else ""
    return f"{counted(cell.num_workers, 'worker')}{on}, batch {cell.batch_size_per_worker} each"


def _quality(left_out: list[LeftOut], num_cells: int) -> str:
    if not left_out:
        return "Leave-one-out error: none, there is one cell; the prediction is what is usual."
    worst = max(left_out, key=lambda one: abs(one.error))
    cell = worst.predicted.cell
    inside = np.mean([one.is_inside for one in left_out])
    of = f" ({len(left_out)} of the cells)" if len(left_out) < num_cells else ""
    return (
        f"Leave-one-out error{of}: median {median_error(left_out):.1%}, worst {worst.error:+.1%} "
        f"({cell.num_workers} workers, batch {cell.batch_size_per_worker} a worker); "
        f"{inside:.0%} of the measured steps in their 90 % interval."
    )
