"""A results folder as DataFrames: the entry of notebooks and reports."""

from collections.abc import Sequence
from pathlib import Path

from raybench.results.label import describe as describe
from raybench.results.objective_of import metric_of as metric_of
from raybench.results.objective_of import value_at_start
from raybench.results.place import is_url, local_path
from raybench.results.record_lines import uncollected
from raybench.results.records import read_records, read_study
from raybench.results.remote import fetch
from raybench.results.store import STUDY_FILE
from raybench.results.study_results import StudyResults as StudyResults
from raybench.results.trials import CURVE_COLUMNS as CURVE_COLUMNS
from raybench.results.trials import PREDICTION_COLUMNS as PREDICTION_COLUMNS
from raybench.results.trials import TRIAL_COLUMNS as TRIAL_COLUMNS
from raybench.results.trials import curve_table, prediction_table, trial_table


def load(folder: str | Path, files: Sequence[str] = ()) -> StudyResults:
    """Read a results folder, or what is below a URL now; needs neither Ray nor a framework.

    A run that was interrupted and run again counts once, with its last record. Raises
    UserError where the folder is not a results folder, or its files are of another shape.
    `StudyResults.folder` is a copy where the study is below a URL, with those of `files` that are
    there.
    """
    place = str(folder)
    folder = fetch(place, files) if is_url(place) else local_path(place)
    with uncollected():
        return _loaded(place if is_url(place) else str(folder), folder)


def _loaded(place: str, folder: Path) -> StudyResults:
    records = read_records(folder)
    study = read_study(folder / STUDY_FILE)
    if records.left_out is not None:
        study = study | {"notes": [*study.get("notes", []), records.left_out]}
    metric = metric_of(study)
    space, fixed = (study["study"].get(key) or {} for key in ("space", "fixed"))
    return StudyResults(
        place=place,
        folder=folder,
        study=study,
        runs=records.runs,
        trials=trial_table(
            records.runs.values(),
            space,
            fixed,
            metric,
            curves=records.curves,
            chance=value_at_start(study, metric),
        ),
        curves=curve_table(records.curves, metric),
        predictions=prediction_table(records.predictions),
        evaluations=records.curves,
    )
