"""A results folder as DataFrames: the entry of notebooks and reports."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from raybench.core.record import RunRecord
from raybench.core.spec import RunSpec
from raybench.core.study import TIME
from raybench.results.label import describe as describe
from raybench.results.label import label_keys
from raybench.results.place import is_url, local_path
from raybench.results.records import read_records, read_study
from raybench.results.remote import fetch
from raybench.results.store import STUDY_FILE
from raybench.results.trials import CURVE_COLUMNS as CURVE_COLUMNS
from raybench.results.trials import PREDICTION_COLUMNS as PREDICTION_COLUMNS
from raybench.results.trials import TRIAL_COLUMNS as TRIAL_COLUMNS
from raybench.results.trials import curve_table, prediction_table, trial_table


@dataclass(frozen=True)
class StudyResults:
    """What a results folder holds."""

    place: str
    """What the user named: the folder, or a URL."""
    folder: Path
    """The folder, or a copy of what is below the URL."""
    study: dict[str, Any]
    """Content of `study.yaml`."""
    runs: dict[str, RunRecord]
    """The finished runs by name, in the order they finished."""
    trials: pd.DataFrame
    """One row per run, in that order; columns TRIAL_COLUMNS first, the searched keys that are
    none of them last. Types: `raybench.results.trials`."""
    curves: pd.DataFrame
    """One row per evaluation of these runs; columns CURVE_COLUMNS."""
    predictions: pd.DataFrame
    """One row per split that a trial was not run on, by the step-time model; columns
    PREDICTION_COLUMNS. Never measured: do not mix with `trials`."""

    @cached_property
    def specs(self) -> dict[str, RunSpec]:
        """Run spec of every run."""
        return {name: run.spec for name, run in self.runs.items()}

    @property
    def name(self) -> str:
        """The last part of the folder's name, or of the URL."""
        return Path(self.place.partition("?")[0]).name if is_url(self.place) else self.folder.name

    @property
    def target(self) -> float | None:
        """Validation accuracy the study asked for, as a fraction."""
        value = self.study["study"]["objective"]["target"]
        return None if value is None else float(value)

    @property
    def is_timed(self) -> bool:
        """Whether the study is judged by the time to a target, not by accuracy at a budget."""
        return self.target is not None and self.study["study"]["objective"]["kind"] == TIME

    @property
    def searched(self) -> tuple[str, ...]:
        """The keys of the run spec that the study searched, in the order of its space."""
        return tuple(self.study["study"].get("space", {}))

    @cached_property
    def confirmed(self) -> pd.DataFrame:
        """One row per confirmed configuration, best first; see `results.ranking.confirmed`."""
        # Late: it reads what this module makes.
        from raybench.results.ranking import confirmed

        return confirmed(self)

    @cached_property
    def configurations(self) -> pd.DataFrame:
        """One row per configuration, confirmed ones first: what to sort and compare.

        See `raybench.results.ranking.ranking` for the columns.
        """
        from raybench.results.ranking import ranking

        return ranking(self)

    def label(self, spec: RunSpec) -> str:
        """Return a configuration of this study in one line, every searched key in it."""
        return describe(spec, label_keys(self.study["study"].get("space", {})))


def load(folder: str | Path, files: Sequence[str] = ()) -> StudyResults:
    """Read a results folder, or what is below a URL now; needs neither Ray nor a framework.

    A run that was interrupted and run again counts once, with its last record. Raises
    UserError where the folder is not a results folder, or its files are of another shape.
    `StudyResults.folder` is a copy where the study is below a URL, with those of `files` that are
    there.
    """
    place = str(folder)
    folder = fetch(place, files) if is_url(place) else local_path(place)
    records = read_records(folder)
    study = read_study(folder / STUDY_FILE)
    space, fixed = (study["study"].get(key) or {} for key in ("space", "fixed"))
    return StudyResults(
        place=place if is_url(place) else str(folder),
        folder=folder,
        study=study,
        runs=records.runs,
        trials=trial_table(records.runs.values(), space, fixed),
        curves=curve_table(records.curves),
        predictions=prediction_table(records.predictions),
    )
