"""A results folder as DataFrames: the entry of notebooks and reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from raybench.core.documents import validate
from raybench.core.errors import UserError
from raybench.core.metric import ACCURACY, Metric, named_metric
from raybench.core.objective import OTHER_KINDS
from raybench.core.record import Evaluation, RunRecord
from raybench.core.scaling_study import ScalingStudy, study_cells
from raybench.core.spec import RunSpec
from raybench.core.study import TIME
from raybench.results.label import describe as describe
from raybench.results.label import label_keys
from raybench.results.place import is_url, local_path
from raybench.results.records import read_records, read_study
from raybench.results.remote import fetch
from raybench.results.store import SCALING, STUDY_FILE
from raybench.results.trials import CURVE_COLUMNS as CURVE_COLUMNS
from raybench.results.trials import PREDICTION_COLUMNS as PREDICTION_COLUMNS
from raybench.results.trials import TRIAL_COLUMNS as TRIAL_COLUMNS
from raybench.results.trials import curve_table, prediction_table, trial_table

if TYPE_CHECKING:
    from raybench.results.repeated import Repeated


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
    evaluations: Mapping[str, Sequence[Evaluation]] = field(default_factory=dict, repr=False)
    """Those of each run; `curves` is a table of them."""

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
        """Value of the metric that the study asked for; of an accuracy as a fraction."""
        value = self.study["study"]["objective"]["target"]
        return None if value is None else float(value)

    @cached_property
    def metric(self) -> Metric:
        """What the study is judged by, on the validation set: the columns have its name."""
        return metric_of(self.study)

    @property
    def chance(self) -> float | None:
        """What an answer that does not look at the inputs reaches; None where nobody knows."""
        value = self.study["study"]["objective"].get("chance")
        return None if value is None else float(value)

    @property
    def value_at_start(self) -> float | None:
        """What the metric is before a run has begun, as the race takes it: `chance`, of an accuracy
        of which nobody has said it one over the number of classes."""
        return _value_at_start(self.study, self.metric)

    @property
    def is_timed(self) -> bool:
        """Whether the study is judged by the time to a target, not by what a budget reaches."""
        kind = self.study["study"]["objective"]["kind"]
        return self.target is not None and OTHER_KINDS.get(kind, kind) == TIME

    @property
    def searched(self) -> tuple[str, ...]:
        """The keys of the run spec that the study searched, in the order of its space."""
        return tuple(self.study["study"].get("space", {}))

    @cached_property
    def repeated(self) -> "dict[str, Repeated]":
        """The configurations that were trained again; see `results.repeated`."""
        # Late: it reads what this module makes.
        from raybench.results.repeated import repeated

        return repeated(self)

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

    @cached_property
    def importance(self) -> pd.DataFrame:
        """One row per searched key, what matters most first; see `results.analyses.importance`."""
        from raybench.results.analyses.importance import importance

        keys = [key for key in self.searched if key in self.trials]
        return importance(self.trials, keys, self.metric)

    @property
    def is_scaling(self) -> bool:
        """Whether this is a scaling study, not a search."""
        return SCALING in self.study

    @cached_property
    def scaling_study(self) -> ScalingStudy:
        """The scaling study, as `study.yaml` has it; UserError if the folder holds none."""
        if not self.is_scaling:
            raise UserError(
                f"{self.place}: holds no scaling study; python -m raybench.scale makes one."
            )
        return validate(ScalingStudy, self.study[SCALING], f"{self.folder / STUDY_FILE}: {SCALING}")

    @cached_property
    def scaling(self) -> pd.DataFrame:
        """One row per cell of a scaling study; see `raybench.results.scaling.cells`."""
        from raybench.results.scaling.cells import cell_table

        return cell_table(self.scaling_study, self.runs, self.evaluations)

    @cached_property
    def scaling_runs(self) -> pd.DataFrame:
        """One row per run of a scaling study; see `raybench.results.scaling.runs`."""
        from raybench.results.scaling.runs import run_table

        study = self.scaling_study
        metric = study.base.objective.judged_by
        return run_table(study_cells(study), self.runs, self.evaluations, metric)

    def label(self, spec: RunSpec) -> str:
        """Return a configuration of this study in one line, every searched key in it."""
        return describe(spec, label_keys(self.study["study"].get("space", {})))


def metric_of(study: Mapping[str, Any]) -> Metric:
    """Return the metric of a `study.yaml`; accuracy where it is of a version that had no other."""
    objective = study["study"]["objective"]
    if objective.get("metric") is None:
        return ACCURACY
    return named_metric(
        objective["metric"],
        objective.get("direction") or "max",
        is_share=bool(objective.get("is_share")),
    )


def _value_at_start(study: Mapping[str, Any], metric: Metric) -> float | None:
    content = study["study"]
    chance = content["objective"].get("chance")
    if chance is not None or metric != ACCURACY:
        return None if chance is None else float(chance)
    dataset = content.get("dataset")
    num_classes = dataset.get("num_classes") if isinstance(dataset, dict) else None
    return 1.0 / num_classes if isinstance(num_classes, int) and num_classes > 0 else None


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
    metric = metric_of(study)
    space, fixed = (study["study"].get(key) or {} for key in ("space", "fixed"))
    return StudyResults(
        place=place if is_url(place) else str(folder),
        folder=folder,
        study=study,
        runs=records.runs,
        trials=trial_table(
            records.runs.values(),
            space,
            fixed,
            metric,
            curves=records.curves,
            chance=_value_at_start(study, metric),
        ),
        curves=curve_table(records.curves, metric),
        predictions=prediction_table(records.predictions),
        evaluations=records.curves,
    )
