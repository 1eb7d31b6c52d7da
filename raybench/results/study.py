"""Content of a results folder: `study.yaml`, the records, and tables of the records.

Derived results, such as rankings and winners, are computed by functions of a `Study` in `ranking`,
`verdict`, `scaling.cells` and other modules; the decorator `once` caches slow functions.
`raybench.load` returns a subclass of `Study` from `raybench.report.study`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Self, TypeVar

import pandas as pd

from raybench.results.place import is_url, local_path, owner_in
from raybench.results.records import read_records, read_study, uncollected
from raybench.results.storage import fetch
from raybench.results.store import SCALING, STUDY_FILE, StudyKind, study_kind
from raybench.results.trials import curve_table, prediction_table, trial_table
from raybench.spec.documents import validate
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import Metric
from raybench.spec.objective import TIME, Baseline, Objective, baseline_value_of
from raybench.spec.run import RunSpec, describe, label_keys, settings_words
from raybench.spec.scaling_study import ScalingStudy
from raybench.spec.study import target_of
from raybench.spec.text import command_line
from raybench.stats.record import Evaluation, RunRecord


def objective_of(study: Mapping[str, Any]) -> Objective:
    """Return the objective of a study, given the content of its `study.yaml`."""
    return Objective.model_validate(study["study"]["objective"])


def value_at_start(study: Mapping[str, Any]) -> float | None:
    """Return the metric value before training, given the content of a `study.yaml`; see
    `Study.value_at_start`."""
    dataset = study["study"].get("dataset")
    num_classes = dataset.get("num_classes") if isinstance(dataset, dict) else None
    known_classes = num_classes if isinstance(num_classes, int) else None
    return baseline_value_of(objective_of(study), known_classes)


NUM_TRIALS = "num_trials"
"""Key of `study.yaml` for the total number of trials of the search."""


@dataclass(frozen=True, repr=False, eq=False)  # DataFrames cannot be compared as a whole
class Study:
    """Content of a results folder."""

    place: str
    """Folder or URL that the user named."""
    folder: Path
    """The folder itself, or a local copy of the results at the URL."""
    study: dict[str, Any]
    """Content of `study.yaml`."""
    runs: dict[str, RunRecord]
    """Records of the finished runs in the order in which they finished, keyed by name."""
    trials: pd.DataFrame
    """Table of the finished runs, one row per run in the order of `runs`. The columns TRIAL_COLUMNS
    come first, further searched keys last; `raybench.results.trials` describes columns and
    types."""
    curves: pd.DataFrame
    """Table of the evaluations of these runs, one row per evaluation, with the columns
    CURVE_TYPES."""
    predictions: pd.DataFrame
    """Table of predictions by the step-time model, with the columns PREDICTION_COLUMNS: one row for
    each trial and each placement (framework, worker count, batch size per worker, ...) on which the
    trial did not run. Unlike `trials`, these times were not measured."""
    evaluations: Mapping[str, Sequence[Evaluation]] = field(default_factory=dict, repr=False)
    """Evaluations of each run, keyed by its name; `curves` is a table of them."""
    cache: dict[Any, Any] = field(default_factory=dict, init=False)
    """Results that the decorator `once` has cached, keyed by function."""

    @cached_property
    def specs(self) -> dict[str, RunSpec]:
        """Run specs of the finished runs, keyed by name."""
        return {name: run.spec for name, run in self.runs.items()}

    @property
    def name(self) -> str:
        """Name of the study: the last component of the folder or URL."""
        return Path(self.place.partition("?")[0]).name if is_url(self.place) else self.folder.name

    @property
    def target(self) -> float | None:
        """Target value of the metric (accuracy as a fraction). None if there is no target, or until
        reference runs (of default configurations) have set it."""
        return None if self.is_target_awaited else self.objective.target

    @property
    def is_target_awaited(self) -> bool:
        """Whether reference runs have not set the target yet."""
        return target_of(self.study["study"]) is None and self.objective.target is not None

    @cached_property
    def objective(self) -> Objective:
        """Objective of the runs. Until reference runs have set the target, the objective contains a
        placeholder; see `target`."""
        return objective_of(self.study)

    @cached_property
    def metric(self) -> Metric:
        """Metric on the validation split by which runs are compared; columns are named after it."""
        return self.objective.judged_by

    @property
    def value_at_start(self) -> float | None:
        """Metric value before training: the baseline value of the objective, or 1 / number of
        classes for an accuracy without a baseline value; None if unknown."""
        return value_at_start(self.study)

    @cached_property
    def baselines(self) -> dict[str, Baseline]:
        """Baseline (metric of the best constant prediction) for each of the splits `validation` and
        `test`; splits whose baseline is unknown are missing."""
        content = self.study.get("baseline") or {}
        return {
            part: Baseline(**baseline) for part, baseline in content.items() if baseline is not None
        }

    @property
    def has_test(self) -> bool:
        """Whether there is a test split; True if unknown."""
        if (self.study["study"].get("dataset") or {}).get("test_size") == "none":
            return False
        return "validation" not in self.baselines or "test" in self.baselines

    @property
    def is_timed(self) -> bool:
        """Whether runs are compared by their time to target, rather than by the best metric value
        within a budget."""
        return self.objective.kind == TIME

    @property
    def num_trials_asked(self) -> int | None:
        """Total number of trials of the search; None if the search has not begun, or if the study
        has no search."""
        search = self.study["study"].get("search") or {}
        number = self.study.get(NUM_TRIALS, search.get("trials"))
        return number if isinstance(number, int) else None

    @property
    def searched(self) -> tuple[str, ...]:
        """Run-spec keys that the study searched, in the order of its search space."""
        return tuple(self.study["study"].get("space", {}))

    @cached_property
    def kind(self) -> StudyKind:
        """Kind of the study: search, scaling study, imported runs, ..."""
        return study_kind(self.study)

    @property
    def is_scaling(self) -> bool:
        """Whether this is a scaling study, not a search."""
        return self.kind is StudyKind.SCALING

    @property
    def is_imported(self) -> bool:
        """Whether the runs were recorded by another tool and imported."""
        return self.kind is StudyKind.IMPORTED

    @cached_property
    def scaling_study(self) -> ScalingStudy:
        """Scaling study in `study.yaml`; raises UserError if this is not a scaling study."""
        if not self.is_scaling:
            raise UserError(
                f"{self.place}: contains no scaling study; raybench scale runs one.",
                ErrorCode.UNSUPPORTED,
            )
        return validate(ScalingStudy, self.study[SCALING], f"{self.folder / STUDY_FILE}: {SCALING}")

    @cached_property
    def owner(self) -> str | None:
        """Description of the other process that currently writes to the folder; None if there is no
        such process, or for a URL."""
        return None if is_url(self.place) else owner_in(self.folder)

    def command(self, name: str, *arguments: object) -> str:
        """Return a raybench command line, in the form of the command that created this study:
        `raybench NAME` or `python -m raybench.NAME`.

        Args:
            name: Name of the command, such as `report`.
            arguments: Arguments of the command.
        """
        return command_line(name, *arguments, given=str(self.study.get("command", "")))

    def label(self, spec: RunSpec) -> str:
        """Return the label of a configuration, one line of text with the searched keys."""
        return _label(spec, self.study)

    @classmethod
    def load(cls, folder: str | Path, files: Sequence[str] = ()) -> Self:
        """Read a results folder or URL; needs neither Ray nor a framework.

        If a run was interrupted and started again, only its last record counts.

        Args:
            folder: Folder, or URL of an object store, which is copied to a local folder.
            files: Further files to copy from a URL if they exist.

        Raises:
            UserError: `folder` is not a results folder, or its files are invalid.
        """
        place = str(folder)
        folder = fetch(place, files) if is_url(place) else local_path(place)
        with uncollected():
            records, study = read_records(folder), read_study(folder / STUDY_FILE)
            if records.left_out is not None:
                study = study | {"notes": [*study.get("notes", []), records.left_out]}
            metric = objective_of(study).judged_by
            space, fixed = (study["study"].get(key) or {} for key in ("space", "fixed"))
            trials = trial_table(
                records.runs.values(),
                space,
                fixed,
                metric,
                curves=records.curves,
                baseline_value=value_at_start(study),
            )
            if study_kind(study) is StudyKind.IMPORTED:
                # Labels leave out settings that are unknown.
                labels = [_label(run.spec, study) for run in records.runs.values()]
                speeds = trials["samples_per_s"].where(trials["samples"] > 0)
                trials = trials.assign(config=labels, samples_per_s=speeds)
            return cls(
                place=place if is_url(place) else str(folder),
                folder=folder,
                study=study,
                runs=records.runs,
                trials=trials,
                curves=curve_table(records.curves, metric),
                predictions=prediction_table(records.predictions),
                evaluations=records.curves,
            )


def _label(spec: RunSpec, study: Mapping[str, Any]) -> str:
    space = study["study"].get("space", {})
    if study_kind(study) is StudyKind.IMPORTED:
        return settings_words(spec, space)
    return describe(spec, label_keys(space))


T = TypeVar("T")


def once(function: Callable[[Study], T]) -> Callable[[Study], T]:
    """Decorator for a function of a study: the result is computed once and cached in the study."""

    @wraps(function)
    def cached(results: Study) -> T:
        if function not in results.cache:
            results.cache[function] = function(results)
        value: T = results.cache[function]
        return value

    return cached


load = Study.load
