"""Checks that run before a study starts: workload, data, frameworks, and resources of the
cluster."""

import importlib.util
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from raybench.cluster.layout import Capacity, Node
from raybench.cluster.session import Session, check_files_there
from raybench.data.augment import check_augment
from raybench.data.check import check_dataset, dataset_warnings
from raybench.data.dataset import Dataset
from raybench.data.split_metrics import label_baseline
from raybench.models.base import OwnLoop, head_error, refuse_label_smoothing
from raybench.models.find import load_workload_dataset, require_framework
from raybench.models.named import NamedWorkload, weights_file
from raybench.models.user_code import refuse_hiding_files, user_code_errors
from raybench.report.console import say
from raybench.report.scaling_printed import NAMES
from raybench.results.trials import CURVE_TYPES, EXTRA_TYPES, TRIAL_TYPES, for_metric
from raybench.scaling.cells import CELL_COLUMNS, RUN_COLUMNS
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import (
    ACCURACY,
    METRIC_NAME,
    METRICS,
    OTHER_METRIC_NAMES,
    Metric,
    find_metric,
    named_metric,
)
from raybench.spec.objective import BUDGET, TIME, Objective, resolved
from raybench.spec.own_loop import is_command, is_launched, is_own_loop, keys_of, words_of
from raybench.spec.run import OPEN, RESOURCES, ResourceRequest, RunSpec, is_open, nested
from raybench.spec.space import (
    Choices,
    Powers,
    Space,
    combinations,
    is_one_of,
    known_values,
    possible_values,
    resolve,
    values_of,
)
from raybench.spec.study import EVAL_INTERVAL, StudySpec
from raybench.spec.text import clean, identity, short
from raybench.training.command import values_of as values_of_command
from raybench.training.machine import LACKING, GpusSeen, gpus_of_framework, require_gpus

GPUS = "gpus_per_worker"
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


def is_installed(framework: str) -> bool:
    """Return whether a framework is installed."""
    return framework == "python" or importlib.util.find_spec(framework) is not None


def drop_uninstalled_frameworks(content: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Drop from a shipped space the frameworks that are not installed, unless none would remain.

    Returns:
        - The content of the space file.
        - Sentences about what was dropped.
    """
    frameworks = content["space"].get("framework")
    installed = (
        [framework for framework in frameworks if is_installed(framework)]
        if isinstance(frameworks, list)
        else []
    )
    if not installed or installed == frameworks:
        return content, []
    left_out = [framework for framework in frameworks if framework not in installed]
    sentence = f"Skipping {' and '.join(left_out)}: not installed; pip install 'raybench[all]'."
    return content | {"space": content["space"] | {"framework": installed}}, [sentence]


def check_task(
    spec: RunSpec, frameworks: list[str], *, is_target_ours: bool = False
) -> tuple[Objective, Dataset]:
    """Load and check the workload and data on the driver, so that mistakes are reported before Ray
    starts.

    Args:
        spec: Run spec of the run.
        frameworks: All frameworks in which the workload is trained.
        is_target_ours: Whether the target is raybench's default, which is an accuracy and is
            therefore dropped if the run has another metric.

    Returns:
        - The objective with its metric, direction and baseline value set.
        - The dataset.

    Raises:
        UserError: A framework, the workload, the data or the metric is wrong or missing.
    """
    refuse_hiding_files(Path.cwd())
    installed = [name for name in frameworks if is_installed(name)]
    for framework in frameworks:
        if framework not in installed:
            hint = (
                f", or leave it out: --set space.framework=[{', '.join(installed)}]"
                if installed
                else ""
            )
            raise UserError(
                f"framework {framework} is not installed; run: pip install "
                f"'raybench[{framework}]'{hint}.",
                ErrorCode.NOT_INSTALLED,
            )
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset, spec.model, spec.data)
    objective, task, custom_metric, baseline_value = (
        spec.objective,
        dataset.task,
        workload.metric,
        None,
    )
    if isinstance(workload, OwnLoop):
        if is_command(spec.workload):
            words_of(spec.workload, values_of_command(spec, spec.learning_rate))
        metric = custom_metric = _reported_metric(objective)
        task = METRICS[metric.name].tasks[0] if metric.name in METRICS else "classification"
    else:
        for framework in frameworks:
            require_framework(workload, framework)
            refuse_label_smoothing(spec.model_copy(update={"framework": framework}), workload)
        source = f"dataset {spec.dataset.name}"
        if is_own := spec.dataset.name == "workload":
            source = f"load_dataset of workload {spec.workload}"
        with user_code_errors(f"{source}: reading its samples failed"):
            check_dataset(dataset, source, is_own=is_own)
        check_augment(dataset, spec.augment)
        metric = find_metric(objective.metric, task=task, custom=custom_metric)
        has_own_loss = workload.torch_loss is not None or workload.keras_loss is not None
        # The baseline value of a loss that the user defines cannot be computed from labels alone.
        if metric.per_sample != "loss" or not has_own_loss:
            baseline_value = label_baseline(metric, dataset)
    _check_columns(metric)
    if is_target_ours and metric != ACCURACY:
        objective = objective.model_copy(update={"kind": BUDGET, "target": None})
    return resolved(
        objective, task=task, custom=custom_metric, baseline_value=baseline_value
    ), dataset


def _reported_metric(objective: Objective) -> Metric:
    """Return the metric that a training loop of the user reports."""
    name = OTHER_METRIC_NAMES.get(objective.metric or "", objective.metric or ACCURACY.name)
    if not re.match(METRIC_NAME, name) or not name.isprintable():
        raise UserError(
            f"objective.metric: {clean(name)!r} must be one line of 80 characters at most that "
            "begins with a letter, a digit or _.",
            ErrorCode.INVALID_VALUE,
        )
    if name not in METRICS and objective.direction is None:
        raise UserError(
            f"objective.metric: {name} is not a known metric; set objective.direction to max or "
            "min.",
            ErrorCode.MISSING,
        )
    return named_metric(name, objective.direction or "max", is_share=bool(objective.is_share))


def _check_columns(metric: Metric) -> None:
    """Raise UserError if the metric has the same name as another column of the result tables."""
    types = for_metric(TRIAL_TYPES | EXTRA_TYPES, metric)
    column_names = {*CURVE_TYPES, *RUN_COLUMNS, *CELL_COLUMNS, *NAMES} - {ACCURACY.name}
    if metric.name in column_names or len(types) < len(TRIAL_TYPES | EXTRA_TYPES):
        raise UserError(
            f"objective.metric: {metric.name} is also the name of a column of the tables; rename "
            "the metric.",
            ErrorCode.CONFLICT,
        )


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


def check_starts(*specs: RunSpec) -> list[str]:
    """Check the models and initial weights of runs, as far as possible without building the models.

    All other checks of a model take place in the first run, on a worker
    (`training.model_check.check_start`).

    Returns:
        Sentences with warnings about backbones that are frozen with random weights.

    Raises:
        UserError: A model class rejects its settings, a file of weights is missing, or a model
            with `frozen_epochs` has no head.
    """
    warnings: dict[str, None] = {}
    for spec in specs:
        workload, _ = load_workload_dataset(spec.workload, spec.dataset, spec.model, spec.data)
        if isinstance(workload, OwnLoop):
            continue
        if isinstance(workload, NamedWorkload):
            if spec.frozen_epochs and spec.weights == "none":
                warnings[
                    f"Workload {workload.name}: frozen_epochs freezes weights that are random; set "
                    "weights to a file or to cached."
                ] = None
        elif spec.frozen_epochs and workload.head is None:
            raise head_error(workload, [], "parameters or layers")
        weights_file(workload, spec.weights)
    return list(warnings)


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


def unused_key_warnings(workload: str, keys: Iterable[str], prefix: str = "") -> list[str]:
    """Return a warning for each key that the user's training command does not contain.

    Args:
        workload: The key `workload` of a run spec; there are no warnings unless it is a command.
        keys: Run-spec keys that have several values.
        prefix: Text before each key in the warnings.
    """
    if not is_command(workload):
        return []
    placeholders = keys_of(workload)
    if "global_batch_size" in placeholders:
        placeholders += ["batch_size_per_worker", "num_workers", "accumulate"]
    return [
        f"{prefix}{key}: the command has no {{{key}}}, so its values make no difference"
        for key in keys
        if key not in RESOURCES
        and not any(f"{placeholder}.".startswith(f"{key}.") for placeholder in placeholders)
        and not (key == "num_workers" and is_launched(workload))
    ]


def seed_warnings(workload: str, runs: str) -> list[str]:
    """Return a warning if the user's training command does not contain the seed.

    Args:
        workload: The key `workload` of a run spec; there is no warning unless it is a command.
        runs: Plural noun for the runs whose seeds should differ.
    """
    if not is_command(workload) or "seed" in keys_of(workload):
        return []
    return [
        f"the command has no {{seed}}, so {runs} use the same seed unless the script draws its own"
    ]


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


def check_address(address: str | None) -> None:
    """Raise UserError for a malformed address of a cluster."""
    if address is None or address in ("auto", "local", ""):
        return
    host, separator, port = address.rpartition(":")
    if not separator:
        return  # a host name without a port, which Ray resolves or rejects
    if "://" in address or not (port.isdigit() and 0 < int(port) < 2**16 and host):
        raise UserError(
            f"--address {address}: is not an address; write auto or HOST:6379 on a host of "
            "the cluster, or send the command there with ray job submit.",
            ErrorCode.INVALID_VALUE,
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
        study: The study.
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
    is_used, sentences = _uses_gpus(capacity, frameworks, num_workers, "--gpus-per-worker ")
    if is_used:
        content = content | {"fixed": (content.get("fixed") or {}) | {GPUS: 1}}
    return content, sentences


def spec_on_gpus(spec: RunSpec, capacity: Capacity, key: str = GPUS) -> tuple[RunSpec, list[str]]:
    """Set one GPU per worker by default in a run spec, if this machine has enough GPUs.

    Args:
        spec: Run spec of a run, or base of a scaling study. It stays unchanged if it sets the GPUs
            per worker.
        capacity: Resources of this machine.
        key: Key that sets the GPUs per worker with `--set`, for messages.

    Returns:
        - The run spec.
        - Sentences about the decision.
    """
    if GPUS in spec.model_fields_set:
        return spec, []
    num_workers = spec.resources.num_replicas
    is_used, sentences = _uses_gpus(capacity, [spec.framework], num_workers, f"--set {key}=")
    if is_used:
        spec = RunSpec.model_validate(spec.model_dump(exclude_unset=True) | {GPUS: 1})
    return spec, sentences


def _uses_gpus(
    capacity: Capacity, frameworks: list[str], num_workers: int, setting: str
) -> tuple[bool, list[str]]:
    """Return whether each worker trains on a GPU of this machine, and sentences about the reason.

    `setting` is the command-line option that sets the GPUs per worker, without the number.
    """
    if not capacity.gpus:
        return False, []
    machine_gpus = f"This machine has {capacity.gpus} GPU{'s' if capacity.gpus > 1 else ''}"
    if num_workers > capacity.gpus:
        return False, [
            f"{machine_gpus}, fewer than {num_workers} workers: runs train on its cores."
        ]
    for framework, visible in _visible_gpus(frameworks):
        if not visible.names:
            reason = f"{framework} sees none of them: {LACKING[framework]}"
            if visible.problem:
                reason = f"it is not known whether {framework} sees them: {visible.problem}"
            return False, [f"{machine_gpus}, and runs train on its cores, because {reason}."]
    return True, [f"{machine_gpus}: each worker trains on one; {setting}0 takes cores alone."]


def check_cluster(
    session: Session, console: Console, spec: RunSpec, *, are_gpus_named: bool, asking: str
) -> None:
    """Check that all hosts of a cluster have the files that workers need, and warn of unused GPUs.

    A session on this machine is not checked, because its files and GPUs were checked before Ray
    started. On a cluster, each worker checks its GPUs when it starts.

    Args:
        session: Ray connection.
        console: Console for the warning that GPUs are not used.
        spec: Run spec of the run, or base of all run specs.
        are_gpus_named: Whether the user has set the GPUs per worker.
        asking: Command-line option that sets one GPU per worker, for the warning.

    Raises:
        UserError: A host lacks a file.
    """
    if session.is_local:
        return
    check_files_there(session.capacity.nodes, files_of(spec))
    if (gpus := session.capacity.gpus) and not are_gpus_named:
        say(console, f"The cluster has {gpus} GPUs, and none is used; {asking} uses them.")


def files_of(spec: RunSpec) -> list[Path]:
    """Return the files and folders of this machine that the workers of a run need on their hosts:
    data, weights and the user's code."""
    code, _, _ = spec.workload.rpartition(":")  # file of a user's training loop, or a module
    module = getattr(sys.modules.get(code), "__file__", None)
    paths = (
        Path(path).absolute() for path in (spec.dataset.path, spec.weights, code, module) if path
    )
    # Installed packages are left out, since they may be in different folders on other hosts.
    return [path for path in paths if path.exists() and "-packages" not in str(path)]


def check_gpus(requests: Iterable[ResourceRequest]) -> None:
    """Raise UserError if a framework on this machine does not see the GPUs of its workers."""
    num_gpus: dict[str, int] = {}
    for request in requests:
        if request.gpus_per_worker:
            number = math.ceil(request.gpus_per_worker)
            num_gpus[request.framework] = max(number, num_gpus.get(request.framework, 0))
    for framework, visible in _visible_gpus(list(num_gpus)):
        require_gpus(framework, num_gpus[framework], len(visible.names), visible.problem)


def _visible_gpus(frameworks: list[str]) -> list[tuple[str, GpusSeen]]:
    """Return pairs (framework, GPUs that it sees), determined in parallel processes."""
    with ThreadPoolExecutor() as pool:
        return list(zip(frameworks, pool.map(gpus_of_framework, frameworks), strict=True))


def check_room(
    study: StudySpec, space: Space, capacity: Capacity, firsts: Iterable[RunSpec] = ()
) -> list[str]:
    """Check that the worker groups of a study fit on the cluster while nothing else runs on it.

    Args:
        study: The study.
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


def first_values(
    study: StudySpec, space: Space, preferred: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return a configuration of the space.

    Each key has its value in `preferred` if the values of the preceding keys allow it, else its
    first possible value.
    """
    values: dict[str, object] = {}
    for key, dimension in space.items():
        possible = possible_values(resolve(dimension, known_values(study.fixed, values)))
        value = (preferred or {}).get(key, possible[0])
        values[key] = value if is_one_of(key, value, possible) else possible[0]
    return values


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
