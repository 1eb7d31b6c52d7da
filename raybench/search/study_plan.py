"""The plan of a search: what `--dry-run` prints, and what the study then does."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from raybench.cluster.layout import Capacity
from raybench.data.dataset import NO_DATA, Dataset
from raybench.report.words import target_words
from raybench.runs import preflight
from raybench.search.candidates import WIDENING, widens
from raybench.search.factorisation import SPEED_KEYS, Factors, speed_values, study_factors
from raybench.search.race_stage import MOST_SOLO_ROUNDS
from raybench.search.reference import NUM_REFERENCE_RUNS
from raybench.search.sampling.default_rates import first_specs, num_outside, num_trials
from raybench.search.verify import num_placement_checks
from raybench.spec.objective import TIME
from raybench.spec.run import describe, label_keys
from raybench.spec.space import Cases, Dimension, Range, Simple, Space, possible_values, values_of
from raybench.spec.study import ConfirmSpec, StudySpec
from raybench.spec.text import counted, short
from raybench.stats.standing import stages

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
        alone = num_placement_checks(self.factors)
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
            *([WIDENS] if widens(study, space) else []),
            *_reference_lines(study),
            *_first_lines(study, space),
            f"results: {place}",
        ):
            console.print(line, highlight=False, soft_wrap=True)


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
