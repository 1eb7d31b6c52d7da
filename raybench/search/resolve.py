"""Resolve the options of `raybench tune` to the study that will run, and make its plan.

`study_content` reads the search-space file and applies the options. `resolve_study` fits the study
to this machine, and checks its model and data. `ResolvedStudy.continued` adopts the settings of an
earlier session. `StudyPlan` is what `--dry-run` prints, and what the study then does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from raybench.cluster.layout import Capacity
from raybench.data.dataset import NO_DATA, Dataset
from raybench.report.words import target_words
from raybench.results.place import (
    is_url,
    refuse_other_study,
    shipped_space,
    unused_folder,
)
from raybench.results.storage import check_place, unused_url
from raybench.results.store import STUDY_FILE
from raybench.runs.options import TuneOptions
from raybench.runs.preflight import check_address, check_gpus, is_installed
from raybench.search import preflight
from raybench.search.factorisation import SPEED_KEYS, Factors, speed_values, study_factors
from raybench.search.sampling.default_rates import check_grid, first_specs, num_outside, num_trials
from raybench.search.sampling.earlier import Earlier, load_earlier, settings_of
from raybench.spec.dataset_spec import with_absolute_paths
from raybench.spec.documents import content_of, read_mapping
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.objective import TIME
from raybench.spec.run import RunSpec, describe, label_keys
from raybench.spec.space import (
    Cases,
    Dimension,
    Range,
    Simple,
    Space,
    has_range,
    possible_values,
    values_of,
)
from raybench.spec.study import (
    COMMON,
    EVAL_INTERVAL,
    MOST_SOLO_ROUNDS,
    NUM_FASTEST_CHECKED,
    NUM_REFERENCE_RUNS,
    WIDENING,
    ConfirmSpec,
    StudySpec,
    build_study,
    load_content,
)
from raybench.spec.text import counted, short
from raybench.stats.standing import stages

STUDY_KEY_MORE = "more"
"""Key of `study.yaml` that exists while the runs of `--more` (further confirmation runs) are
unfinished."""
STUDY_KEY_OVER = "is_over"
"""Key of `study.yaml`: whether the confirmation has ended, by itself or by the time budget."""
DECIDED = "no more runs are needed: no other configuration could be the winner"


def study_content(options: TuneOptions) -> tuple[dict[str, Any], str, str]:
    """Apply the options to the search-space file.

    Returns:
        - The study as plain data.
        - The path of the file, for error messages.
        - The name of the study.
    """
    if options.more is not None and options.more < 1:
        raise UserError(
            f"--more {options.more}: the number of runs must be at least 1.",
            ErrorCode.INVALID_VALUE,
        )
    space = options.space
    if isinstance(space, str):
        space = shipped_space(space) or Path(space)
    source = str(space) if isinstance(space, Path) else "space"
    content = with_absolute_paths(load_content(space, options.study_settings()))
    is_shipped = isinstance(options.space, str) and bool(shipped_space(options.space))
    if is_shipped and options.command is not None and "framework" in content.get("space", {}):
        raise UserError(
            f"--command: the space {options.space} is for raybench's own models; name a space file "
            "that lists what to vary, as in docs/models.md.",
            ErrorCode.MISSING,
        )
    content = _with_firsts(content, options.first)
    path = Path(source)
    return content, source, path.parent.name if path.name == STUDY_FILE else path.stem


STUDY_WIDE_KEYS = (*COMMON, "seed", EVAL_INTERVAL)
"""Run-spec keys that the study sets for all its runs. They are ignored in a run spec or file given
by `--first`."""


def _with_firsts(
    content: dict[str, Any], given: Sequence[str | Path | dict[str, Any] | RunSpec]
) -> dict[str, Any]:
    """Return the study with the configurations of `--first` appended to `search.first`."""
    firsts = []
    for configuration in given:
        spec = content_of(configuration, "first")[0]
        if not isinstance(configuration, dict):  # a file or run spec also has study-wide keys
            spec = {key: value for key, value in spec.items() if key not in STUDY_WIDE_KEYS}
        if not spec:
            raise UserError(
                "--first: contains no key of a configuration; set at least one, such as "
                "learning_rate.",
                ErrorCode.MISSING,
            )
        firsts.append(spec)
    if not firsts:
        return content
    search = content.get("search") or {}
    return content | {"search": search | {"first": [*(search.get("first") or []), *firsts]}}


@dataclass(frozen=True)
class ResolvedStudy:
    """A valid study with its space, data and results folder, ready to run."""

    study: StudySpec
    space: Space
    dataset: Dataset
    place: str
    """Results folder or URL."""
    sentences: tuple[str, ...]
    """One sentence for each choice made for the user and for each warning."""
    earlier: Earlier | None = None
    """Results of an earlier study, given by `--seed-from`."""
    taken_sentences: tuple[str, ...] = ()
    """One sentence for each setting that comes from the results of `--seed-from`."""

    @cached_property
    def plan(self) -> "StudyPlan":
        """Plan of the search: sampled keys, placements and number of trials."""
        return StudyPlan.of(self.study, self.space)

    def continued(self, file: Path | None) -> Self:
        """Return the study with settings taken from an earlier session and from `--seed-from`.

        Args:
            file: `study.yaml` of the earlier session; None if there was none.

        Raises:
            UserError: The file describes another study.
        """
        study = self.study
        if file is not None:
            study = earlier_settings(study, read_mapping(file))
            refuse_other_study(self.place, file, study)
        taken_sentences: list[str] = []
        if self.earlier is not None:
            study, taken_sentences = settings_of(self.earlier, study)
        return replace(self, study=study, taken_sentences=tuple(taken_sentences))


def earlier_settings(study: StudySpec, folder_study: Mapping[str, Any]) -> StudySpec:
    """Return the study with the values that reference runs of an earlier session determined.

    The study stays unchanged if there are no such values, or if they are for other keys.

    Args:
        study: The study.
        folder_study: Content of `study.yaml` of the earlier session.
    """
    earlier = folder_study.get("study")
    if not isinstance(earlier, dict) or not isinstance(earlier.get("objective"), dict):
        return study
    if not earlier.get("is_set") or earlier.get("auto") != list(study.auto):
        return study
    earlier_values = earlier["objective"] | earlier["fixed"]
    return study.with_auto_values({k: earlier_values[k] for k in study.auto if k in earlier_values})


def resolve_study(options: TuneOptions, capacity: Capacity | None) -> ResolvedStudy:
    """Return the study described by the options.

    Settings from an earlier session are not applied yet; see `ResolvedStudy.continued`.

    Args:
        options: Options of the command.
        capacity: Resources of this machine; None if the study runs on a cluster.

    Raises:
        UserError: The study is invalid, or no worker group fits on this machine.
    """
    content, source, name = study_content(options)
    check_address(options.address)
    place = check_place(options.out or f"results/{name}")
    sentences: list[str] = []
    is_shipped = isinstance(options.space, str) and bool(shipped_space(options.space))
    if is_shipped:
        reason = "not installed; pip install 'raybench[all]'"
        content, sentences = preflight.drop_frameworks(content, is_installed, reason)
    study, space = build_study(content, source)
    if is_shipped:
        content, without_model = preflight.drop_frameworks_without_model(content, study, space)
        if without_model:
            sentences += without_model
            study, space = build_study(content, source)
    if capacity is not None:
        fitted, fit_sentences = _fitted(options, content, study, space, capacity)
        sentences += fit_sentences
        if fitted is not content:  # this machine's GPUs may conflict with a key, so check again
            study, space = build_study(fitted, source)
        firsts = first_specs(study, space).values()
        sentences += preflight.check_room(study, space, capacity, firsts)
        check_gpus(preflight.groups(study, space))
    study, dataset, warnings = preflight.check_study(study, space)
    preflight.check_evaluations(study, dataset)
    check_grid(study, space)
    if options.fresh:
        place = unused_url(place) if is_url(place) else str(unused_folder(Path(place)))
    earlier = load_earlier(options.seed_from, study) if options.seed_from else None
    return ResolvedStudy(study, space, dataset, place, (*sentences, *warnings), earlier)


def _fitted(
    options: TuneOptions,
    content: dict[str, Any],
    study: StudySpec,
    space: Space,
    capacity: Capacity,
) -> tuple[dict[str, Any], list[str]]:
    """Return a study's content with the GPUs of this machine and without worker counts that do not
    fit on it, and sentences about the changes.

    Worker counts in a file are reduced to fit, because files are shared between machines. Worker
    counts on the command line are meant for this machine.
    """
    is_named = options.workers is not None or any("num_workers" in key for key in options.settings)
    content, sentences = preflight.with_gpus(content, study, space, capacity, all_workers=is_named)
    if not is_named:
        study = study.model_copy(update={"fixed": study.fixed | (content.get("fixed") or {})})
        content, left_out = preflight.drop_worker_counts_without_room(
            content, study, space, capacity
        )
        sentences = [*sentences, *left_out]
    return content, sentences


GROUP_START_S = 15.0
"""Seconds to start a worker group; measured: torch 9-13, TensorFlow 17-30 on two cores."""


WIDENS = (
    f"learning rates up to a factor of {WIDENING:g} beyond their range are tried where the model "
    "expects an improvement (search.widen)"
)


@dataclass(frozen=True)
class StudyPlan:
    """Plan of a search: which keys are sampled, and in how many trials.

    Reference runs change the study, so a new plan is made after them.
    """

    study: StudySpec
    space: Space
    factors: Factors | str
    """The factorized space, or the reason why it cannot be factorized and all keys are sampled."""

    @classmethod
    def of(cls, study: StudySpec, space: Space) -> Self:
        """Return the plan for searching a space in a study."""
        return cls(study, space, study_factors(study, space))

    @cached_property
    def num_trials(self) -> int:
        """Number of trials of the search."""
        factors = None if isinstance(self.factors, str) else self.factors
        outside = num_outside(self.study, self.space)
        return num_trials(self.study, self.space, factors, outside=outside)

    def most_s(self, capacity: Capacity | None) -> float:
        """Return an upper bound on the seconds of the whole study, without evaluations; inf if
        unknown.

        Args:
            capacity: Resources of this machine; None for a cluster.
        """
        study, space = self.study, self.space
        budget, seconds = study.search.time_budget_s, study.objective.max_train_seconds
        bound = math.inf if budget is None else budget
        is_set_later = "max_train_seconds" in study.auto and not study.is_set
        if capacity is None or is_set_later:
            return bound
        groups, runs = preflight.groups(study, space), self.num_trials
        slots = study.search.concurrency or capacity.cpus
        slots = min(capacity.most_groups(group, slots) for group in groups)
        confirm, is_timed = study.confirm, study.objective.kind == TIME
        # The race for the fastest and the race for the cheapest may have no run in common.
        kinds = 2 if is_timed and len(groups) > 1 else 1
        references = (
            (NUM_REFERENCE_RUNS if study.needs_target else 1) if study.needs_reference else 0
        )
        rounds = math.ceil(references / slots) + math.ceil(runs / slots)
        rounds += math.ceil(kinds * confirm.race / slots)
        # If solo runs change the winner, the new winner has solo runs too.
        alone = _num_placement_checks(self.factors)
        alone += MOST_SOLO_ROUNDS * kinds * confirm.fresh if confirm.race else 0
        return min(bound, (rounds + alone) * seconds + len(groups) * GROUP_START_S)

    def document(self, place: str, capacity: Capacity | None) -> dict[str, Any]:
        """Return the plan as plain data.

        Args:
            place: Results folder or URL.
            capacity: Resources of this machine; None for a cluster.
        """
        most_s = self.most_s(capacity)
        return self.study.document() | {
            "results": place,
            "num_trials": self.num_trials,
            "at_most_s": most_s if math.isfinite(most_s) else None,
        }

    def show(
        self, console: Console, dataset: Dataset, place: str, capacity: Capacity | None
    ) -> None:
        """Print the search space, the data, the worker groups and an upper bound on the time.

        Args:
            console: Where to print.
            dataset: Data of the study.
            place: Results folder or URL.
            capacity: Resources of this machine; None for a cluster, which is not contacted.
        """
        study, space = self.study, self.space
        table = Table(title="Search space", title_justify="left", box=None, pad_edge=False)
        table.add_column("key")
        table.add_column("values")
        for key, dimension in space.items():
            for line in _describe(dimension):
                table.add_row(key, line)
        for key, value in study.fixed.items():
            table.add_row(key, f"{short(value)} (fixed)")
        console.print(table, "")
        groups = preflight.groups(study, space)
        widest = max(group.cpus for group in groups)
        objective = study.objective
        runs = self.num_trials
        is_auto = "max_train_seconds" in study.auto and not study.is_set
        length = f"of at most {objective.max_train_seconds:g} s training"
        if is_auto:
            length = "(a reference run sets how long each may train)"
        for line in (
            _objective_line(study),
            f"workload {study.workload}, {_data_line(study, dataset)}",
            f"frameworks {', '.join(map(str, values_of('framework', space, study.fixed)))}; "
            f"worker groups of {counted(len(groups), 'kind')}, the widest with "
            f"{counted(widest, 'CPU')} and {max(group.gpus for group in groups):g} GPUs",
            f"{counted(runs, 'trial')} {length}, {_confirmation_line(study.confirm, runs)}",
            _duration_line(study, self.most_s(capacity), capacity),
            _sampling_line(self.factors),
            *([WIDENS] if _may_widen(study, space) else []),
            *_reference_lines(study),
            *_first_lines(study, space),
            f"results: {place}",
        ):
            console.print(line, highlight=False, soft_wrap=True)


def _num_placement_checks(factors: Factors | str) -> int:
    """Return the largest possible number of placement checks; 0 if the space is not factorized."""
    if isinstance(factors, str):
        return 0
    machines = {
        (placement.framework, placement.accelerator_type) for placement in factors.all_placements
    }
    return NUM_FASTEST_CHECKED + len({model for _, model in machines}) + len(machines)


def _may_widen(study: StudySpec, space: Space) -> bool:
    """Return whether a study may try learning rates outside their range (`search.widen`)."""
    is_range = has_range(space.get("learning_rate"))
    return is_range and study.search.widen and study.search.sampler == "model"


def _duration_line(study: StudySpec, bound: float, capacity: Capacity | None) -> str:
    """Return the sentence about the upper bound on the time."""
    where = "on the cluster"
    if capacity is not None:
        resources = f"{capacity.cpus} cores" + (
            f" and {capacity.gpus} GPUs" if capacity.gpus else ""
        )
        where = f"on this machine's {resources}"
    if math.isinf(bound):
        return f"duration {where} unknown; limit it with --time-budget"
    length = f"{bound / 60:.0f} min" if bound >= 600 else f"{bound:.0f} s"
    exclusion = "" if bound == study.search.time_budget_s else ", not counting evaluations"
    return (
        f"at most about {length} {where}{exclusion}; runs that reach the target or fall behind end "
        "sooner"
    )


def _objective_line(study: StudySpec) -> str:
    """Return the sentence about the objective: kind, metric, target and training limit."""
    objective = study.objective
    metric = objective.judged_by
    seconds = f"{objective.max_train_seconds:g} s of training"
    if "max_train_seconds" in study.auto and not study.is_set:
        seconds = "the seconds of training that a reference run sets"
    if objective.kind != TIME:
        return f"objective {objective.kind}: best validation {metric.words} within {seconds}"
    if study.needs_target:
        target = f"{metric.words}, as reference runs set it"
    else:
        assert objective.target is not None  # required by the kind
        target = target_words(metric, objective.target)
        target += "" if metric.words in target else f" {metric.words}"
    held = f", held for {objective.hold} evaluations" if objective.hold > 1 else ""
    return f"objective {objective.kind}: validation {target}{held}, within {seconds}"


def _data_line(study: StudySpec, dataset: Dataset) -> str:
    """Return a line with the name, source and split sizes of the dataset."""
    if dataset is NO_DATA:
        return "data loaded by the training loop itself"
    places = [place for place in (study.dataset.set, study.dataset.path) if place]
    return (
        " ".join([f"dataset {dataset.name}", *places])
        + f": {dataset.num_train_samples:,} training, {len(dataset.validation):,} validation, "
        f"{len(dataset.test):,} test samples"
    )


def _confirmation_line(confirm: ConfirmSpec, trials: int) -> str:
    if not confirm.race:
        return "not confirmed"
    candidates = min(stages(confirm.race)[0][0], trials)
    return (
        f"then {counted(confirm.race, 'confirmation run')} of the best {candidates}, and "
        f"{counted(confirm.fresh, 'run')} of each winner alone"
    )


def _reference_lines(study: StudySpec) -> list[str]:
    if not study.needs_reference:
        return []
    runs = (
        f"{NUM_REFERENCE_RUNS} reference runs set" if study.needs_target else "a reference run sets"
    )
    return [f"before: {runs} {', '.join(study.auto)}"]


def _first_lines(study: StudySpec, space: Space) -> list[str]:
    keys = label_keys(study.space)
    return [f"first: {describe(spec, keys)}" for spec in first_specs(study, space).values()]


def _sampling_line(factors: Factors | str) -> str:
    if isinstance(factors, str):
        return f"every key is sampled ({factors})"
    placements = [speed_values(placement) for placement in factors.all_placements]
    predicted = [
        key
        for key in SPEED_KEYS
        if key not in factors.sampled and len({values[key] for values in placements}) > 1
    ]
    return (
        f"sampled: {', '.join(factors.sampled)}; {', '.join(predicted)} only change speed: timed "
        "in the first trials, then predicted; predicted winners are run"
    )


def _describe(dimension: Dimension) -> list[str]:
    if isinstance(dimension, Cases):
        return [f"{_describe_simple(c.dimension)} where {c.label()}" for c in dimension.cases]
    return [_describe_simple(dimension)]


def _describe_simple(dimension: Simple) -> str:
    if not isinstance(dimension, Range):
        return ", ".join(map(short, possible_values(dimension)))
    kind = "whole numbers" if dimension.is_integer else "fractions"
    scale = ", log scale" if dimension.log else ""
    return f"{kind} {dimension.low:g} to {dimension.high:g}{scale}"
