"""A results folder as an object: a study's frames, its winner, its figures.

`Chosen` is a trial of it: its spec, the command that trains it again, and the training.
"""

import difflib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from raybench.results.analyses import Analysed
from raybench.results.lock import owner_in
from raybench.results.place import is_url, local_path
from raybench.results.records import read_records, read_study, uncollected
from raybench.results.storage import fetch
from raybench.results.store import SCALING, STUDY_FILE, WINNERS
from raybench.results.trials import CURVE_COLUMNS as CURVE_COLUMNS
from raybench.results.trials import PREDICTION_COLUMNS as PREDICTION_COLUMNS
from raybench.results.trials import TRIAL_COLUMNS as TRIAL_COLUMNS
from raybench.results.trials import curve_table, prediction_table, trial_table
from raybench.spec.documents import read_mapping, validate
from raybench.spec.errors import WRONG_INPUT, StudyError, UserError
from raybench.spec.metric import ACCURACY, Metric, named_metric
from raybench.spec.objective import TIME, Baseline
from raybench.spec.run import RunSpec, describe, label_keys
from raybench.spec.scaling_study import ScalingStudy, study_cells
from raybench.spec.text import clean, command_line
from raybench.stats.record import Evaluation, RunRecord

SAID = "raybench: "
"""How the sentence begins that a command ends with."""
PARTS = ("dataset", "objective")
"""Keys that a command line gives whole: without it, they are other than a spec's usual ones."""


@dataclass(frozen=True)
class Chosen:
    """A trial of a study."""

    trial: str
    spec: RunSpec
    label: str
    """Its configuration in one line."""
    study: str
    """Name of its study."""
    folder: Path
    """Where the study is, or a copy of it."""

    @property
    def command(self) -> str:
        """The command that trains it again: by `best.yaml` of the study where it is that one."""
        given = arguments_of(self.spec)
        for name in WINNERS:
            file = self.folder / name
            if file.is_file() and read_mapping(file) == self.spec.document():
                given = [str(file)]
                break
        return command_line("train", *given)

    def train(
        self,
        out: str | Path | None = None,
        *,
        address: str | None = None,
        say: bool = True,
        **changes: Any,
    ) -> "StudyResults":
        """Train it again as `python -m raybench.train` does, and return what came of it.

        `out`: the results folder or URL; none is `results/train-STUDY-TRIAL`. `address`: a Ray
        cluster, `auto` for example; none starts one here. `changes` are keys of the run spec:
        `train(seed=1, epochs=20)`. Its output is printed (`say`). The model is read by
        `raybench.load_model(out)`. A process of its own does it: Ray stays out of this one.

        Raises UserError where the command refuses what it is asked, StudyError where it fails.
        """
        place = str(out) if out is not None else f"results/train-{self.file_name}"
        spec = validate(RunSpec, self.spec.document() | changes, "train") if changes else self.spec
        command = [sys.executable, "-m", "raybench.train", *arguments_of(spec), "--out", place]
        command += ["--address", address] if address is not None else []
        _run(command, say=say)
        return load(place)

    @property
    def file_name(self) -> str:
        """Study and trial as a part of a file's name."""
        words = f"{self.study}-{self.trial}"
        return "".join(one if one.isalnum() or one in "-_." else "-" for one in words).strip("-.")

    def __repr__(self) -> str:
        return f"trial {self.trial}: {self.label}\n{self.command}"


def winner(results: "StudyResults", *, is_cheapest: bool = False) -> Chosen:
    """Return what won, or of a single training its run; UserError where nothing did."""
    if results.study["study"].get("run") and results.runs:
        return chosen_trial(results, next(iter(results.runs)))
    verdict = results.verdict
    if verdict is None:
        from raybench.report.answer import answer_of

        raise UserError(f"{results.place}: has no winner. {' '.join(answer_of(results))}")
    return chosen_trial(results, verdict.cheapest if is_cheapest else verdict.fastest)


def chosen_trial(results: "StudyResults", trial: str) -> Chosen:
    """Return a trial of a study; UserError where there is none of that name."""
    if trial not in results.runs:
        raise UserError(f"{results.place}: has no run '{clean(trial)}'; .trials lists them.")
    spec = results.specs[trial]
    return Chosen(trial, spec, results.label(spec), results.name, results.folder)


def arguments_of(spec: RunSpec) -> list[str]:
    """Return the `--set KEY=VALUE` of `raybench train` that make a spec from the defaults."""
    content, usual = spec.document(), RunSpec().document()
    for key in PARTS:
        content[key] = getattr(spec, key).model_dump(mode="json", exclude_defaults=True)
    content["dataset"] = {"name": spec.dataset.name} | content["dataset"]
    found = []
    for key, value in content.items():
        if key in PARTS or value != usual[key]:
            text = json.dumps(value, ensure_ascii=False)  # which is YAML, in one line
            found += ["--set", f"{key}={text}"]
    return found


def _run(command: list[str], *, say: bool) -> None:
    """Run a command, its output passed on line by line: a notebook shows no other process's."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        last = ""
        try:
            for line in process.stdout:
                last = clean(line).strip() or last
                if say:
                    print(line, end="", flush=True)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)  # it keeps what is recorded
            raise
        code = process.wait()
    if code:
        said = last.removeprefix(SAID)
        if code == WRONG_INPUT and said != last:
            raise UserError(said)
        raise StudyError(f"raybench train ended with code {code}: {said or 'it said nothing'}")


def metric_of(study: Mapping[str, Any]) -> Metric:
    """Return the metric of a `study.yaml`; accuracy where it names none."""
    objective = study["study"]["objective"]
    if objective.get("metric") is None:
        return ACCURACY
    return named_metric(
        objective["metric"],
        objective.get("direction") or "max",
        is_share=bool(objective.get("is_share")),
    )


def value_at_start(study: Mapping[str, Any], metric: Metric) -> float | None:
    """Return what the metric is before a run has begun; see `StudyResults.value_at_start`."""
    content = study["study"]
    baseline_value = content["objective"].get("baseline_value")
    if baseline_value is not None or metric != ACCURACY:
        return None if baseline_value is None else float(baseline_value)
    dataset = content.get("dataset")
    num_classes = dataset.get("num_classes") if isinstance(dataset, dict) else None
    return 1.0 / num_classes if isinstance(num_classes, int) and num_classes > 0 else None


if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from raybench.report.figures.kinds import FigureKind
    from raybench.results.ranking import Repeated
    from raybench.results.verdict import Verdict

# What stands inside functions below reads what this module makes.


@dataclass(frozen=True, repr=False, eq=False)  # DataFrames are not equal or unequal as a whole
class StudyResults(Analysed):
    """What a results folder holds.

    The analyses are methods: `best_at_every_budget`, `around_target`, ... (`study_analyses`).
    """

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
    def baseline_value(self) -> float | None:
        """What an answer that does not look at the inputs reaches; None where nobody knows."""
        value = self.study["study"]["objective"].get("baseline_value")
        return None if value is None else float(value)

    @property
    def value_at_start(self) -> float | None:
        """What the metric is before a run has begun, as the race takes it: `chance`, of an accuracy
        of which nobody has said it one over the number of classes."""
        return value_at_start(self.study, self.metric)

    @cached_property
    def baselines(self) -> dict[str, Baseline]:
        """What guessing reaches on the rows of `validation` and `test`, where that is known."""
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
        kind = self.study["study"]["objective"]["kind"]
        return self.target is not None and kind == TIME

    @property
    def hold(self) -> int:
        """Evaluations in a row that must be at the target."""
        return int(self.study["study"]["objective"].get("hold") or 1)

    @property
    def searched(self) -> tuple[str, ...]:
        """The keys of the run spec that the study searched, in the order of its space."""
        return tuple(self.study["study"].get("space", {}))

    @cached_property
    def repeated(self) -> "dict[str, Repeated]":
        """The configurations that were trained again; see `results.ranking`."""
        from raybench.results.ranking import repeated

        return repeated(self)

    @cached_property
    def confirmed(self) -> pd.DataFrame:
        """One row per confirmed configuration, best first; see `results.ranking.confirmed`."""
        from raybench.results.ranking import confirmed

        return confirmed(self)

    @cached_property
    def configurations(self) -> pd.DataFrame:
        """One row per configuration, confirmed ones first: what to sort and compare.

        See `raybench.results.ranking.ranking` for the columns.
        """
        from raybench.results.ranking import ranking

        return ranking(self)

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
        """One row per cell of a scaling study; see `raybench.scaling.cells`."""
        from raybench.scaling.cells import cell_table

        return cell_table(self.scaling_study, self.runs, self.evaluations)

    @cached_property
    def scaling_runs(self) -> pd.DataFrame:
        """One row per run of a scaling study; see `raybench.scaling.runs`."""
        from raybench.scaling.runs import run_table

        study = self.scaling_study
        metric = study.base.objective.judged_by
        return run_table(study_cells(study), self.runs, self.evaluations, metric)

    @property
    def best(self) -> "Chosen":
        """The winner: `.spec`, `.trial`, `.command`, `.train()`; UserError where none won."""
        return winner(self)

    @property
    def cheapest(self) -> "Chosen":
        """The same of the cheapest: see `Verdict.cheapest`."""
        return winner(self, is_cheapest=True)

    @cached_property
    def winners(self) -> pd.DataFrame:
        """The winner and all that cannot be told from it; see `results.verdict`."""
        from raybench.results.verdict import winners

        return winners(self)

    @cached_property
    def repeats(self) -> pd.DataFrame:
        """The runs by which configurations are compared; see `results.verdict`."""
        from raybench.results.verdict import repeats

        return repeats(self)

    @property
    def plot(self) -> "StudyPlots":
        """Its figures by name: `plot.curves()`; `dir(study.plot)` lists them."""
        return StudyPlots(self)

    @cached_property
    def owner(self) -> str | None:
        """Who works in the folder now, in words; None where nobody does, and of a URL."""
        return None if is_url(self.place) else owner_in(self.folder)

    @cached_property
    def verdicts(self) -> "dict[str, Verdict]":
        """The winners among the runs on each model of GPU; see `results.verdict.judge_each`."""
        from raybench.results.verdict import find_verdicts

        return find_verdicts(self)

    @property
    def verdict(self) -> "Verdict | None":
        """The winners by trial, and who cannot be told from them; None where none won."""
        return next(iter(self.verdicts.values()), None)

    @cached_property
    def runs_needed(self) -> int | None:
        """Runs of `--more` that distinguish all from the winners in 8 of 10 cases, as far as the
        runs that there are can say; None where too many would be needed, or nobody won."""
        from raybench.report.how_sure import find_runs_needed

        return None if self.verdict is None else find_runs_needed(self, self.verdict)

    def command(self, name: str, *arguments: object) -> str:
        """Return a command of ours about this study, in the words in which that was begun."""
        return command_line(name, *arguments, given=str(self.study.get("command", "")))

    def __repr__(self) -> str:
        from raybench.report.answer import lines_of

        return "\n".join(lines_of(self))

    def _repr_html_(self) -> str:
        from raybench.report.answer import html_of

        return html_of(self)

    def label(self, spec: RunSpec) -> str:
        """Return a configuration of this study in one line, every searched key in it."""
        return describe(spec, label_keys(self.study["study"].get("space", {})))


class NoFigureError(UserError, AttributeError):
    """There is no figure of that name."""


class StudyPlots:
    """The figures of one study: names of `figures.kinds_of`, each a method that returns a Figure.

    `dir(study.plot)` lists those that it has something for.
    """

    def __init__(self, results: "StudyResults") -> None:
        self._results = results

    def __dir__(self) -> list[str]:
        kinds = _kinds(self._results)
        return [name for name, kind in kinds.items() if kind.applies(self._results)]

    def __getattr__(self, name: str) -> "Callable[[], Figure]":
        if name.startswith("_"):
            raise AttributeError(name)  # what notebooks and copy ask of any object
        kinds = _kinds(self._results)
        if name not in kinds:
            close = difflib.get_close_matches(name, kinds, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(kinds)}."
            raise NoFigureError(f"study.plot: has no figure '{clean(name)}'; {hint}")
        return lambda: self._drawn(name, kinds[name])

    def __repr__(self) -> str:
        kinds = _kinds(self._results)
        return "\n".join(
            f".{name}(): {kinds[name].title}. {kinds[name].reading}" for name in dir(self)
        )

    def _drawn(self, name: str, kind: "FigureKind") -> "Figure":
        if not kind.applies(self._results):
            there = ", ".join(dir(self)) or "none yet"
            raise UserError(
                f"study.plot.{name}: {self._results.place} has nothing for it to show; those that "
                f"it has something for: {there}."
            )
        return kind.draw(self._results)


def _kinds(results: "StudyResults") -> "dict[str, FigureKind]":
    # Late: matplotlib takes a second, and they read what `load` makes.
    from raybench.report.figures.kinds import kinds_of

    return kinds_of(results)


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
            baseline_value=value_at_start(study, metric),
        ),
        curves=curve_table(records.curves, metric),
        predictions=prediction_table(records.predictions),
        evaluations=records.curves,
    )
