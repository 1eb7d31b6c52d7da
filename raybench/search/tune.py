"""The `tune` command: reads the study, prints the plan or runs it, and prints the result."""

import importlib
import math
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from raybench.cluster.capacity import Capacity, local_capacity
from raybench.cluster.session import chosen_address
from raybench.cluster.signals import Interrupt
from raybench.data.dataset import NO_DATA, Dataset
from raybench.loggers.follow import Loggers, check_loggers
from raybench.report.console import make_console, say
from raybench.report.export import export
from raybench.report.live.progress import lines_for
from raybench.report.page import try_page
from raybench.report.show import show
from raybench.report.words import target_words
from raybench.results.place import (
    check_place,
    is_url,
    refuse_other_study,
    shipped_space,
    unused_folder,
)
from raybench.results.ranking import ranked
from raybench.results.records import read_records
from raybench.results.storage import open_storage, study_file, unused_url
from raybench.results.store import RECORDS_FILE, STUDY_FILE, Store
from raybench.results.study import Study, load
from raybench.results.verdict import judge
from raybench.runs import preflight
from raybench.runs.code_change import code_versions
from raybench.runs.deadline import Deadline
from raybench.runs.options import TuneOptions
from raybench.runs.wait_watch import RAY_LOG, live_session, quiet
from raybench.search.curve_search import BEYOND, widens
from raybench.search.factorisation import SPEED_KEYS, Factors, speed_values, study_factors
from raybench.search.race_stage import OVER, TURNS
from raybench.search.reference import RUNS, earlier_settings
from raybench.search.sampling.default_rates import check_grid, num_trials
from raybench.search.sampling.earlier import Earlier, load_earlier, settings_of
from raybench.search.sampling.first import first_specs, num_outside
from raybench.search.verify import num_placement_checks
from raybench.spec.dataset_spec import with_whole_paths
from raybench.spec.documents import content_of, read_mapping
from raybench.spec.errors import DONE, FAILED, INTERRUPTED, NOT_REACHED, Ended, ErrorCode, UserError
from raybench.spec.objective import TIME
from raybench.spec.run import RunSpec, describe, label_keys
from raybench.spec.space import Cases, Dimension, Range, Simple, Space, possible_values, values_of
from raybench.spec.study import (
    COMMON,
    EVAL_INTERVAL,
    ConfirmSpec,
    StudySpec,
    build_study,
    load_content,
)
from raybench.spec.text import counted
from raybench.spec.values import short
from raybench.stats.standing import stages
from raybench.training.machine import machine_facts, problems_of

GROUP_START_S = 15.0
"""Seconds to start a worker group; measured: torch 9-13, TensorFlow 17-30 on two cores."""


WIDENS = (
    f"learning rates up to a factor of {BEYOND:g} beyond their range are tried where the model "
    "expects an improvement (search.widen)"
)


def print_plan(
    console: Console,
    study: StudySpec,
    space: Space,
    dataset: Dataset,
    place: str,
    factors: Factors | str,
    capacity: Capacity | None,
) -> None:
    """Print the search space, the data, the worker groups and an upper bound of the time.

    Args:
        console: Where to print.
        study: The study.
        space: Its search space.
        dataset: Its data.
        place: Results folder or URL.
        factors: The factorized space, or the reason why it is sampled as a whole.
        capacity: Resources of this machine; None for a cluster, which is not contacted.
    """
    table = Table(title="Search space", title_justify="left", box=None, pad_edge=False)
    table.add_column("key")
    table.add_column("values")
    for key, dimension in space.items():
        for line in _describe(dimension):
            table.add_row(key, line)
    for key, value in study.fixed.items():
        table.add_row(key, f"{short(value)} (fixed)")
    console.print(table, "")
    every = preflight.groups(study, space)
    widest = max(group.cpus for group in every)
    objective = study.objective
    runs = planned_trials(study, space, factors)
    is_auto = "max_train_seconds" in study.auto and not study.is_set
    most = f"of at most {objective.max_train_seconds:g} s training"
    if is_auto:
        most = "(a reference run sets how long each may train)"
    for line in (
        _objective(study),
        f"workload {study.workload}, {_data(study, dataset)}",
        f"frameworks {', '.join(map(str, values_of('framework', space, study.fixed)))}; "
        f"{len(every)} kinds of worker group, the widest takes {widest} CPUs "
        f"and {max(group.gpus for group in every)} GPUs",
        f"{counted(runs, 'trial')} {most}, {_confirming(study.confirm, runs)}",
        _length(study, _most_s(study, space, factors, capacity), capacity),
        _sampling(factors),
        *([WIDENS] if widens(study, space) else []),
        *_reference(study),
        *_firsts(study, space),
        f"results: {place}",
    ):
        console.print(line, highlight=False, soft_wrap=True)


def planned_trials(study: StudySpec, space: Space, factors: Factors | str) -> int:
    """Return the number of trials of a study."""
    apart = None if isinstance(factors, str) else factors
    return num_trials(study, space, apart, outside=num_outside(study, space))


def _most_s(
    study: StudySpec, space: Space, factors: Factors | str, capacity: Capacity | None
) -> float:
    """Return an upper bound of the study's seconds without evaluation; infinite if unknown."""
    budget, seconds = study.search.time_budget_s, study.objective.max_train_seconds
    bound = math.inf if budget is None else budget
    is_set_later = "max_train_seconds" in study.auto and not study.is_set
    if capacity is None or is_set_later:
        return bound
    every, runs = preflight.groups(study, space), planned_trials(study, space, factors)
    slots = study.search.concurrency or capacity.cpus
    slots = min(capacity.most_groups(group, slots) for group in every)
    confirm, is_timed = study.confirm, study.objective.kind == TIME
    # The races for the fastest and the cheapest may have no run in common.
    kinds = 2 if is_timed and len(every) > 1 else 1
    references = (RUNS if study.needs_target else 1) if study.needs_reference else 0
    beside = math.ceil(references / slots) + math.ceil(runs / slots)
    beside += math.ceil(kinds * confirm.race / slots)
    # Runs alone may overrule the race, and then others run alone.
    alone = num_placement_checks(factors)
    alone += TURNS * kinds * confirm.fresh if confirm.race else 0
    return min(bound, (beside + alone) * seconds + len(every) * GROUP_START_S)


def _length(study: StudySpec, bound: float, capacity: Capacity | None) -> str:
    """Return the sentence on the upper bound of the time."""
    where = "on the cluster"
    if capacity is not None:
        has = f"{capacity.cpus} cores" + (f" and {capacity.gpus} GPUs" if capacity.gpus else "")
        where = f"on this machine's {has}"
    if math.isinf(bound):
        return f"how long it takes {where} is not known beforehand; --time-budget ends it in time"
    length = f"{bound / 60:.0f} min" if bound >= 600 else f"{bound:.0f} s"
    apart = "" if bound == study.search.time_budget_s else ", evaluation apart"
    return (
        f"at most about {length} {where}{apart}; runs that reach the target or fall behind end "
        "sooner"
    )


def _objective(study: StudySpec) -> str:
    """Return the sentence on the objective: kind, metric, target and training limit."""
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
    """Return the name, source and sizes of the dataset."""
    if dataset is NO_DATA:
        return "with data of its own"
    places = [place for place in (study.dataset.set, study.dataset.path) if place]
    return (
        " ".join([f"dataset {dataset.name}", *places])
        + f": {dataset.num_train_samples:,} training, {len(dataset.validation):,} validation, "
        f"{len(dataset.test):,} test samples"
    )


def _confirming(confirm: ConfirmSpec, trials: int) -> str:
    if not confirm.race:
        return "not confirmed"
    candidates, fresh = min(stages(confirm.race)[0][0], trials), confirm.fresh
    alone = f"{fresh} run{'s' if fresh > 1 else ''} of each winner alone"
    return f"then a race of {confirm.race} runs over the best {candidates}, {alone}"


def _reference(study: StudySpec) -> list[str]:
    if not study.needs_reference:
        return []
    runs = f"{RUNS} reference runs set" if study.needs_target else "a reference run sets"
    return [f"before: {runs} {', '.join(study.auto)}"]


def _firsts(study: StudySpec, space: Space) -> list[str]:
    keys = label_keys(study.space)
    return [f"first: {describe(spec, keys)}" for spec in first_specs(study, space).values()]


def _sampling(factors: Factors | str) -> str:
    if isinstance(factors, str):
        return f"every key is sampled ({factors})"
    every = [speed_values(one) for one in factors.all_placements]
    predicted = [
        key
        for key in SPEED_KEYS
        if key not in factors.sampled and len({one[key] for one in every}) > 1
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


def tune(options: TuneOptions, interrupt: Interrupt) -> Ended:
    """Search, confirm, write and print the results; return how the command ended."""
    # This handle stays; sys.stdout is redirected while Ray runs.
    console = make_console(file=sys.stdout)
    check_loggers(options.log)
    content, source, name = study_content(options)
    preflight.check_address(options.address)
    place = check_place(options.out or f"results/{name}")
    words: list[str] = []
    if isinstance(options.space, str) and shipped_space(options.space):
        content, words = preflight.without_missing(content)
    study, space = build_study(content, source)
    if chosen_address(options.address) is None:
        # A file may be shared between machines; the command line is meant for this one.
        named = options.workers is not None or any("num_workers" in key for key in options.settings)
        content, given = preflight.with_gpus(
            content, study, space, local_capacity(), all_workers=named
        )
        words += given
        study, space = build_study(content, source)
        if not named:
            content, left = preflight.without_too_wide(content, study, space, local_capacity())
            study, space = build_study(content, source)
            words += left
        firsts = first_specs(study, space).values()
        words += preflight.check_room(study, space, local_capacity(), firsts)
        preflight.check_gpus(preflight.groups(study, space))
    study, dataset, warnings = preflight.check_study(study, space)
    words += warnings
    preflight.check_evaluations(study, space, dataset)
    check_grid(study, space)
    if options.fresh:
        place = unused_url(place) if is_url(place) else str(unused_folder(Path(place)))
    unset, study = study, _continued(study, place, study_file(place))
    earlier = load_earlier(options.seed_from, study, space) if options.seed_from else None
    study, taken = settings_of(earlier, study) if earlier else (study, [])
    words += taken
    for sentence in words:
        say(console, sentence)
    if options.more is not None and study_file(place) is None:
        check_finished(options.more, place, None)
    if options.dry_run:
        is_here = chosen_address(options.address) is None
        for sentence in problems_of(machine_facts(is_quick=True)) if is_here else ():
            say(console, sentence)
        capacity = local_capacity() if is_here else None
        factors = study_factors(study, space)
        print_plan(console, study, space, dataset, place, factors, capacity)
        most_s = _most_s(study, space, factors, capacity)
        numbers = {
            "num_trials": planned_trials(study, space, factors),
            "at_most_s": most_s if math.isfinite(most_s) else None,
        }
        plan = study.document() | {"results": place} | numbers
        return Ended(DONE, answer=words, details={"plan": plan})
    # The time budget of a finished study was for its search.
    budget_s = study.search.time_budget_s if options.more is None else options.time_budget
    deadline = Deadline(budget_s, began=interrupt.began, interrupt=interrupt)
    refuse_spent(deadline)
    warn = partial(say, console)
    with (
        open_storage(place, warn=warn) as storage,
        Loggers(options.log, storage.folder, place=place, say=warn) as loggers,
    ):
        # Again, now that the place is locked and its latest state is here.
        here = storage.folder / STUDY_FILE
        study = _continued(unset, place, here if here.is_file() else None)
        study, taken = settings_of(earlier, study) if earlier else (study, [])
        if options.more is not None:
            check_finished(options.more, place, storage.folder)
        versions = code_versions(
            {study.workload}, place, storage.folder, is_kept=options.keep_code_change
        )
        with Store(storage.folder, storage.check, versions=versions) as store:
            interrupt.defer()
            loggers.start()
            interrupted = _run(
                options, study, space, store, console, dataset, earlier, taken, interrupt, deadline
            )
            loggers.end()
            store.check()
            results = replace(load(storage.folder), place=place)
            export(results, store)
            try_page(results, storage.folder, partial(say, console))
        show(console, results, verbose=options.verbose)
    if interrupted:
        tail = "." if results.trials.empty else ": the same command continues."
        console.print(f"interrupted{tail}")
        return Ended(INTERRUPTED, place)
    return Ended(exit_code(results), place)


def exit_code(results: Study) -> int:
    """Return the exit code of a study that was not interrupted."""
    if not len(ranked(results.trials)):
        return FAILED
    return NOT_REACHED if judge(results) is None else DONE


def _continued(study: StudySpec, place: str, file: Path | None) -> StudySpec:
    """Return the study with the settings of an earlier session in `file`, if there is one.

    Raises:
        UserError: The file holds another study.
    """
    if file is None:
        return study
    study = earlier_settings(study, read_mapping(file))
    refuse_other_study(place, file, study)
    return study


def refuse_spent(deadline: Deadline) -> None:
    """Raise UserError if loading the data used up the time budget, before Ray starts."""
    if deadline.is_spent:
        raise UserError(
            f"Loading the data took {time.perf_counter() - deadline.began:.0f} s and used up the "
            f"{deadline.time_budget_s:g} s time budget; increase --time-budget.",
            ErrorCode.NO_TIME,
        )


def check_finished(number: int, place: str, folder: Path | None) -> None:
    """Raise UserError if `--more` is given for a study that has not ended."""
    there = folder is not None and (folder / RECORDS_FILE).is_file()
    runs = list(read_records(folder).runs.values()) if folder and there else []
    answered = [one.role for one in runs if one.phase == "confirm" and one.counts_for("comparison")]
    if folder and answered and read_mapping(folder / STUDY_FILE).get(OVER, "confirm" in answered):
        return
    done = f"a race that was ended after {len(answered)} runs" if answered else "no confirmed study"
    raise UserError(
        f"--more {number}: {place} holds {done}; run the same command without --more until it "
        "ends, then with it.",
        ErrorCode.NO_RESULT,
    )


def _run(
    options: TuneOptions,
    study: StudySpec,
    space: Space,
    store: Store,
    console: Console,
    dataset: Dataset,
    earlier: Earlier | None,
    taken: list[str],
    interrupt: Interrupt,
    deadline: Deadline,
) -> bool:
    """Run the rest of the study; return whether it was interrupted."""
    lines = lines_for(options.progress)  # before stderr leads elsewhere
    # Import Ray Tune and Optuna while Ray's processes start.
    importing = threading.Thread(
        target=importlib.import_module, args=["raybench.search.study"], daemon=True
    )
    importing.start()
    told = quiet(store.folder / RAY_LOG)  # until Ray has ended: it still prints then
    with told, live_session(options.address, interrupt, console) as session:
        importing.join()
        interrupt.check()
        firsts = first_specs(study, space).values()
        left_out = preflight.check_room(study, space, session.capacity, firsts)
        for sentence in left_out if chosen_address(options.address) is not None else ():
            say(console, sentence)
        named = preflight.GPUS in space or preflight.GPUS in study.fixed
        every, asking = preflight.groups(study, space), "--gpus-per-worker 1"
        preflight.check_cluster(
            session,
            console,
            every,
            are_gpus_named=named,
            asking=asking,
            spec=study.run_spec(preflight.first_values(study, space)),
        )
        concurrency = study.search.concurrency or preflight.default_concurrency(
            study, space, session.capacity
        )
        session.pool.prepare.remote(
            values_of("framework", space, study.fixed),
            preflight.first_groups(study, space, session.capacity),
        )
        from raybench.search.study import StudyPipeline

        pipeline = StudyPipeline(
            study,
            space,
            session,
            store,
            console,
            deadline,
            dataset,
            concurrency,
            keep_groups=options.isolation == "none",
            wait_s=options.wait,
            num_more=options.more or 0,
            notes=list(session.notes),
            set_by=taken,
            lines=lines,
        )
        interrupt.can_continue = True
        pipeline.run(earlier)
        deadline.raise_fault()
    return interrupt.is_set


def study_content(options: TuneOptions) -> tuple[dict[str, Any], str, str]:
    """Return the content of the study with all options applied, its source, and its name."""
    if options.more is not None and options.more < 1:
        raise UserError(
            f"--more {options.more}: name a number of runs, 1 or more.", ErrorCode.INVALID_VALUE
        )
    space = options.space
    if isinstance(space, str):
        space = shipped_space(space) or Path(space)
    source = str(space) if isinstance(space, Path) else "space"
    content = with_whole_paths(load_content(space, options.study_settings()))
    content = _with_firsts(content, options.first)
    path = Path(source)
    return content, source, path.parent.name if path.name == STUDY_FILE else path.stem


OF_THE_STUDY = (*COMMON, "seed", EVAL_INTERVAL)
"""Keys of a run spec that are the same for all runs of a study; `--first` ignores them."""


def _with_firsts(
    content: dict[str, Any], given: Sequence[str | Path | dict[str, Any] | RunSpec]
) -> dict[str, Any]:
    """Return the content of a study with the configurations of `--first` in `search.first`."""
    firsts = []
    for one in given:
        spec = content_of(one, "first")[0]
        if not isinstance(one, dict):  # a file or run spec has all keys
            spec = {key: value for key, value in spec.items() if key not in OF_THE_STUDY}
        if not spec:
            raise UserError(
                "--first: names no key of a configuration; name learning_rate, say.",
                ErrorCode.MISSING,
            )
        firsts.append(spec)
    if not firsts:
        return content
    search = content.get("search") or {}
    return content | {"search": search | {"first": [*(search.get("first") or []), *firsts]}}
