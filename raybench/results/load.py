"""A results folder as DataFrames: the entry of notebooks and reports."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from raybench.results.label import describe as describe
from raybench.results.label import label_keys
from raybench.results.shape import read_study
from raybench.results.store import STUDY_FILE, read_records
from raybench.results.trials import CURVE_COLUMNS as CURVE_COLUMNS
from raybench.results.trials import PREDICTION_COLUMNS as PREDICTION_COLUMNS
from raybench.results.trials import TRIAL_COLUMNS as TRIAL_COLUMNS
from raybench.results.trials import curve_table, prediction_table, trial_table


@dataclass(frozen=True)
class StudyResults:
    """What a results folder holds."""

    folder: Path
    study: dict[str, Any]
    """Content of `study.yaml`."""
    trials: pd.DataFrame
    """One row per finished run, in the order they finished; columns TRIAL_COLUMNS first, the
    searched keys that are none of them last. Types: `raybench.results.trials`."""
    curves: pd.DataFrame
    """One row per evaluation of these runs; columns CURVE_COLUMNS."""
    specs: dict[str, dict[str, Any]]
    """Full run spec of every trial."""
    predictions: pd.DataFrame
    """One row per split that a trial was not run on, by the step-time model; columns
    PREDICTION_COLUMNS. Never measured: do not mix with `trials`."""

    @property
    def target(self) -> float | None:
        """Validation accuracy the study asked for, as a fraction."""
        value = self.study["study"]["objective"]["target"]
        return None if value is None else float(value)

    @property
    def searched(self) -> tuple[str, ...]:
        """The keys of the run spec that the study searched, in the order of its space."""
        return tuple(self.study["study"].get("space", {}))

    @cached_property
    def configurations(self) -> pd.DataFrame:
        """One row per configuration, confirmed ones first: what to sort and compare.

        See `raybench.results.ranking.ranking` for the columns.
        """
        # Late: it judges what this module reads.
        from raybench.results.ranking import ranking

        return ranking(self)

    def label(self, spec: dict[str, Any]) -> str:
        """Return a configuration of this study in one line, every searched key in it."""
        return describe(spec, label_keys(self.study["study"].get("space", {})))


def load(folder: str | Path) -> StudyResults:
    """Read a results folder; needs neither Ray nor a framework.

    A run that was interrupted and run again counts once, with its last record. Raises
    UserError where the folder is not a results folder, or its files are of another shape.
    """
    folder = Path(folder)
    runs: dict[str, dict[str, Any]] = {}
    curves: dict[str, list[dict[str, Any]]] = {}
    pending: dict[str, list[dict[str, Any]]] = {}
    predictions: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in read_records(folder):
        name = record["trial"]
        if record["kind"] == "prediction":
            split = name, *(record[key] for key in PREDICTION_COLUMNS[1:4])
            predictions[split] = record
        elif record["kind"] == "run":
            runs.pop(name, None)  # the later record stands at its own place
            runs[name] = record
            curves[name] = pending.pop(name, [])
        elif record["index"] == 0:
            pending[name] = [record]
        else:
            pending.setdefault(name, []).append(record)
    study = read_study(folder / STUDY_FILE)
    space = study["study"].get("space", {})
    return StudyResults(
        folder=folder,
        study=study,
        trials=trial_table(list(runs.values()), space),
        curves=curve_table([point for name in runs for point in curves[name]]),
        specs={name: run["spec"] for name, run in runs.items()},
        predictions=prediction_table(list(predictions.values())),
    )
