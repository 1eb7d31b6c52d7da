"""Checks of a search before it starts: its workload and data, and room for its worker groups."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from raybench.cluster.layout import Capacity, Node
from raybench.data.check import check_dataset, dataset_warnings
from raybench.data.dataset import Dataset
from raybench.models.find import find_workload, load_workload_dataset, require_framework
from raybench.models.user_code import user_code_errors
from raybench.runs.preflight import (
    GPUS,
    check_starts,
    check_task,
    first_values,
    seed_warnings,
    unused_key_warnings,
    uses_gpus,
)
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.objective import TIME
from raybench.spec.own_loop import is_command, is_launched, is_own_loop
from raybench.spec.run import OPEN, RESOURCES, ResourceRequest, RunSpec, is_open, nested
from raybench.spec.space import (
    Choices,
    Powers,
    Space,
    combinations,
    known_values,
    possible_values,
    values_of,
)
from raybench.spec.study import EVAL_INTERVAL, StudySpec
from raybench.spec.text import identity, short

GROUP_KEYS = ("strategy", "framework", "num_workers", *RESOURCES)
"""Run-spec keys that determine which worker group a run needs."""
MAX_NAMED_GROUPS = 5
ASKED_AHEAD = 4
"""Number of trials that are queued in addition to the running ones, so that one of them may reuse
an idle worker group. With 60 trials over two frameworks and 1, 2 or 4 workers on 4 GPUs, 24 groups
were started. Without queued trials, 34 groups were started, and 53 if in addition no trial could
overtake another. With 8 queued trials, 5 fewer groups were started than with 4, but the sampler has
fewer results when it proposes a trial."""
AUTOSCALED_CONCURRENCY = 4
"""Minimum number of concurrent trials on a cluster that starts nodes by itself."""


def drop_frameworks(
    content: dict[str, Any], is_usable: Callable[[str], bool], reason: str
) -> tuple[dict[str, Any], list[str]]:
    """Drop from a shipped space the frameworks that cannot be used, unless none would remain.

    Args:
        content: Content of the space file.
        is_usable: Whether a framework can be used.
        reason: Why a framework cannot be used, for the sentence.

    Returns:
        - The content of the space file.
        - Sentences about what was dropped.
    """
    frameworks = content["space"].get("framework")
    if not isinstance(frameworks, list):
        return content, []
    usable = [framework for framework in frameworks if is_usable(framework)]
    if not usable or usable == frameworks:
        return content, []
    left_out = [framework for framework in frameworks if framework not in usable]
    sentence = f"Skipping {' and '.join(left_out)}: {reason}."
    return content | {"space": content["space"] | {"framework": usable}}, [sentence]


def drop_frameworks_without_model(
    content: dict[str, Any], study: StudySpec, space: Space
) -> tuple[dict[str, Any], list[str]]:
    """Drop from a shipped space the frameworks for which the study's workload has no model; see
    `drop_frameworks`."""
    spec = study.run_spec(first_values(study, space))
    if ":" not in spec.workload or is_own_loop(spec.workload):
        return content, []
    workload = find_workload(spec.workload, model=spec.model)

    def has_model(framework: str) -> bool:
        try:
            require_framework(workload, framework)
        except UserError as error:
            return error.code is not ErrorCode.UNSUPPORTED
        return True

    return drop_frameworks(content, has_model, f"workload {workload.name} has no model for it")


def check_study(study: StudySpec, space: Space) -> tuple[StudySpec, Dataset, list[str]]:
    """Check a study's workload, data and search space, without Ray.

    Returns:
        - The study with a complete objective.
        - The dataset.
        - Sentences with warnings.
    """
    frameworks = [str(value) for value in values_of("framework", space, study.fixed)]
    spec = study.run_spec(first_values(study, space))
    if study.needs_target:  # until reference runs set the target, it is a placeholder
        objective = spec.objective.model_copy(update={"target": None})
        spec = spec.model_copy(update={"objective": objective})
    objective, dataset = check_task(spec, frameworks)
    if study.needs_target:
        objective = objective.model_copy(update={"target": study.objective.target})
    study = study.model_copy(update={"objective": objective})
    spec = spec.model_copy(update={"objective": objective})
    if is_own_loop(study.workload):
        warnings = unused_key_warnings(study.workload, space, prefix="space.")
        if study.confirm.race:
            warnings += seed_warnings(study.workload, "confirmation runs")
        return study, dataset, warnings
    warnings = check_starts(spec, *other_starts(study, space, spec))
    warnings += dataset_warnings(dataset)
    check_data(study, space, spec, dataset)
    return study, dataset, warnings


def check_data(study: StudySpec, space: Space, spec: RunSpec, dataset: Dataset) -> None:
    """Load and check the data for each combination of searched data settings (`space.data.*`).

    Raises:
        UserError: The validation rows of two combinations differ, so that their times to a target
            would not be comparable.
    """
    keys = [key for key in space if is_open(key, "data")]
    for values in combinations(space, study.fixed, keys):
        data_values = {key: values[key] for key in keys}
        settings = nested({"data": spec.data} | data_values).get("data", {})
        if identity(settings) == identity(spec.data):
            continue
        _, other_dataset = load_workload_dataset(spec.workload, spec.dataset, spec.model, settings)
        values_text = ", ".join(f"{key} {short(value)}" for key, value in data_values.items())
        with user_code_errors(f"{values_text}: reading its samples failed"):
            check_dataset(
                other_dataset,
                f"load_dataset of workload {spec.workload} ({values_text})",
                is_own=True,
            )
        if not np.array_equal(other_dataset.validation.labels, dataset.validation.labels):
            raise UserError(
                f"{values_text}: has other validation rows than the first values, but a search "
                "compares all runs on the same rows; splits must depend only on spec.split_seed.",
                ErrorCode.USER_CODE,
            )


def check_evaluations(study: StudySpec, dataset: Dataset) -> None:
    """Raise UserError if a run has fewer evaluations than the target needs (`objective.hold`)."""
    if is_own_loop(study.workload):
        return
    hold = study.objective.hold
    epochs = float(known_values(study.fixed, {})["epochs"])
    samples = epochs * dataset.num_train_samples
    eval_interval = study.fixed.get(EVAL_INTERVAL, 1 if EVAL_INTERVAL in study.auto else None)
    batch = int(study.fixed.get("batch_size_per_worker", 1))
    if eval_interval is None or "epochs" in study.space:
        return
    count = math.ceil(samples / max(int(eval_interval), batch))
    if study.objective.kind == TIME and hold > count:
        raise UserError(
            f"objective.hold: {hold} evaluations in a row are impossible, since a run of "
            f"{epochs:g} epochs has {count}; lower hold, or raise fixed.epochs.",
            ErrorCode.CONFLICT,
        )


def drop_worker_counts_without_room(
    content: dict[str, Any], study: StudySpec, space: Space, capacity: Capacity
) -> tuple[dict[str, Any], list[str]]:
    """Drop from a space the worker counts that do not fit on this machine, unless none fits.

    Returns:
        - The content of the space file.
        - Sentences about what was dropped.
    """
    dimension = space.get("num_workers")
    if not isinstance(dimension, Choices | Powers):
        return content, []
    fitting = {group.num_replicas for group in groups(study, space) if capacity.fits(group)}
    values = possible_values(dimension)
    counts = [value for value in values if value in fitting]
    if not counts or len(counts) == len(values):
        return content, []
    skipped = ", ".join(str(value) for value in values if value not in fitting)
    plural = "s" if capacity.cpus != 1 else ""
    sentence = (
        f"num_workers {skipped}: left out, this machine has {capacity.cpus} CPU{plural} and "
        f"{capacity.gpus} GPUs; --address searches a cluster."
    )
    return content | {"space": content["space"] | {"num_workers": counts}}, [sentence]


def groups(study: StudySpec, space: Space) -> list[ResourceRequest]:
    """Return all worker groups that the runs of a study may need; of a range of values, only the
    bounds are considered."""
    unique: dict[ResourceRequest, None] = {}
    for values in combinations(space, study.fixed, GROUP_KEYS):
        resources = [values[key] for key in RESOURCES]
        group = ResourceRequest(values["framework"], values["num_workers"], *resources)
        is_alone = is_command(study.workload) and not is_launched(study.workload)
        is_one = values["strategy"] == "single_process" or is_alone
        unique[group.in_one_process if is_one else group] = None
    return list(unique)


def with_gpus(
    content: dict[str, Any],
    study: StudySpec,
    space: Space,
    capacity: Capacity,
    *,
    all_workers: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Set one GPU per worker by default, if this machine has enough GPUs.

    Args:
        content: Content of the space file.
        space: The study's search space. Nothing is changed if the space or `study.fixed` sets the
            GPUs per worker.
        capacity: Resources of this machine.
        all_workers: True if the GPUs must suffice for the largest worker count, False for the
            smallest.

    Returns:
        - The content, with the number of GPUs per worker if it was set.
        - Sentences about the decision.
    """
    if GPUS in space or GPUS in study.fixed:
        return content, []
    workers = [group.num_replicas for group in groups(study, space)]
    frameworks = [str(name) for name in values_of("framework", space, study.fixed)]
    num_workers = max(workers) if all_workers else min(workers)
    is_used, sentences = uses_gpus(capacity, frameworks, num_workers, "--gpus-per-worker ")
    if is_used:
        content = content | {"fixed": (content.get("fixed") or {}) | {GPUS: 1}}
    return content, sentences


def check_room(
    study: StudySpec, space: Space, capacity: Capacity, firsts: Iterable[RunSpec] = ()
) -> list[str]:
    """Check that the worker groups of a study fit on the cluster while nothing else runs on it.

    Args:
        space: The study's search space.
        capacity: Resources of the cluster.
        firsts: Run specs of the configurations that the user wants to run first.

    Returns:
        A list with one sentence about the groups that do not fit and are left out; empty if all
        fit.

    Raises:
        UserError: No group fits, or one of `firsts` does not fit.
    """
    for spec in firsts:
        capacity.refuse_infeasible(spec.resources)
    all_groups = groups(study, space)
    unfitting = [group for group in all_groups if not capacity.may_fit(group)]
    if not unfitting:
        return []
    if len(unfitting) == len(all_groups):
        capacity.refuse_infeasible(min(unfitting, key=lambda group: (group.gpus, group.cpus)))
    sizes = dict.fromkeys(
        f"{group.num_replicas} of {group.cpus_per_worker} CPU"
        + (f" and {group.gpus_per_worker:g} GPU" if group.gpus_per_worker else "")
        for group in unfitting
    )
    tail = f" and {len(sizes) - MAX_NAMED_GROUPS} more" if len(sizes) > MAX_NAMED_GROUPS else ""
    return [
        f"workers {', '.join(list(sizes)[:MAX_NAMED_GROUPS])}{tail}: left out, there is room for "
        f"{capacity.cpus} CPU and {capacity.gpus} GPU; all other combinations are searched."
    ]


def default_concurrency(study: StudySpec, space: Space, capacity: Capacity) -> int:
    """Return the default number of concurrent trials: as many of the smallest trials as fit on the
    cluster.

    With an autoscaler, it is at least AUTOSCALED_CONCURRENCY, because nodes are started only for
    queued trials.
    """
    smallest = min(groups(study, space), key=lambda group: (group.gpus, group.cpus))
    minimum = AUTOSCALED_CONCURRENCY if capacity.grows else 1
    return max(minimum, capacity.most_workers(smallest) // smallest.num_workers)


def following(
    study: StudySpec, space: Space, capacity: Capacity
) -> Callable[[tuple[Node, ...]], int] | None:
    """Return a function from the current nodes to the number of concurrent trials; None if the user
    has set this number."""
    if study.search.concurrency:
        return None
    return lambda nodes: default_concurrency(study, space, replace(capacity, nodes=nodes))


def num_queued_ahead(study: StudySpec, space: Space, *, is_local: bool) -> int:
    """Return how many trials to queue in addition to the running ones, so that one of them may
    reuse an idle worker group.

    The number is 0 if idle groups reserve no resources (see `ResourceScheduler`), if all trials
    need the same group, or if the user has set the concurrency.
    """
    all_groups = groups(study, space)
    is_idle_held = not is_local or any(group.gpus_per_worker for group in all_groups)
    return (
        ASKED_AHEAD if is_idle_held and len(all_groups) > 1 and not study.search.concurrency else 0
    )


START_KEYS = ("weights", "frozen_epochs")
"""Run-spec keys that determine the initial state of a model; not every model accepts all their
values."""


def other_starts(study: StudySpec, space: Space, spec: RunSpec) -> list[RunSpec]:
    """Return variants of a run spec that together contain every searched value of the model's
    settings, of `weights` and of `frozen_epochs`."""
    keys = [key for key in space if key in START_KEYS or is_open(key, "model")]
    open_settings = {key: getattr(spec, key) for key in OPEN}
    variants: dict[str, RunSpec] = {}
    for key in keys:
        for value in values_of(key, space, study.fixed):
            values = first_values(study, space, {key: value})
            start_values = {name: values[name] for name in keys}
            variants[identity(start_values)] = spec.model_copy(
                update=nested(open_settings | start_values)
            )
    return list(variants.values())
