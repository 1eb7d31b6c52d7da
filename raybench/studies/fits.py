"""Throughput models of a scaling study, one for each series and model of GPU that was measured;
and `raybench scale --fit`: anyone's measurements, fitted, shown, and the predictions written.
"""

import sys
from collections import defaultdict
from pathlib import Path

from raybench.core.errors import UserError
from raybench.core.scaling_study import study_cells
from raybench.core.spec import RunSpec
from raybench.core.text import clean
from raybench.results.console import make_console, say
from raybench.results.load import StudyResults
from raybench.results.scaling.kinds import series_of
from raybench.scaling.asked import cells_matched, check_asked
from raybench.scaling.cells import Cell
from raybench.scaling.csv_table import Group
from raybench.scaling.fit_command import FittedGroup, check_out, fit_groups, fits, write_predictions
from raybench.scaling.measurements import Measurements
from raybench.studies.show_fit import show_fit


def fit_to_files(file: Path, predict: str | None, out: Path | None) -> None:
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
        show_fit(console, fitted, tables[-1])
    if out is not None:
        write_predictions(out, tables)
        say(console, f"predictions: {out}")


DOUBLINGS = 2
"""Of the most workers measured, which are predicted where nothing else is asked."""
LEAST_CELLS = 3
"""Of a series: one can be left out then, and the others still say something."""


def fit_study(results: StudyResults, predict: str | None) -> list[FittedGroup]:
    """Fit the steps of each series, and predict: at numbers of workers, or the cells of a file.

    Without `predict`, at the next doublings of the most workers measured. Series of fewer than
    LEAST_CELLS, or on one number of workers, say too little of how a training scales: no fit. Pairs
    of the file that the study has not measured are left out: `not_measured` names them.
    """
    measured = measurements(results)
    if not measured.groups:
        return []
    if predict is None:
        most = max(cell.num_workers for rows in measured.groups.values() for cell, _ in rows)
        predict = ",".join(str(most * 2 ** (i + 1)) for i in range(DOUBLINGS))
    asked, _ = cells_matched(predict, measured)
    return list(fits(measured, asked))


def not_measured(results: StudyResults, predict: str | None) -> list[str]:
    """Return a sentence for each pair that is to be predicted and has no fit."""
    measured = measurements(results)
    if predict is None or not measured.groups:
        return []
    return [f"Not predicted: {one}." for one in cells_matched(predict, measured)[1]]


def measurements(results: StudyResults) -> Measurements:
    """Return what a study measured of each series that can be fitted: a row a repeat.

    Runs that exchange no gradients are left out: they are probes, no training. So are those whose
    batch is larger than an epoch: no step ever had as many samples as the cell says.
    """
    specs = specs_of(results)
    series = dict(zip(specs, series_of(list(specs.values())), strict=True))
    groups: dict[Group, list[tuple[Cell, float]]] = defaultdict(list)
    for row in results.scaling_runs.to_dict("records"):
        spec = specs[row["cell"]]
        is_whole = spec.global_batch_size <= row["epoch_samples"]
        if row["step_median_s"] > 0 and spec.exchange_gradients and is_whole:
            cell = Cell(
                spec.num_workers,
                max(int(row["num_nodes"]), 1),
                spec.batch_size_per_worker,
                spec.accumulate,
            )
            key = series[row["cell"]], str(row["accelerators"])
            groups[key].append((cell, float(row["step_median_s"])))
    fitting = {key: rows for key, rows in groups.items() if _can_be_fitted(rows)}
    return Measurements(results.place, fitting)


def _can_be_fitted(rows: list[tuple[Cell, float]]) -> bool:
    cells = {cell for cell, _ in rows}
    return len(cells) >= LEAST_CELLS and len({cell.num_workers for cell in cells}) > 1


def check_predict(predict: str | None) -> None:
    """Refuse what no `--predict` can be, before anything runs: only then is known what was
    measured, and on which GPUs."""
    if predict is not None:
        check_asked(predict)


def specs_of(results: StudyResults) -> dict[str, RunSpec]:
    """Return the run spec of every cell, by its name."""
    return {cell.name: cell.spec for cell in study_cells(results.scaling_study)}
