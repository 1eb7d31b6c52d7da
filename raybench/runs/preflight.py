"""Checks before anything starts: workload, data, frameworks, room on the cluster."""

import importlib.util
import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from raybench.cluster.capacity import Capacity
from raybench.cluster.doctor import check_files_there, check_gpus_there
from raybench.cluster.layout import Node
from raybench.cluster.session import Session
from raybench.data.augment import check_augment
from raybench.data.baseline import label_baseline
from raybench.data.check import check_dataset
from raybench.data.dataset import Dataset
from raybench.data.inspect.leaks import leak_lines
from raybench.models.base import OwnLoop, refuse_label_smoothing, users_code
from raybench.models.find import load_workload_dataset, require_framework
from raybench.models.hidden import refuse_hiding_files
from raybench.report.console import say
from raybench.results.trials import CURVE_TYPES, EXTRA_TYPES, TRIAL_TYPES, for_metric
from raybench.scaling.cells import CELL_COLUMNS
from raybench.scaling.runs import RUN_COLUMNS
from raybench.spec.errors import UserError
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
from raybench.spec.optimizer import is_librarys
from raybench.spec.own_loop import is_command, is_own_loop, keys_of, words_of
from raybench.spec.run import OPEN, RESOURCES, Placement, RunSpec, is_open, nested, value_of
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
from raybench.spec.study import EVAL_INTERVAL, TIME, StudySpec
from raybench.spec.text import clean
from raybench.spec.values import identity, short
from raybench.training.check_model import check_models
from raybench.training.command import values_of as values_of_command
from raybench.training.machine import LACKING, GpusSeen, framework_sees, require_gpus

HOOKS_OF = {
    "correct": ("torch_correct", "keras_correct"),
    "loss": ("torch_loss", "keras_loss"),
}
"""Hooks of a workload that say what is averaged, where it is not the labels alone."""
SAMPLED_WHOLE = (
    "The model has batch normalisation over each worker's own samples, so workers are searched "
    "like all else and not predicted (search.factorise: false); on GPUs sync_batch_norm: true "
    "takes the samples of all workers."
)
GPUS = "gpus_per_worker"
GROUP_KEYS = ("strategy", "framework", "num_workers", *RESOURCES)
"""Keys that a worker group is asked for by."""
MOST_SAID = 5
ASKED_AHEAD = 4
"""Trials that wait for a worker group to reuse. In 60 trials over two frameworks and 1, 2 or 4
workers on 4 GPUs 24 groups start, without any 34, and 53 where none overtakes another either; 8
save 5 more, and the sampler knows less when it proposes."""
AUTOSCALED_CONCURRENCY = 4
"""Trials at once on a cluster that starts nodes by itself, at least."""


def is_installed(framework: str) -> bool:
    """Return whether this Python has a framework."""
    return framework == "python" or importlib.util.find_spec(framework) is not None


def without_missing(content: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Leave frameworks that are not installed out of a shipped space, while another remains."""
    named = content["space"].get("framework")
    there = [one for one in named if is_installed(one)] if isinstance(named, list) else []
    if not there or there == named:
        return content, []
    left_out = [one for one in named if one not in there]
    said = (
        f"Without {' and '.join(left_out)}, which this Python has not: pip install 'raybench[all]'."
    )
    return content | {"space": content["space"] | {"framework": there}}, [said]


def check_task(
    spec: RunSpec, frameworks: list[str], *, is_target_ours: bool = False
) -> tuple[Objective, Dataset]:
    """Load workload and data here, so that what is missing is said before Ray starts.

    Return the objective with metric, direction and chance level named, and the data.
    `is_target_ours`: nobody has named the target; it is for accuracy alone, so what is judged by
    another metric trains without one.
    """
    refuse_hiding_files(Path.cwd())
    there = [one for one in frameworks if is_installed(one)]
    for framework in frameworks:
        if framework not in there:
            rest = f", or leave it out: --set space.framework=[{', '.join(there)}]" if there else ""
            raise UserError(
                f"framework {framework} is not installed; run: pip install "
                f"'raybench[{framework}]'{rest}."
            )
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset, spec.model, spec.data)
    objective, task, own, baseline_value = spec.objective, dataset.task, workload.metric, None
    if isinstance(workload, OwnLoop):
        if is_command(spec.workload):
            words_of(spec.workload, values_of_command(spec, spec.learning_rate))
        metric = own = _reported(objective)
        task = METRICS[metric.name].tasks[0] if metric.name in METRICS else "classification"
    else:
        for framework in frameworks:
            require_framework(workload, framework)
            refuse_label_smoothing(spec.model_copy(update={"framework": framework}), workload)
        source = f"dataset {spec.dataset.name}"
        if is_own := spec.dataset.name == "workload":
            source = f"load_dataset of workload {spec.workload}"
        with users_code(f"{source}: reading its samples failed"):
            check_dataset(dataset, source, is_own=is_own)
        check_augment(dataset, spec.augment)
        metric = find_metric(objective.metric, task=task, own=own)
        hooks = HOOKS_OF.get(metric.per_sample, ())
        if all(getattr(workload, hook) is None for hook in hooks):
            baseline_value = label_baseline(metric, dataset)
    _check_columns(metric)
    if is_target_ours and metric != ACCURACY:
        objective = objective.model_copy(update={"kind": BUDGET, "target": None})
    return resolved(objective, task=task, own=own, baseline_value=baseline_value), dataset


def _reported(objective: Objective) -> Metric:
    """Return the metric of a training loop of the user's own, which measures it itself."""
    name = OTHER_METRIC_NAMES.get(objective.metric or "", objective.metric or ACCURACY.name)
    if not re.match(METRIC_NAME, name) or not name.isprintable():
        raise UserError(
            f"objective.metric: {clean(name)!r} must be one line of 80 characters at most that "
            "begins with a letter, a digit or _."
        )
    if name not in METRICS and objective.direction is None:
        raise UserError(
            f"objective.metric: {name} is not known here; say which way is better: "
            "objective.direction: max, or min."
        )
    return named_metric(name, objective.direction or "max", is_share=bool(objective.is_share))


def _check_columns(metric: Metric) -> None:
    """Raise UserError for a metric whose columns would be others' too."""
    types = for_metric(TRIAL_TYPES | EXTRA_TYPES, metric)
    taken = {*CURVE_TYPES, *RUN_COLUMNS, *CELL_COLUMNS} - {ACCURACY.name}
    if metric.name in taken or len(types) < len(TRIAL_TYPES | EXTRA_TYPES):
        raise UserError(
            f"objective.metric: {metric.name} is the name of a column in the tables already; give "
            "the metric another."
        )


def check_study(study: StudySpec, space: Space) -> tuple[StudySpec, Dataset, list[str]]:
    """Check what a study trains, without Ray.

    Return the study with its metric named, the data, and warnings in sentences.
    """
    frameworks = [str(value) for value in values_of("framework", space, study.fixed)]
    spec = study.run_spec(first_values(study, space))
    if study.needs_target:  # what stands there until reference runs set it is no target
        objective = spec.objective.model_copy(update={"target": None})
        spec = spec.model_copy(update={"objective": objective})
    objective, dataset = check_task(spec, frameworks)
    if study.needs_target:
        objective = objective.model_copy(update={"target": study.objective.target})
    study = study.model_copy(update={"objective": objective})
    spec = spec.model_copy(update={"objective": objective})
    if is_own_loop(study.workload):
        return study, dataset, _without_effect(study, space)
    others = other_starts(study, space, spec)
    warnings, has_batch_statistics = check_models(spec, frameworks, others=others)
    warnings += leak_lines(dataset)
    check_data(study, space, spec, dataset)
    if has_batch_statistics and _takes_apart(study, space):
        search = study.search.model_copy(update={"factorise": False})
        return study.model_copy(update={"search": search}), dataset, [*warnings, SAMPLED_WHOLE]
    return study, dataset, warnings


def check_data(study: StudySpec, space: Space, spec: RunSpec, dataset: Dataset) -> None:
    """Load what other values of the data's settings give; UserError where their validation rows are
    others: times to a target on several sets of rows say which rows are easy."""
    keys = [key for key in space if is_open(key, "data")]
    for values in combinations(space, study.fixed, keys):
        given = {key: values[key] for key in keys}
        own = nested({"data": spec.data} | given).get("data", {})
        if identity(own) == identity(spec.data):
            continue
        _, other = load_workload_dataset(spec.workload, spec.dataset, spec.model, own)
        shown = ", ".join(f"{key} {short(value)}" for key, value in given.items())
        with users_code(f"{shown}: reading its samples failed"):
            check_dataset(other, f"load_dataset of workload {spec.workload} ({shown})", is_own=True)
        if not np.array_equal(other.validation.labels, dataset.validation.labels):
            raise UserError(
                f"{shown}: has other validation rows than the first values; a search judges all by "
                "the same rows: split by spec.split_seed alone, whatever else is set."
            )


def _without_effect(study: StudySpec, space: Space) -> list[str]:
    """Return what is said of searched keys that a loop of the user's own does not name, in
    sentences: a misspelt one would be searched in vain."""
    searched = [key for key in space if key not in RESOURCES]
    if is_command(study.workload):
        placed = keys_of(study.workload)
        return [
            f"space.{key}: the command has no {{{key}}}, so all its values train alike"
            for key in searched
            if not any(f"{one}.".startswith(f"{key}.") for one in placed)
        ]
    file = study.workload.rpartition(":")[0]
    text = Path(file).read_text(errors="replace")
    named = {*re.findall(r"\w+", text)}
    hands_on = HANDED_ON.search(text) is not None  # its settings as a whole, to another file
    return [
        f"space.{key}: {file} does not name it; if it is misspelt, all its values train alike"
        for key in searched
        if not named & {key.rpartition(".")[2], SUMS.get(key, key)}
        and not (hands_on and is_open(key, "model"))
    ]


HANDED_ON = re.compile(r"\.model\b(?!\s*[\[.])")
SUMS = {"batch_size_per_worker": "global_batch_size"}
"""Sums that a loop may read in place of a key."""


def _takes_apart(study: StudySpec, space: Space) -> bool:
    """Whether the search would predict other numbers of workers, and nobody has asked for that."""
    several = len(possible_values(space["num_workers"])) > 1 if "num_workers" in space else False
    return several and "factorise" not in study.search.model_fields_set and study.search.factorise


LARGE_BATCH = 2**20
"""Samples a step that a study of fewer samples may name all the same, where it is a range's end."""


def check_evaluations(study: StudySpec, space: Space, dataset: Dataset) -> None:
    """Raise UserError where a run ends before it can hold the target, or take a step."""
    if is_own_loop(study.workload):
        return
    hold = study.objective.hold
    epochs = float(known_values(study.fixed, {})["epochs"])
    samples = epochs * dataset.num_train_samples
    largest = max(map(int, values_of("batch_size_per_worker", space, study.fixed)))
    if largest > max(samples, LARGE_BATCH) and "epochs" not in space:
        raise UserError(
            f"batch_size_per_worker: {largest:,} is more than the {samples:,.0f} samples that a "
            f"run of {epochs:g} epochs sees; name a smaller one."
        )
    eval_interval = study.fixed.get(EVAL_INTERVAL, 1 if EVAL_INTERVAL in study.auto else None)
    batch = int(study.fixed.get("batch_size_per_worker", 1))
    if eval_interval is None or "epochs" in study.space:
        return
    count = math.ceil(samples / max(int(eval_interval), batch))
    if study.objective.kind == TIME and hold > count:
        raise UserError(
            f"objective.hold: {hold} evaluations in a row cannot come, a run of {epochs:g} epochs "
            f"has {count}; lower hold, or raise fixed.epochs."
        )


def check_time_budget(seconds: float | None) -> None:
    """Raise UserError for a time budget in which nothing can be."""
    if seconds is not None and seconds <= 0:
        raise UserError(f"--time-budget {seconds:g}: must be above 0 seconds.")


def check_address(address: str | None) -> None:
    """Raise UserError for a cluster's address that cannot be one."""
    if address is None or address in ("auto", "local", ""):
        return
    host, separator, port = address.rpartition("://")[2].rpartition(":")
    if not separator and "://" not in address:
        return  # a name that Ray resolves, or refuses
    if separator and not (port.isdigit() and 0 < int(port) < 2**16 and host):
        raise UserError(
            f"--address {address}: is no address; write auto, HOST:6379 or ray://HOST:10001, with "
            "a port from 1 to 65535."
        )


def without_too_wide(
    content: dict[str, Any], study: StudySpec, space: Space, capacity: Capacity
) -> tuple[dict[str, Any], list[str]]:
    """Leave worker counts out that this machine has no room for, while others remain.

    So a space of 1 and 2 workers is searched with one on a machine of one core. Returns the
    content and what was left out, in sentences; a study of none that fits is left as it is.
    """
    dimension = space.get("num_workers")
    if not isinstance(dimension, Choices | Powers):
        return content, []
    fitting = {
        group.num_workers * group.replicas_per_process
        for group in groups(study, space)
        if capacity.fits(group)
    }
    values = possible_values(dimension)
    kept = [value for value in values if value in fitting]
    if not kept or len(kept) == len(values):
        return content, []
    left = ", ".join(str(value) for value in values if value not in fitting)
    plural = "s" if capacity.cpus != 1 else ""
    sentence = (
        f"num_workers {left}: left out, this machine has {capacity.cpus} CPU{plural} and "
        f"{capacity.gpus} GPUs; --address searches a cluster."
    )
    return content | {"space": content["space"] | {"num_workers": kept}}, [sentence]


Kind = tuple[str, int]
"""Framework and number of workers."""


def groups(study: StudySpec, space: Space) -> list[Placement]:
    """Return every worker group a study can ask for (bounds only, where a range is searched)."""
    found: dict[Placement, None] = {}
    for one in combinations(space, study.fixed, GROUP_KEYS):
        resources = [one[key] for key in RESOURCES]
        group = Placement(one["framework"], one["num_workers"], 0, *resources)
        is_one = one["strategy"] == "single_process" or is_command(study.workload)
        found[group.in_one_process if is_one else group] = None
    return list(found)


STARTING = 1 / 3
"""Share of what is left of a time budget that starting further kinds of groups may take."""


def kinds_in_time(
    every: Collection[Kind], started: Collection[Kind], *, start_s: float, left_s: float
) -> set[Kind] | None:
    """Return the kinds of worker group that a search has time for; None: all of them.

    Those that were `started`, one in `start_s` seconds, where starting each of the others once
    would take more than a third of the `left_s` seconds.
    """
    num_others = len(set(every) - set(started))
    return None if num_others * start_s <= STARTING * left_s else set(started)


def with_gpus(
    content: dict[str, Any],
    study: StudySpec,
    space: Space,
    capacity: Capacity,
    *,
    all_workers: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Let each worker train on a GPU where this machine has some and nobody says of how many.

    Returns the content and what was decided, in sentences. All frameworks have to see them, and
    there have to be as many as there are workers at least, with `all_workers` at most.
    """
    if GPUS in space or GPUS in study.fixed:
        return content, []
    workers = [one.num_workers * one.replicas_per_process for one in groups(study, space)]
    frameworks = [str(one) for one in values_of("framework", space, study.fixed)]
    wanted = max(workers) if all_workers else min(workers)
    is_used, said = _uses_gpus(capacity, frameworks, wanted, "--gpus-per-worker ")
    if is_used:
        content = content | {"fixed": content.get("fixed", {}) | {GPUS: 1}}
    return content, said


def spec_on_gpus(spec: RunSpec, capacity: Capacity, key: str = GPUS) -> tuple[RunSpec, list[str]]:
    """Do the same for one run, or what the runs of a scaling study have in common.

    `key` is how `--set` calls it. A value that the user, or the file of a search, has set stands.
    """
    if GPUS in spec.model_fields_set:
        return spec, []
    wanted = spec.placement.num_workers * spec.placement.replicas_per_process
    is_used, said = _uses_gpus(capacity, [spec.framework], wanted, f"--set {key}=")
    if is_used:
        spec = RunSpec.model_validate(spec.model_dump(exclude_unset=True) | {GPUS: 1})
    return spec, said


def _uses_gpus(
    capacity: Capacity, frameworks: list[str], num_workers: int, setting: str
) -> tuple[bool, list[str]]:
    """Return whether each worker trains on a GPU of this machine, and why or why not, in sentences.

    `setting`: how the command line names the GPUs a worker, up to their number.
    """
    if not capacity.gpus and capacity.knows_gpus:
        return False, []
    if not capacity.gpus:
        return False, [
            "This machine seems to have GPUs, but no NVIDIA driver answers that counts them: runs "
            f"train on its cores; {setting}1 trains on a GPU all the same."
        ]
    there = f"This machine has {capacity.gpus} GPU{'s' if capacity.gpus > 1 else ''}"
    if num_workers > capacity.gpus:
        return False, [f"{there}, fewer than {num_workers} workers: runs train on its cores."]
    for framework, seen in _seen_by(frameworks):
        if not seen.names:
            why = f"{framework} sees none of them: {LACKING[framework]}"
            if seen.problem:
                why = f"it is not known whether {framework} sees them: {seen.problem}"
            return False, [f"{there}, and runs train on its cores, because {why}."]
    return True, [f"{there}: each worker trains on one; {setting}0 takes cores alone."]


def check_cluster(
    session: Session,
    console: Console,
    placements: Iterable[Placement],
    *,
    are_gpus_named: bool,
    asking: str,
    spec: RunSpec,
) -> None:
    """Say which GPUs of a connected cluster are not used; UserError where a framework does not see
    those that its workers are to have, or a host has not what `spec` reads.

    A machine of our own was checked before Ray started. `asking` names one GPU a worker, on the
    command line.
    """
    if session.is_local:
        return
    check_files_there(session.capacity.nodes, files_of(spec))
    check_gpus_there(session.capacity.nodes, placements)
    if (gpus := session.capacity.gpus) and not are_gpus_named:
        say(console, f"The cluster has {gpus} GPUs, and none is used: {asking} uses them.")


def files_of(spec: RunSpec) -> list[Path]:
    """Return the files and folders of this machine that the workers of a run read too."""
    code, _, _ = spec.workload.rpartition(":")  # a loop's file, or a module that is imported here
    module = getattr(sys.modules.get(code), "__file__", None)
    paths = (Path(one).absolute() for one in (spec.dataset.path, spec.weights, code, module) if one)
    # What is installed lies elsewhere on a host with another Python.
    return [path for path in paths if path.exists() and "-packages" not in str(path)]


def check_gpus(placements: Iterable[Placement]) -> None:
    """Raise UserError where a framework does not see the GPUs that its workers are to have, on
    this machine."""
    needed: dict[str, int] = {}
    for one in placements:
        if one.gpus_per_worker:
            number = math.ceil(one.gpus_per_worker)
            needed[one.framework] = max(number, needed.get(one.framework, 0))
    for framework, seen in _seen_by(list(needed)):
        require_gpus(framework, needed[framework], len(seen.names), seen.problem)


def _seen_by(frameworks: list[str]) -> list[tuple[str, GpusSeen]]:
    """Return what each sees of GPUs, asked in processes side by side."""
    with ThreadPoolExecutor() as pool:
        return list(zip(frameworks, pool.map(framework_sees, frameworks), strict=True))


def check_room(
    study: StudySpec, space: Space, capacity: Capacity, firsts: Iterable[RunSpec] = ()
) -> list[str]:
    """Raise UserError if no group the study can ask for fits the empty cluster, or one of `firsts`,
    the user's own configurations, does not.

    Of some that do not, return what is left out, in a sentence: the search asks for no such run.
    """
    for spec in firsts:
        capacity.refuse_infeasible(spec.placement.group)
    every = groups(study, space)
    left = [group for group in every if not capacity.may_hold(group)]
    if not left:
        return []
    if len(left) == len(every):
        capacity.refuse_infeasible(min(left, key=lambda group: (group.gpus, group.cpus)))
    said = dict.fromkeys(
        f"{one.num_workers * one.replicas_per_process} of {one.cpus_per_worker} CPU"
        + (f" and {one.gpus_per_worker:g} GPU" if one.gpus_per_worker else "")
        for one in left
    )
    more = f" and {len(said) - MOST_SAID} more" if len(said) > MOST_SAID else ""
    return [
        f"workers {', '.join(list(said)[:MOST_SAID])}{more}: left out, there is room for "
        f"{capacity.cpus} CPU and {capacity.gpus} GPU; all other combinations are searched."
    ]


def first_groups(study: StudySpec, space: Space, capacity: Capacity) -> list[Placement]:
    """Return the groups to start while the search itself starts, as many as fit.

    Those of frameworks that are used in one kind of group only: of several, the first trials
    decide, and a group nobody asks for yet would keep them waiting.
    """
    chosen: list[Placement] = []
    every = groups(study, space)
    kinds = Counter(group.framework for group in every)
    for group in every:
        if kinds[group.framework] == 1 and capacity.fits_together([*chosen, group]):
            chosen.append(group)
    return chosen


def default_concurrency(study: StudySpec, space: Space, capacity: Capacity) -> int:
    """Return how many of the smallest trials the cluster holds at once.

    One that grows is asked for a few whatever it has: what nobody waits for it does not start.
    """
    smallest = min(groups(study, space), key=lambda group: (group.gpus, group.cpus))
    least = AUTOSCALED_CONCURRENCY if capacity.grows else 1
    return max(least, capacity.most_workers(smallest) // smallest.num_workers)


def following(
    study: StudySpec, space: Space, capacity: Capacity
) -> Callable[[tuple[Node, ...]], int] | None:
    """Return what tells the concurrency from the nodes of a moment; None where the user has."""
    if study.search.concurrency:
        return None
    return lambda nodes: default_concurrency(study, space, replace(capacity, nodes=nodes))


def num_asked_ahead(study: StudySpec, space: Space, *, is_local: bool) -> int:
    """Return how many trials wait beside those that the cluster holds, so that one of them may need
    no new worker group (`ResourceScheduler.admit`).

    0 where idle groups keep no machines from others, and where the user has set the concurrency.
    """
    every = groups(study, space)
    is_idle_held = not is_local or any(group.gpus_per_worker for group in every)
    return ASKED_AHEAD if is_idle_held and len(every) > 1 and not study.search.concurrency else 0


START_KEYS = ("weights", "frozen_epochs", "sync_batch_norm")
"""Keys that say what a model begins with: a value of theirs may be one that it cannot have."""


def first_values(
    study: StudySpec, space: Space, wanted: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return a configuration of the space: the first value of every key, as its cases go.

    Of a key of `wanted` that value, where the values before it allow it.
    """
    values: dict[str, object] = {}
    for key, dimension in space.items():
        possible = possible_values(resolve(dimension, known_values(study.fixed, values)))
        asked = (wanted or {}).get(key, possible[0])
        values[key] = asked if is_one_of(key, asked, possible) else possible[0]
    return values


def other_starts(study: StudySpec, space: Space, spec: RunSpec) -> list[RunSpec]:
    """Return `spec` with other values that are searched of what a model begins with, and of its
    own settings.

    Each value stands in one of them, not every combination.
    """
    starts = [key for key in START_KEYS if key in space]
    settings = [key for key in space if is_open(key, "model")]
    if any(map(is_librarys, values_of("optimizer", space, study.fixed))):
        starts += [key for key in ("framework", "optimizer") if key in space]
        settings += [key for key in space if is_open(key, "optimizer_options")]
    every = {key: values_of(key, space, study.fixed) for key in (*starts, *settings)}
    wanted: list[dict[str, object]] = [
        dict(zip(starts, combination, strict=True))
        for combination in itertools.product(*(every[key] for key in starts))
    ]
    wanted += [before | {key: one} for key in settings for one in every[key] for before in wanted]
    seen = {(key, identity(value_of(spec, key))) for key in every}
    before = {key: getattr(spec, key) for key in OPEN}
    found = []
    for given in wanted:
        values = first_values(study, space, given)
        own = {key: values[key] for key in every}
        pairs = {(key, identity(value)) for key, value in own.items()}
        if not pairs <= seen:
            seen |= pairs
            found.append(spec.model_copy(update=nested(before | own)))
    return found
