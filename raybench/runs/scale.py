"""The command `raybench scale`: run a scaling study.

The command reads the study (a file, a published study or the default one) and checks its cells. A
cell is a run spec, such as a configuration on a number of workers. With `--dry-run`, the plan is
printed. Otherwise the cells run one at a time, in random order within each repeat.
"""

import functools
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from raybench.cluster.layout import Capacity, local_capacity, num_nodes
from raybench.cluster.session import chosen_address
from raybench.cluster.signals import Interrupt
from raybench.data.dataset import NO_DATA, Dataset
from raybench.data.store import shared_key
from raybench.report.console import say
from raybench.report.progress import ProgressDisplay, lines_for
from raybench.report.scaling_report import NAMED, PREDICT, ScalingReport
from raybench.results.place import refuse_other_scaling
from raybench.results.records import read_records
from raybench.results.storage import study_file
from raybench.results.store import CODE, SCALING, STUDY_FILE, with_session
from raybench.results.study import load
from raybench.runs.frame import CommandFrame, OpenStudy, checked_place
from raybench.runs.lifecycle import SAME_FAILURES, FirstRuns, SingleRun, single_runs
from raybench.runs.options import ScaleOptions
from raybench.runs.preflight import (
    GPUS,
    check_cluster,
    check_gpus,
    check_starts,
    check_task,
    seed_warnings,
    spec_on_gpus,
    unused_key_warnings,
)
from raybench.runs.wait_watch import Deadline, live_session
from raybench.scaling.averaged import StepPrediction, next_cells
from raybench.scaling.cells import scaling_cells, series_of
from raybench.scaling.fits import FittedSeries, check_predict, describe_cell, fit_study
from raybench.scaling.measurements import Cell as Measured
from raybench.scaling.published import STUDIES
from raybench.spec.dataset_spec import with_absolute_paths
from raybench.spec.documents import content_of, read_mapping, validate
from raybench.spec.errors import DONE, FAILED, Ended, ErrorCode, UserError
from raybench.spec.metric import Metric
from raybench.spec.objective import StopReason, naming
from raybench.spec.run import ResourceRequest, describe, flat, label_keys
from raybench.spec.scaling_study import (
    OWN_KEYS,
    ScalingStudy,
    StudyCell,
    WrittenCell,
    build_scaling_study,
    set_in_scaling,
    study_cells,
)
from raybench.spec.text import clean, counted
from raybench.stats.record import Failure, Phase, Purpose, Role, RunRecord


def run_study(study: ScalingStudy, single_run: SingleRun, progress: ProgressDisplay) -> None:
    """Run all runs of a study that have no valid record yet, one at a time, until the deadline.

    An interrupted run resumes from its checkpoint. A run that was lost to a fault of a machine is
    repeated. Runs with an error or a timeout are repeated as long as no run of the study has
    trained.
    """
    runs, deadline = read_records(single_run.store.folder).runs, single_run.deadline
    failures = (
        [Failure.ERROR, Failure.TIMEOUT] if not any(run.samples for run in runs.values()) else []
    )
    done = {
        name
        for name, run in runs.items()
        if run.counts_for(Purpose.MEASUREMENT) and run.failure not in failures
    }
    remaining = [
        (cell, number)
        for cell, number in run_order(study_cells(study), study.repeats, seed=study.seed)
        if cell.repeat(number)[0] not in done
    ]
    progress.begin(Phase.SCALING, len(remaining))
    for cell, number in remaining:
        if deadline.over:
            break
        name, spec = cell.repeat(number)
        single_run.train(spec, name, Role.SCALING, source=cell.name)
    deadline.raise_fault()


def first_runs_of(study: ScalingStudy, runs: Mapping[str, RunRecord]) -> FirstRuns:
    """Return the detector that ends the study if all cells fail with the same message.

    It first lets every cell run once, because one worker may be able to train even if several
    cannot.

    Args:
        runs: Runs from earlier sessions.
    """
    return FirstRuns(
        rerun="the same command to resume",
        have_trained=any(run.samples for run in runs.values()),
        limit=max(SAME_FAILURES, len(study_cells(study))),
        noun="runs",
    )


def run_order(
    cells: Sequence[StudyCell], repeats: int, *, seed: int
) -> Iterator[tuple[StudyCell, int]]:
    """Yield (cell, repeat number) for all runs in the order in which they run.

    A cell is a run spec of the study. First comes the first repeat of all cells, then the second,
    and so on, so that slow changes of the machine (heat, other users) affect all cells equally.
    Within a repeat, the cells of a worker group follow each other, so that the group starts only
    once; the order of the groups, and of the cells of a group, is random. A larger `repeats` does
    not change the order of the first repeats.
    """
    groups: dict[ResourceRequest, list[StudyCell]] = {}
    for cell in cells:
        groups.setdefault(cell.spec.resources, []).append(cell)
    for number in range(repeats):
        rng = random.Random(f"{seed}/{number}")
        for group in rng.sample(list(groups), len(groups)):
            for cell in rng.sample(groups[group], len(groups[group])):
                yield cell, number


MAX_LISTED_CELLS = 40
"""Largest number of cells that the plan lists one by one."""


def print_study(
    console: Console, study: ScalingStudy, datasets: Mapping[str, Dataset], place: str
) -> None:
    """Print the plan of a study: its cells, repeats, data and results folder."""
    if study.num_workers is None and study.cells is None:
        say(console, "workers: 1, 2, 4, ... as many as the cluster at --address has room for")
        study = study.with_workers([1])
    cells = study_cells(study)
    keys = label_keys({key.partition(".")[0]: None for key in study.axes})
    series = series_of([cell.spec for cell in cells])
    for cell, series_name in list(zip(cells, series, strict=True))[:MAX_LISTED_CELLS]:
        scalings = " and ".join(cell.scalings)
        tail = f"  ({series_name})" if study.cells else ""
        say(
            console,
            f"{cell.name}  {describe(cell.spec, keys)}  global batch "
            f"{cell.spec.global_batch_size}  {scalings}{tail}",
        )
    if len(cells) > MAX_LISTED_CELLS:
        say(console, f"and {len(cells) - MAX_LISTED_CELLS} more")
    datasets_read = [dataset for dataset in datasets.values() if dataset is not NO_DATA]
    for dataset in datasets_read:
        say(
            console,
            f"dataset {dataset.name}: {dataset.num_train_samples:,} training, "
            f"{len(dataset.validation):,} validation samples",
        )
    runs, length = len(cells) * study.repeats, ""
    if datasets_read and len(datasets) == 1:
        epochs = study.repeats * sum(cell.spec.epochs for cell in cells)
        length = f", about {epochs * datasets_read[0].num_train_samples:,.0f} samples in all"
    groups = len({cell.spec.resources for cell in cells})
    say(
        console,
        f"{len(cells)} cells, {study.repeats} repeats: {runs} runs, one at a time, in a random "
        f"order (worker groups of {counted(groups, 'kind')}){length}",
    )
    say(console, f"results: {place}")


DEFAULT_NAME = "scaling"
DEFAULT: dict[str, Any] = {"base": {"dataset": {"name": "digits", "image_size": 28}}}
"""Content of the default study: weak and strong scaling of the shipped small model on handwritten
digits, with up to as many workers as fit."""
QUICK: dict[str, Any] = {"repeats": 2}
"""Changes to the default study with `--quick`."""


@dataclass(frozen=True)
class ChosenStudy:
    """A scaling study and its origin."""

    study: ScalingStudy
    source: str
    """Name of the study in error messages."""
    is_named: bool = False
    """Whether the study is a published one (`raybench.scaling.published`). Its cells that do not
    fit on the cluster are left out, whereas all cells of a user's study must fit."""


def chosen_study(options: ScaleOptions) -> ChosenStudy:
    """Return the study that the command-line options describe, with `--set` and other options
    applied."""
    seed = {} if options.seed is None else {"seed": options.seed}
    settings = seed | options.trained(below="base.") | options.settings
    study, name = options.study, DEFAULT_NAME
    if isinstance(study, str) and not Path(study).suffix and not Path(study).exists():
        if study not in STUDIES:
            raise UserError(
                f"{clean(study)}: is neither a file nor a shipped study; shipped are "
                f"{', '.join(STUDIES)}.",
                ErrorCode.UNKNOWN_NAME,
            )
        content = set_in_scaling(STUDIES[study].study(options.quick).document(), settings)
        return ChosenStudy(validate(ScalingStudy, content, study), study, is_named=True)
    if study is None:
        content, source = DEFAULT | (QUICK if options.quick else {}), "the default study"
    elif options.quick:
        raise UserError(
            "--quick applies to the shipped studies; shorten your own with --set repeats=1 or "
            "--set epochs=2.",
            ErrorCode.UNSUPPORTED,
        )
    else:
        content, source = content_of(study, DEFAULT_NAME)
        # Characters that are not allowed in a name become dashes.
        name = re.sub("[^A-Za-z0-9_-]", "-", Path(source).stem)[:60] or DEFAULT_NAME
    content = with_absolute_paths(set_in_scaling(content, settings))
    return ChosenStudy(build_scaling_study(content, source, name=name), source)


@dataclass(frozen=True)
class Checked:
    """Datasets and metric of a study, checked before Ray starts."""

    datasets: dict[str, Dataset]
    """Datasets by their `shared_key`."""
    warnings: list[str]
    metric: Metric
    """Metric of all cells of the study."""


def check_cells(
    cells: Sequence[StudyCell], *, has_open_workers: bool = False, are_repeated: bool = True
) -> Checked:
    """Load and check each combination of workload and dataset in the cells (run specs) once, for
    all frameworks that use it.

    Args:
        cells: The cells of the study.
        has_open_workers: Whether the study will have further worker counts.
        are_repeated: Whether cells have several runs.
    """
    tasks: dict[str, list[StudyCell]] = {}
    for cell in cells:
        spec = cell.spec
        key = json.dumps([spec.workload, spec.dataset.model_dump(mode="json"), spec.data])
        tasks.setdefault(key, []).append(cell)
    datasets, warnings, metrics = dict[str, Dataset](), list[str](), dict[str, Metric]()
    for alike in tasks.values():
        spec = alike[0].spec
        frameworks = sorted({str(cell.spec.framework) for cell in alike})
        objective, dataset = check_task(spec, frameworks)
        metrics[objective.judged_by.name] = objective.judged_by
        datasets[shared_key(spec.workload, spec.dataset, spec.data)] = dataset
        values = [flat(cell.spec.model_dump(mode="json")) for cell in alike]
        keys = [
            key
            for key in values[0]
            if any(other.get(key) != values[0][key] for other in values)
            or (key == "num_workers" and has_open_workers)
        ]
        notes = check_starts(spec) + unused_key_warnings(spec.workload, keys)
        if are_repeated:
            notes += seed_warnings(spec.workload, "the repeats of a cell")
        warnings += [note for note in notes if note not in warnings]
    names = list(dict.fromkeys([*metrics, *(cell.spec.objective.metric for cell in cells)]))
    named = [name for name in names if name is not None]
    if len(named) > 1:
        raise UserError(
            "The cells of a scaling study are judged by one metric, here by "
            f"{' and '.join(named)}; set base.objective.metric to one that all of them have.",
            ErrorCode.CONFLICT,
        )
    return Checked(datasets, warnings, metrics[named[0]])


def scale(options: ScaleOptions, interrupt: Interrupt) -> Ended:
    """Run the `scale` command: run or resume a scaling study, then write and print the results.

    For the arguments, see `CommandFrame`. Returns how the command ended.
    """
    frame = CommandFrame(options, interrupt)
    chosen = chosen_study(options)
    place = checked_place(options, f"results/{chosen.study.name}")
    check_predict(options.predict)
    if options.until is not None and options.predict is None:
        raise UserError(
            "--until: narrows the predictions of --predict; name them, as --predict 8,16.",
            ErrorCode.MISSING,
        )
    study, is_local = chosen.study, chosen_address(options.address) is None
    sentences = list[str]()
    if is_local:
        study, sentences = with_gpus_there(study, local_capacity())
    study = _continued(study, place, study_file(place), is_named=chosen.is_named)
    if is_local:
        left_out = frame.say if chosen.is_named else None
        study = with_room(study, local_capacity(), chosen.source, left_out)
    # If the worker counts depend on the cluster, cells with one worker are checked for now.
    checked = check_cells(
        study_cells(study.with_workers([1]), chosen.source),
        has_open_workers=study.num_workers is None and study.cells is None,
        are_repeated=study.repeats > 1,
    )
    sentences += checked.warnings
    frame.say(*sentences)
    # The name of the metric is needed to read the results.
    objective = study.base.objective.model_copy(update=naming(checked.metric))
    study = with_base(study, objective=objective)
    if is_local:
        check_gpus(cell.spec.resources for cell in study_cells(study, chosen.source))
    if options.dry_run:
        print_study(frame.console, study, checked.datasets, place)
        return frame.planned(sentences, study.document() | {"results": place})
    with frame.open(place) as opened:
        # This check is repeated, because only now can no other process write to the folder, and
        # files of a killed process have been restored.
        study = _continued(study, place, opened.study_file, is_named=chosen.is_named)
        workloads = {cell.spec.workload for cell in study_cells(study, chosen.source)}
        store = opened.begin(workloads, is_kept=options.keep_code_change)
        is_interrupted = _run(options, replace(chosen, study=study), checked, opened)
        report = ScalingReport.of(opened.results(), options.predict)
        files = report.write(store) + opened.write_page(report.results, report.parts())
        report.show(frame.console, written=files, verbose=False)
    has_cells = (scaling_cells(report.results)["n"] > 0).any()
    return frame.ended(
        place,
        DONE if has_cells else FAILED,
        is_interrupted=is_interrupted,
        can_resume=not report.results.trials.empty,
    )


def with_gpus_there(study: ScalingStudy, capacity: Capacity) -> tuple[ScalingStudy, list[str]]:
    """Set one GPU per worker by default, if the machine has enough GPUs.

    Returns:
        - The study.
        - Sentences about the decision.
    """
    if GPUS in study.axes or study.cells is not None:
        return study, []
    largest = study.base.model_copy(update={"num_workers": max(study.num_workers or [1])})
    spec, sentences = spec_on_gpus(largest, capacity, "base.gpus_per_worker")
    study = with_base(study, gpus_per_worker=spec.gpus_per_worker) if sentences else study
    return study, sentences


def with_base(study: ScalingStudy, **changes: Any) -> ScalingStudy:
    """Return a copy of a study with the given fields of its base run spec changed."""
    return study.model_copy(update={"base": study.base.model_copy(update=changes)})


def with_room(
    study: ScalingStudy,
    capacity: Capacity,
    source: str,
    left_out: Callable[[str], None] | None = None,
) -> ScalingStudy:
    """Return the study with worker counts that fit on the cluster.

    A study without worker counts gets 1, 2, 4, ..., as long as all cells (run specs) fit and the
    global batch sizes of strong scaling can be divided evenly among the workers and their passes.

    Args:
        capacity: Resources of the cluster.
        source: Name of the study in error messages.
        left_out: Called with a sentence about worker counts that are dropped because they do not
            fit. If None, all worker counts must fit.

    Raises:
        UserError: A cell does not fit.
    """
    if study.num_workers is None and study.cells is None:
        counts = [1]
        while _has_room(study, 2 * counts[-1], capacity, source):
            counts.append(2 * counts[-1])
        study = study.with_workers(counts)
    if left_out is not None:
        counts = study.counts
        fitting = [count for count in counts if _has_room(study, count, capacity, source)]
        if fitting and fitting != counts:
            study = study.only_workers(fitting)
            wider = " and ".join(str(count) for count in counts if count not in fitting)
            left_out(f"cells of {wider} workers are skipped: there is room for {fitting[-1]}.")
    for cell in study_cells(study, source):
        capacity.refuse_infeasible(cell.spec.resources)
    return study


def _has_room(study: ScalingStudy, num_workers: int, capacity: Capacity, source: str) -> bool:
    parts = num_workers * study.base.accumulate
    is_grid = study.cells is None
    if is_grid and "strong" in study.scaling and any(batch % parts for batch in study.batch_sizes):
        return False
    cells = study_cells(study.only_workers([num_workers]), source)
    return all(capacity.fits(cell.spec.resources) for cell in cells)


def _continued(
    study: ScalingStudy, place: str, file: Path | None, *, is_named: bool
) -> ScalingStudy:
    """Return the study with the worker counts and further cells that an earlier session has chosen.

    Args:
        place: Results folder or URL of the study, for messages.
        file: `study.yaml` of the earlier session; None if there was none.
        is_named: Whether the study is a published one, of which only the cells that fit are run.

    Raises:
        UserError: The file belongs to another study; the message lists the differences.
    """
    if file is None:
        return study
    earlier = read_mapping(file).get(SCALING)
    if isinstance(earlier, dict) and is_named:
        study = study.only_workers(validate(ScalingStudy, earlier, f"{file}: {SCALING}").counts)
    elif isinstance(earlier, dict) and isinstance(earlier.get("num_workers"), list):
        study = study.with_workers(earlier["num_workers"])
    refuse_other_scaling(place, file, study)
    further_cells = validate(ScalingStudy, earlier or {}, place).more
    return study.model_copy(update={"more": further_cells})


def _run(options: ScaleOptions, chosen: ChosenStudy, checked: Checked, opened: OpenStudy) -> bool:
    """Run the study, and then further cells until the predictions are as accurate as `--until`
    requires.

    Returns:
        Whether the study was interrupted.
    """
    console, interrupt, store = opened.frame.console, opened.frame.interrupt, opened.store
    with live_session(options.address, interrupt, console) as session:
        left_out = opened.frame.say if chosen.is_named else None
        study = with_room(chosen.study, session.capacity, chosen.source, left_out)
        named = study.cells is not None or GPUS in {*study.axes, *study.base.model_fields_set}
        asking = f"--set base.{GPUS}=1"
        check_cluster(session, console, study.base, are_gpus_named=named, asking=asking)
        earlier, predict = opened.earlier, options.predict
        is_numbers = predict is not None and not predict.strip("0123456789, ")

        def write(study: ScalingStudy) -> None:
            content = {
                "study": {"objective": study.base.objective.model_dump(mode="json")},
                SCALING: study.document(),
                NAMED: study.name if chosen.is_named else None,
                PREDICT: predict if is_numbers else earlier.get(PREDICT),
                "notes": session.notes,
                **({CODE: store.versions} if store.versions else {}),
            }
            cluster = session.capacity.document()
            store.write_yaml(STUDY_FILE, content | with_session(earlier, cluster=cluster))

        write(study)
        session.share(checked.datasets)
        deadline = Deadline(options.time_budget, interrupt=interrupt)
        cells = study_cells(study)
        progress = ProgressDisplay(
            console,
            num_trials=len(cells) * study.repeats,
            keys=label_keys({key.partition(".")[0]: None for key in changed_keys(study)}),
            outcome=outcome_words,
            lines=lines_for(options.progress),
            num_workers=lambda spec: session.capacity.most_workers(spec.resources),
        )
        interrupt.can_continue = True
        with (
            progress,
            single_runs(
                session,
                store,
                deadline,
                progress,
                wait_s=options.wait,
                first_runs=first_runs_of(study, read_records(store.folder).runs),
            ) as single_run,
        ):
            run_study(study, single_run, progress)
            seeking = None if options.until is None else Until(options.until, session.capacity)
            while seeking is not None:
                fitted = fit_study(load(store.folder), predict=options.predict)
                longer, sentence = seeking.next_cell(study, fitted, deadline.reason())
                progress.say(sentence)
                if longer is None:
                    session.notes.append(sentence)
                    break
                study = longer
                write(study)
                run_study(study, single_run, progress)
        write(study)  # once more, since notes may have been added
    return interrupt.is_set


NARROWER = 0.99
"""Fraction to which the measurement of another cell must be expected to reduce the spread (relative
half-width of the 90 % interval) of a prediction. Otherwise the predicted cell itself is
measured."""
STALLED_CELLS, STALLED_FACTOR = 4, 0.95
"""Condition to stop: the last STALLED_CELLS further cells did not reduce the widest spread to the
fraction STALLED_FACTOR."""


@dataclass
class Until:
    """Chooser of further cells (run specs) to measure until all predictions are accurate enough
    (`--until`)."""

    share: float
    """Largest allowed spread: half-width of the 90 % interval, relative to the prediction."""
    capacity: Capacity
    spreads: list[float] = field(default_factory=list)
    """Widest spread of all predictions before each further cell."""

    def next_cell(
        self, study: ScalingStudy, fitted: Sequence[FittedSeries], over: StopReason | None
    ) -> tuple[ScalingStudy | None, str]:
        """Choose the next cell.

        Args:
            study: The study so far.
            fitted: Fitted model of each series (cells that differ only in worker count and batch
                size), with the cells to predict.
            over: Reason why the study is over; None if it is not.

        Returns:
            - The study with one more cell; None to stop.
            - A sentence about the reason.
        """
        predicted = [
            (prediction, series)
            for series in fitted
            for prediction in series.model.predict(series.asked)
        ]
        unsure = [
            (prediction, series)
            for prediction, series in predicted
            if prediction.spread > self.share
        ]
        unsure.sort(key=lambda pair: -pair[0].spread)
        num_measured = f"{counted(len(study.more), 'further cell')} measured"
        if not predicted:
            return (
                None,
                "--until: too few cells were measured for a prediction; measure more sizes.",
            )
        if not unsure:
            return (
                None,
                f"All predictions of --predict are within ±{self.share:.0%}, {num_measured}.",
            )
        least_sure = unsure[0][0]
        spread = least_sure.spread
        head = f"Least certain: {describe_cell(least_sure.cell)}, ±{spread:.1%}, {num_measured}"
        self.spreads.append(spread)
        if over is not None:
            reason = "the time is over" if over is StopReason.TIME_BUDGET else over
            return None, f"{head}: {reason}."
        if spread > STALLED_FACTOR * min(self.spreads[:-STALLED_CELLS], default=math.inf):
            return None, f"{head}: the last {STALLED_CELLS} cells did not narrow it."
        for prediction, series in unsure:
            if (narrowing := self._next_measurement(study, prediction, series)) is not None:
                cell, changes = narrowing
                longer = study.model_copy(
                    update={"more": [*study.more, WrittenCell(changes=changes)]}
                )
                return longer, f"{head}: next is {describe_cell(cell)}."
        return None, f"{head}: no other cell that fits on the cluster would narrow it."

    def _next_measurement(
        self, study: ScalingStudy, prediction: StepPrediction, series: FittedSeries
    ) -> tuple[Measured, dict[str, Any]] | None:
        """Return the cell to measure so that a prediction becomes more accurate.

        This is the cell that reduces the spread of the prediction most. If no cell reduces it
        enough, it is the predicted cell itself.

        Returns:
            The cell, and its values of all keys in which cells differ. None if the cell does not
            fit on the cluster or was already measured.
        """
        specs = [cell.spec for cell in study_cells(study)]
        alike = [
            spec
            for spec, name in zip(specs, series_of(specs), strict=True)
            if name == series.key.model
        ]
        measured = {tuple(getattr(spec, key) for key in OWN_KEYS) for spec in alike}

        def axis_values(cell: Measured) -> dict[str, Any]:
            return {key: getattr(cell, key) for key in OWN_KEYS}

        def placed_cell(cell: Measured) -> Measured | None:
            group = alike[0].model_copy(update=axis_values(cell)).resources
            nodes = num_nodes(group, self.capacity.nodes)
            is_new = tuple(axis_values(cell).values()) not in measured
            return replace(cell, num_nodes=nodes) if nodes and is_new else None

        candidates = next_cells(series.model, prediction.cell, placed_cell)
        best = prediction.cell
        if candidates and candidates[0].spread <= NARROWER * prediction.spread:
            best = candidates[0].cell
        elif placed_cell(best) != best:
            return None
        document = alike[0].document()
        changes = {
            key: functools.reduce(lambda part, name: part[name], key.split("."), document)
            for key in changed_keys(study)
        }
        return best, changes | axis_values(best)


def changed_keys(study: ScalingStudy) -> list[str]:
    """Return the run-spec keys in which the cells of a study differ, with dots for nested keys."""
    changes = [cell.changes for cell in study.cells or []]
    return list(
        dict.fromkeys([*study.axes, *(key for cell_changes in changes for key in cell_changes)])
    )


def outcome_words(record: RunRecord) -> str:
    """Return the text that is shown for a finished run: speed and training time."""
    seconds = record.ledger["train"]
    speed = record.samples / seconds if seconds > 0 else 0.0
    return f"{speed:,.0f} samples/s in {seconds:.2f} s of training"
