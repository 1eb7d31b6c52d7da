"""A results folder read from disk: what `study.yaml` says, the records, and tables of them.

What is computed from a study is a function of it, in `ranking`, `verdict`, `scaling.cells`, ...;
`once` keeps what takes long. `raybench.report.study` is the study that `raybench.load` returns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Self, TypeVar

import pandas as pd

from raybench.results.lock import owner_in
from raybench.results.place import is_url, local_path
from raybench.results.records import read_records, read_study, uncollected
from raybench.results.storage import fetch
from raybench.results.store import SCALING, STUDY_FILE
from raybench.results.trials import curve_table, prediction_table, trial_table
from raybench.spec.documents import validate
from raybench.spec.errors import UserError
from raybench.spec.metric import Metric
from raybench.spec.objective import TIME, Baseline, Objective, baseline_value_of
from raybench.spec.run import RunSpec, describe, label_keys
from raybench.spec.scaling_study import ScalingStudy
from raybench.spec.study import target_of
from raybench.spec.text import command_line
from raybench.stats.record import Evaluation, RunRecord


def objective_of(study: Mapping[str, Any]) -> Objective:
    """Return the objective of a `study.yaml`."""
    return Objective.model_validate(study["study"]["objective"])


def value_at_start(study: Mapping[str, Any]) -> float | None:
    """Return what the metric is before a run has begun; see `Study.value_at_start`."""
    dataset = study["study"].get("dataset")
    num_classes = dataset.get("num_classes") if isinstance(dataset, dict) else None
    known = num_classes if isinstance(num_classes, int) else None
    return baseline_value_of(objective_of(study), known)


NUM_TRIALS = "num_trials"
"""Key of `study.yaml`: trials that its search has in all."""


@dataclass(frozen=True, repr=False, eq=False)  # DataFrames are not equal or unequal as a whole
class Study:
    """Content of a results folder."""

    place: str
    """Folder or URL that the user named."""
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
    """Evaluations of each run; `curves` is a table of them."""
    kept: dict[Any, Any] = field(default_factory=dict, init=False)
    """Results of functions that are computed once: see `once`."""

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
        """Value of the metric that the study asked for; of an accuracy as a fraction. None without
        one, and where reference runs have yet to set it."""
        return None if self.is_target_awaited else self.objective.target

    @property
    def is_target_awaited(self) -> bool:
        """Whether reference runs have yet to set the target."""
        return target_of(self.study["study"]) is None and self.objective.target is not None

    @cached_property
    def objective(self) -> Objective:
        """Objective of the runs; its target may be one that stands for `auto` (see `target`)."""
        return objective_of(self.study)

    @cached_property
    def metric(self) -> Metric:
        """Metric by which the study is judged, on the validation set: the columns have its name."""
        return self.objective.judged_by

    @property
    def baseline_value(self) -> float | None:
        """Value of an answer that does not look at the inputs; None where it is not known."""
        return self.objective.baseline_value

    @property
    def value_at_start(self) -> float | None:
        """Value of the metric before a run has begun, as the race takes it: the baseline value, or
        of an accuracy without one, one over the number of classes."""
        return value_at_start(self.study)

    @cached_property
    def baselines(self) -> dict[str, Baseline]:
        """Values of guessing on the rows of `validation` and `test`, where they are known."""
        found = self.study.get("baseline") or {}
        return {part: Baseline(**one) for part, one in found.items() if one is not None}

    @property
    def has_test(self) -> bool:
        """Whether there is a test split; True where nobody knows."""
        if (self.study["study"].get("dataset") or {}).get("test_size") == "none":
            return False
        return "validation" not in self.baselines or "test" in self.baselines

    @property
    def is_timed(self) -> bool:
        """Whether the study is judged by the time to a target, not by what a budget reaches."""
        return self.objective.kind == TIME and self.objective.target is not None

    @property
    def hold(self) -> int:
        """Evaluations in a row that must be at the target."""
        return self.objective.hold

    @property
    def num_trials_asked(self) -> int | None:
        """Trials that the study's search has in all; None where it is none, or has not begun."""
        search = self.study["study"].get("search") or {}
        asked = self.study.get(NUM_TRIALS, search.get("trials"))
        return asked if isinstance(asked, int) else None

    @property
    def searched(self) -> tuple[str, ...]:
        """The keys of the run spec that the study searched, in the order of its space."""
        return tuple(self.study["study"].get("space", {}))

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
    def owner(self) -> str | None:
        """Process that works in the folder now, in words; None where nobody does, and of a URL."""
        return None if is_url(self.place) else owner_in(self.folder)

    def command(self, name: str, *arguments: object) -> str:
        """Return a command of ours about this study, in the words in which that was begun."""
        return command_line(name, *arguments, given=str(self.study.get("command", "")))

    def label(self, spec: RunSpec) -> str:
        """Return a configuration of this study in one line, every searched key in it."""
        return describe(spec, label_keys(self.study["study"].get("space", {})))

    @classmethod
    def load(cls, folder: str | Path, files: Sequence[str] = ()) -> Self:
        """Read a results folder, or what is below a URL now; needs neither Ray nor a framework.

        A run that was interrupted and run again counts once, with its last record. Raises
        UserError where the folder is not a results folder, or its files are of another shape.
        Of a study below a URL `.folder` is a copy, with those of `files` that are there.
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


T = TypeVar("T")


def once(function: Callable[[Study], T]) -> Callable[[Study], T]:
    """Compute what a function returns of a study once, and keep it with the study."""

    @wraps(function)
    def kept(results: Study) -> T:
        if function not in results.kept:
            results.kept[function] = function(results)
        value: T = results.kept[function]
        return value

    return kept


def load(folder: str | Path, files: Sequence[str] = ()) -> Study:
    """Read a results folder: see `Study.load`."""
    return Study.load(folder, files)
