"""Checks that run before a study starts: workload, data, frameworks, and resources of the
cluster."""

import math
import re
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

from raybench.cluster.layout import Capacity
from raybench.cluster.session import Session, check_files_there
from raybench.data.augment import check_augment
from raybench.data.check import check_dataset
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
from raybench.spec.objective import BUDGET, Objective, resolved
from raybench.spec.own_loop import is_command, is_launched, keys_of, words_of
from raybench.spec.run import RESOURCES, ResourceRequest, RunSpec, installed_frameworks
from raybench.spec.space import (
    Space,
    is_one_of,
    known_values,
    possible_values,
    resolve,
)
from raybench.spec.study import StudySpec
from raybench.spec.text import clean
from raybench.training.command import values_of as values_of_command
from raybench.training.machine import LACKING, GpusSeen, gpus_of_framework, require_gpus

GPUS = "gpus_per_worker"


def is_installed(framework: str) -> bool:
    """Return whether a framework is installed."""
    return framework == "python" or framework in installed_frameworks()


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
        weights_file(workload, spec.weights, spec.framework)
    return list(warnings)


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
    is_used, sentences = uses_gpus(capacity, [spec.framework], num_workers, f"--set {key}=")
    if is_used:
        spec = RunSpec.model_validate(spec.model_dump(exclude_unset=True) | {GPUS: 1})
    return spec, sentences


def uses_gpus(
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
