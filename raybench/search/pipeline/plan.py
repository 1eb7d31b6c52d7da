"""What a search would do, printed by `--dry-run`; nothing starts."""

import math

from rich.console import Console
from rich.table import Table

from raybench.cluster.admission import Capacity
from raybench.core.objective import TIME
from raybench.core.space import (
    Case,
    Cases,
    Dimension,
    Range,
    Simple,
    Space,
    possible_values,
    values_of,
)
from raybench.core.spec import Placement, short
from raybench.core.standing import stages
from raybench.core.study import ConfirmSpec, StudySpec
from raybench.data.dataset import Dataset
from raybench.results.words import target_words
from raybench.search.pipeline.preflight import groups, num_groups
from raybench.search.pipeline.reference import RUNS
from raybench.search.pipeline.verify import num_finalists
from raybench.search.sampling.grid import num_trials
from raybench.speed.factorisation import SPEED_KEYS, Factors

GROUP_START_S = 15.0
"""Seconds to start one worker group, measured: torch 9-13, TensorFlow 17-30 on two cores."""


def print_plan(
    console: Console,
    study: StudySpec,
    space: Space,
    dataset: Dataset,
    place: str,
    factors: Factors | str,
    capacity: Capacity | None,
) -> None:
    """Print space, data, admission and an upper bound of the time.

    `capacity`: what this machine has; None for a cluster, which is not asked.
    """
    table = Table(title="Search space", title_justify="left", box=None, pad_edge=False)
    table.add_column("key")
    table.add_column("values")
    for key, dimension in space.items():
        for line in _describe(dimension):
            table.add_row(key, line)
    for key, value in study.fixed.items():
        table.add_row(key, f"{value} (fixed)")
    console.print(table, "")
    every = groups(study, space)
    widest = max(group.cpus for group in every)
    objective = study.objective
    runs = num_trials(study, space if isinstance(factors, str) else factors.sampled)
    is_auto = "max_train_seconds" in study.auto and not study.is_set
    most = f"of at most {objective.max_train_seconds:g} s training"
    if is_auto:
        most = "(a reference run sets how long each may train)"
    for line in (
        _objective(study),
        f"workload {study.workload}, {_data(study, dataset)}: {dataset.num_train_samples:,} "
        f"training, {len(dataset.validation):,} validation, {len(dataset.test):,} test samples",
        f"frameworks {', '.join(map(str, values_of('framework', space, study.fixed)))}; "
        f"{len(every)} kinds of worker group, the widest takes {widest} CPUs "
        f"and {max(group.gpus for group in every)} GPUs",
        f"{runs} trials {most}, {_confirming(study.confirm)}",
        _length(study, every, runs, num_finalists(factors), capacity),
        _sampling(factors),
        *_reference(study),
        f"results: {place}",
    ):
        console.print(line, highlight=False, soft_wrap=True)


def _length(
    study: StudySpec, every: list[Placement], runs: int, finalists: int, capacity: Capacity | None
) -> str:
    """Say how long everything takes at most: every phase by what runs in it side by side."""
    budget, seconds = study.search.time_budget_s, study.objective.max_train_seconds
    budget_s = math.inf if budget is None else budget
    bound, where = budget_s, "on the cluster"
    if capacity is not None:
        has = f"{capacity.cpus} cores" + (f" and {capacity.gpus} GPUs" if capacity.gpus else "")
        where = f"on this machine's {has}"
        slots = study.search.concurrency or capacity.cpus
        slots = min(num_groups(group, capacity, slots) for group in every)
        confirm, is_timed = study.confirm, study.objective.kind == TIME
        # Both races may differ in every run, and the cheapest be another than the fastest.
        kinds = 2 if is_timed and len(every) > 1 else 1
        references = (RUNS if study.needs_target else 1) if study.needs_reference else 0
        beside = math.ceil(references / slots) + math.ceil(runs / slots)
        beside += math.ceil(kinds * confirm.race / slots)
        alone = finalists + (kinds * confirm.fresh if confirm.race else 0)
        if "max_train_seconds" not in study.auto or study.is_set:
            bound = min(bound, (beside + alone) * seconds + len(every) * GROUP_START_S)
    if math.isinf(bound):
        return f"how long it takes {where} is not known beforehand; --time-budget ends it in time"
    length = f"{bound / 60:.0f} min" if bound >= 600 else f"{bound:.0f} s"
    apart = "" if bound == budget_s else ", evaluation apart"
    return (
        f"at most about {length} {where}{apart}; runs that reach the target or fall behind end "
        "sooner"
    )


def _objective(study: StudySpec) -> str:
    """Say what trials are judged by: kind, metric, target and budget."""
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
        assert objective.target is not None  # the kind needs one
        target = target_words(metric, objective.target)
        target += "" if metric.words in target else f" {metric.words}"
    held = f", held for {objective.hold} evaluations" if objective.hold > 1 else ""
    return f"objective {objective.kind}: validation {target}{held}, within {seconds}"


def _data(study: StudySpec, dataset: Dataset) -> str:
    """Name the dataset, and its file, folder or library's name where it has one."""
    places = [place for place in (study.dataset.set, study.dataset.path) if place]
    return f"dataset {dataset.name}" + "".join(f" {place}" for place in places)


def _confirming(confirm: ConfirmSpec) -> str:
    if not confirm.race:
        return "not confirmed"
    contenders, fresh = stages(confirm.race)[0][0], confirm.fresh
    alone = f"{fresh} run{'s' if fresh > 1 else ''} of each winner alone"
    return f"then a race of {confirm.race} runs over the best {contenders}, {alone}"


def _reference(study: StudySpec) -> list[str]:
    if not study.needs_reference:
        return []
    runs = f"{RUNS} reference runs set" if study.needs_target else "a reference run sets"
    return [f"before: {runs} {', '.join(study.auto)}"]


def _sampling(factors: Factors | str) -> str:
    if isinstance(factors, str):
        return f"every key is sampled ({factors})"
    predicted = [key for key in SPEED_KEYS if key not in factors.sampled]
    return (
        f"sampled: {', '.join(factors.sampled)}; {', '.join(predicted)} decide speed alone: "
        "measured in the first trials, predicted then, run again where they would win"
    )


def _describe(dimension: Dimension) -> list[str]:
    if isinstance(dimension, Cases):
        return [_describe_case(case) for case in dimension.cases]
    return [_describe_simple(dimension)]


def _describe_case(case: Case) -> str:
    return f"{_describe_simple(case.dimension)} where {case.label()}"


def _describe_simple(dimension: Simple) -> str:
    if not isinstance(dimension, Range):
        values = possible_values(dimension)
        return ", ".join(short(one) if isinstance(one, list) else str(one) for one in values)
    return f"{dimension.low:g} to {dimension.high:g}" + (", log scale" if dimension.log else "")
