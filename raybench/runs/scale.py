"""One `raybench scale`, from its arguments to its last line: the study that is asked for (a file, a
named study, or the default one), what its cells train, the plan that `--dry-run` prints, and the
runs, one at a time in a random order, interleaved by repeat.
"""

import functools
import json
import math
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from raybench.cluster.capacity import Capacity, local_capacity
from raybench.cluster.layout import num_nodes
from raybench.cluster.session import Session, chosen_address
from raybench.cluster.signals import Interrupt
from raybench.data.dataset import NO_DATA, Dataset
from raybench.data.shared import shared_key
from raybench.loggers.processes import Loggers, check_loggers
from raybench.report.console import make_console, say
from raybench.report.live.progress import ProgressDisplay, lines_for
from raybench.report.page import try_page
from raybench.report.scaling_report import NAMED, PREDICT, ScalingReport
from raybench.results.place import check_place, refuse_other_scaling
from raybench.results.records import read_records
from raybench.results.storage import open_storage, study_file
from raybench.results.store import CODE, SCALING, STUDY_FILE, Store, with_session
from raybench.results.study import load
from raybench.runs.code_change import code_versions
from raybench.runs.compare import read_share
from raybench.runs.deadline import Deadline
from raybench.runs.options import ScaleOptions
from raybench.runs.preflight import (
    GPUS,
    check_address,
    check_cluster,
    check_gpus,
    check_task,
    check_time_budget,
    spec_on_gpus,
)
from raybench.runs.saved_runs import SavedRuns
from raybench.runs.single_run import SingleRun
from raybench.runs.wait_watch import WaitWatch, live_session
from raybench.scaling.averaged import StepPrediction, next_cells
from raybench.scaling.cells import scaling_cells, series_of
from raybench.scaling.fit_command import FittedGroup, check_predict, place_of
from raybench.scaling.fits import fit_study
from raybench.scaling.measurements import Cell as Measured
from raybench.scaling.published import STUDIES
from raybench.spec.dataset_spec import with_whole_paths
from raybench.spec.documents import content_of, read_mapping, validate
from raybench.spec.errors import DONE, FAILED, INTERRUPTED, Ended, UserError
from raybench.spec.metric import Metric
from raybench.spec.objective import naming
from raybench.spec.run import Placement, describe, label_keys
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
from raybench.stats.record import RunRecord, StopReason
from raybench.training.check_model import check_models


def run_study(
    study: ScalingStudy,
    *,
    session: Session,
    store: Store,
    progress: ProgressDisplay,
    deadline: Deadline,
) -> None:
    """Run what is left of a study in the store's folder, until it is done or `deadline` ends it.

    Nothing else runs meanwhile, in this session at least. A run that was cut off in an earlier
    session goes on from its checkpoint, one that the machine lost runs again.
    """
    runs = read_records(store.folder).runs
    done = {name for name, run in runs.items() if run.is_answer}
    left = [
        (cell, number)
        for cell, number in run_order(study_cells(study), study.repeats, seed=study.seed)
        if cell.repeat(number)[0] not in done
    ]
    progress.begin("scaling", len(left))
    with SavedRuns(session.pool, store, say=progress.say, on_fault=deadline.ends_with) as saved:
        single_run = SingleRun(session, store, deadline, progress, saved)
        for cell, number in left:
            if deadline.over:
                break
            name, spec = cell.repeat(number)
            single_run.train(spec, name, "scaling", source=cell.name)
    deadline.raise_fault()


def run_order(
    cells: Sequence[StudyCell], repeats: int, *, seed: int
) -> Iterator[tuple[StudyCell, int]]:
    """Yield every repeat of every cell: all first ones, all second ones, ...

    What drifts on the machine (heat, neighbours) meets all cells alike. Within a repeat, worker
    groups come in a random order, and the cells of each group in a random order behind one
    another, so that a group is started no more than once a repeat. The order of a repeat does not
    depend on how many there are.
    """
    groups: dict[Placement, list[StudyCell]] = {}
    for cell in cells:
        groups.setdefault(cell.spec.placement.group, []).append(cell)
    for number in range(repeats):
        rng = random.Random(f"{seed}/{number}")
        for group in rng.sample(list(groups), len(groups)):
            for cell in rng.sample(groups[group], len(groups[group])):
                yield cell, number


MOST_CELLS = 40
"""Most cells that are listed one by one."""


def print_study(
    console: Console, study: ScalingStudy, datasets: Mapping[str, Dataset], place: str
) -> None:
    """Print the cells of a study, how often they run, the data, where the results go."""
    if study.num_workers is None and study.cells is None:
        say(console, "workers: 1, 2, 4, ... as many as the cluster at --address has room for")
        study = study.with_workers([1])
    cells = study_cells(study)
    keys = label_keys({key.partition(".")[0]: None for key in study.axes})
    series = series_of([cell.spec for cell in cells])
    for cell, one in list(zip(cells, series, strict=True))[:MOST_CELLS]:
        scalings = " and ".join(cell.scalings)
        tail = f"  ({one})" if study.cells else ""
        say(
            console,
            f"{cell.name}  {describe(cell.spec, keys)}  global batch "
            f"{cell.spec.global_batch_size}  {scalings}{tail}",
        )
    if len(cells) > MOST_CELLS:
        say(console, f"and {len(cells) - MOST_CELLS} more")
    known = [one for one in datasets.values() if one is not NO_DATA]
    for dataset in known:
        say(
            console,
            f"dataset {dataset.name}: {dataset.num_train_samples:,} training, "
            f"{len(dataset.validation):,} validation samples",
        )
    runs, length = len(cells) * study.repeats, ""
    if known and len(datasets) == 1:
        epochs = study.repeats * sum(cell.spec.epochs for cell in cells)
        length = f", about {epochs * known[0].num_train_samples:,.0f} samples in all"
    groups = len({cell.spec.placement.group for cell in cells})
    say(
        console,
        f"{len(cells)} cells, {study.repeats} repeats: {runs} runs, one at a time, in a random "
        f"order ({groups} kinds of worker group){length}",
    )
    say(console, f"results: {place}")


DEFAULT_NAME = "scaling"
DEFAULT: dict[str, Any] = {"base": {"dataset": {"name": "digits", "image_size": 28}}}
"""Without a study: the shipped small model on real digits, weak and strong, all workers."""
QUICK: dict[str, Any] = {"repeats": 2}
"""Changes of the default study by `--quick`."""


@dataclass(frozen=True)
class ChosenStudy:
    """A study, and where it comes from."""

    study: ScalingStudy
    source: str
    """For messages."""
    is_named: bool = False
    """Whether it is one of `raybench.scaling.published`."""

    def left_out(self, console: Console) -> Callable[[str], None] | None:
        """Return what says which cells have no room: those of a published study were chosen for
        other machines. None where the user has named them."""
        return partial(say, console) if self.is_named else None


def chosen_study(options: ScaleOptions) -> ChosenStudy:
    """Return the study of a command line, `--set` and the other flags applied."""
    settings = [] if options.seed is None else [f"seed={options.seed}"]
    settings += [*options.trained(below="base."), *options.settings]
    asked, name = options.study, DEFAULT_NAME
    if isinstance(asked, str) and not Path(asked).suffix and not Path(asked).exists():
        if asked not in STUDIES:
            raise UserError(
                f"{clean(asked)}: is no file and no named study; named are: {', '.join(STUDIES)}."
            )
        content = set_in_scaling(STUDIES[asked].study(options.quick).document(), settings)
        return ChosenStudy(validate(ScalingStudy, content, asked), asked, is_named=True)
    if asked is None:
        content, source = DEFAULT | (QUICK if options.quick else {}), "the default study"
    elif options.quick:
        raise UserError(
            "--quick is for the named studies; shorten a study of yours by --set repeats=1 or "
            "--set epochs=2."
        )
    else:
        content, source = content_of(asked, DEFAULT_NAME)
        # What no name may have is a dash.
        name = re.sub("[^A-Za-z0-9_-]", "-", Path(source).stem)[:60] or DEFAULT_NAME
    content = with_whole_paths(set_in_scaling(content, settings))
    return ChosenStudy(build_scaling_study(content, source, name=name), source)


@dataclass(frozen=True)
class Checked:
    """Models and data of a study, looked at before Ray starts."""

    datasets: dict[str, Dataset]
    """Datasets by the name of the folder that they are shared in."""
    warnings: list[str]
    metric: Metric
    """Metric by which all of its cells are judged."""


def check_cells(cells: Sequence[StudyCell]) -> Checked:
    """Load every workload and dataset once, in all frameworks it runs in."""
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
        found = check_models(spec, frameworks).warnings
        warnings += [one for one in found if one not in warnings]
    names = list(dict.fromkeys([*metrics, *(cell.spec.objective.metric for cell in cells)]))
    named = [name for name in names if name is not None]
    if len(named) > 1:
        raise UserError(
            "The cells of a scaling study are judged by one metric, here by "
            f"{' and '.join(named)}; set base.objective.metric to one that all of them have."
        )
    return Checked(datasets, warnings, metrics[named[0]])


def scale(options: ScaleOptions, interrupt: Interrupt) -> Ended:
    """Run what is left of a study, write the results, print them; return how it ended."""
    # The handle itself: what Ray prints to sys.stdout is sent elsewhere meanwhile.
    console = make_console(file=sys.stdout)
    check_loggers(options.log)
    chosen = chosen_study(options)
    check_address(options.address)
    check_time_budget(options.time_budget)
    check_predict(options.predict)
    until = None if options.until is None else read_share(options.until, "--until")
    if until is not None and options.predict is None:
        raise UserError("--until: name what is to be predicted so surely, as --predict 8,16.")
    place = check_place(options.out or f"results/{chosen.study.name}")
    study, is_local = chosen.study, chosen_address(options.address) is None
    words = list[str]()
    if is_local:
        study, words = with_gpus_there(study, local_capacity())
    study = _continued(replace(chosen, study=study), place, study_file(place))
    if is_local:
        study = with_room(study, local_capacity(), chosen.source, chosen.left_out(console))
    # Where only the cluster knows how many workers there are, one stands for them.
    checked = check_cells(study_cells(study.with_workers([1]), chosen.source))
    words += checked.warnings
    for sentence in words:
        say(console, sentence)
    # Results are read by the metric of the runs.
    objective = study.base.objective.model_copy(update=naming(checked.metric))
    study = with_base(study, objective=objective)
    if is_local:
        check_gpus(cell.spec.placement for cell in study_cells(study, chosen.source))
    if options.dry_run:
        print_study(console, study, checked.datasets, place)
        plan = study.document() | {"results": place}
        return Ended(DONE, answer=words, details={"plan": plan})
    warn = partial(say, console)
    with (
        open_storage(place, warn=warn) as storage,
        Loggers(options.log, storage.folder, place=place, say=warn) as loggers,
    ):
        # Again: only now nobody else writes there, and an earlier driver's spool is seen.
        here = storage.folder / STUDY_FILE
        there = here if here.is_file() else None
        study = _continued(replace(chosen, study=study), place, there)
        workloads = {cell.spec.workload for cell in study_cells(study, chosen.source)}
        versions = code_versions(workloads, place, storage.folder, is_kept=options.keep_code_change)
        with Store(storage.folder, storage.check, versions=versions) as store:
            interrupt.defer()
            loggers.start()
            chosen = replace(chosen, study=study)
            interrupted = _run(options, chosen, store, console, checked, interrupt, until)
            loggers.end()
            store.check()
            report = ScalingReport.of(replace(load(storage.folder), place=place), options.predict)
            written = report.write(store)
            say_so = partial(say, console)
            written += try_page(report.results, storage.folder, say_so, report.parts())
        report.show(console, written=written, verbose=False)
    if interrupted:
        tail = "." if report.results.trials.empty else ": the same command continues."
        console.print(f"interrupted{tail}")
        return Ended(INTERRUPTED, place)
    has_cells = (scaling_cells(report.results)["n"] > 0).any()
    return Ended(DONE if has_cells else FAILED, place)


def with_gpus_there(study: ScalingStudy, capacity: Capacity) -> tuple[ScalingStudy, list[str]]:
    """Return the study with a GPU a worker where this machine has enough and it does not say."""
    if GPUS in study.axes or study.cells is not None:
        return study, []
    most = study.base.model_copy(update={"num_workers": max(study.num_workers or [1])})
    found, words = spec_on_gpus(most, capacity, "base.gpus_per_worker")
    return with_base(study, gpus_per_worker=found.gpus_per_worker) if words else study, words


def with_base(study: ScalingStudy, **changes: Any) -> ScalingStudy:
    """Return the study with other values of what all its cells have."""
    return study.model_copy(update={"base": study.base.model_copy(update=changes)})


def with_room(
    study: ScalingStudy,
    capacity: Capacity,
    source: str,
    left_out: Callable[[str], None] | None = None,
) -> ScalingStudy:
    """Return the study with its numbers of workers; UserError where one does not fit.

    Those it leaves to the machines are 1, 2, 4, ... as long as every one of its cells fits, and a
    global batch divides. With `left_out`, cells that do not fit are left out while some do, and it
    is told so in a sentence.
    """
    if study.num_workers is None and study.cells is None:
        counts = [1]
        while _has_room(study, 2 * counts[-1], capacity, source):
            counts.append(2 * counts[-1])
        study = study.with_workers(counts)
    if left_out is not None:
        counts = study.counts
        fitting = [one for one in counts if _has_room(study, one, capacity, source)]
        if fitting and fitting != counts:
            study = study.only_workers(fitting)
            wider = " and ".join(str(one) for one in counts if one not in fitting)
            left_out(f"cells of {wider} workers are left out: there is room for {fitting[-1]}.")
    for cell in study_cells(study, source):
        capacity.refuse_infeasible(cell.spec.placement.group)
    return study


def _has_room(study: ScalingStudy, num_workers: int, capacity: Capacity, source: str) -> bool:
    parts = num_workers * study.base.accumulate
    is_grid = study.cells is None
    if is_grid and "strong" in study.scaling and any(batch % parts for batch in study.batch_sizes):
        return False
    cells = study_cells(study.only_workers([num_workers]), source)
    # Every worker has a core, also where GPUs cannot be counted.
    return num_workers <= capacity.cpus and all(
        capacity.fits(cell.spec.placement.group) for cell in cells
    )


def _continued(chosen: ChosenStudy, place: str, file: Path | None) -> ScalingStudy:
    """Return the study with the numbers of workers and the further cells of an earlier session of
    it, if `file` tells of one; UserError with the difference where it is of another study."""
    study = chosen.study
    if file is None:
        return study
    earlier = read_mapping(file).get(SCALING)
    if isinstance(earlier, dict) and chosen.is_named:
        study = study.only_workers(validate(ScalingStudy, earlier, f"{file}: {SCALING}").counts)
    elif isinstance(earlier, dict) and isinstance(earlier.get("num_workers"), list):
        study = study.with_workers(earlier["num_workers"])
    refuse_other_scaling(place, file, study)
    more = validate(ScalingStudy, earlier or {}, place).more
    return study.model_copy(update={"more": more})


def _run(
    options: ScaleOptions,
    chosen: ChosenStudy,
    store: Store,
    console: Console,
    checked: Checked,
    interrupt: Interrupt,
    until: float | None,
) -> bool:
    """Run what is left of the study, and `until` predictions are so sure; return whether it was
    interrupted."""
    with live_session(options.address, interrupt, console) as session:
        left_out = chosen.left_out(console)
        study = with_room(chosen.study, session.capacity, chosen.source, left_out)
        placements = [cell.spec.placement for cell in study_cells(study)]
        named = study.cells is not None or GPUS in {*study.axes, *study.base.model_fields_set}
        asking = f"--set base.{GPUS}=1"
        check_cluster(
            session, console, placements, are_gpus_named=named, asking=asking, spec=study.base
        )
        file = store.folder / STUDY_FILE
        earlier: dict[str, Any] = read_mapping(file) if file.is_file() else {}
        asked = options.predict
        is_numbers = asked is not None and not asked.strip("0123456789, ")

        def write(study: ScalingStudy) -> None:
            content = {
                "study": {"objective": study.base.objective.model_dump(mode="json")},
                SCALING: study.document(),
                NAMED: study.name if chosen.is_named else None,
                PREDICT: asked if is_numbers else earlier.get(PREDICT),
                "notes": session.notes,
                **({CODE: store.versions} if store.versions else {}),
            }
            cluster = session.capacity.document()
            store.write_yaml(STUDY_FILE, content | with_session(earlier, cluster=cluster))

        write(study)
        session.share(checked.datasets)
        deadline = Deadline(options.time_budget, began=interrupt.began, interrupt=interrupt)
        cells = study_cells(study)
        progress = ProgressDisplay(
            console,
            num_trials=len(cells) * study.repeats,
            keys=label_keys({key.partition(".")[0]: None for key in changed_keys(study)}),
            outcome=outcome_words,
            lines=lines_for(options.progress),
            num_workers=lambda spec: session.capacity.most_workers(spec.placement),
        )
        interrupt.can_continue = True
        with progress, WaitWatch(session, deadline, progress, wait_s=options.wait):
            run = partial(run_study, session=session, store=store, progress=progress)
            run(study, deadline=deadline)
            seeking = Until(until or 0.0, session.capacity)
            while until is not None:
                fitted = fit_study(load(store.folder), predict=options.predict)
                found, said = seeking.next_cell(study, fitted, deadline.reason())
                progress.say(said)
                if found is None:
                    session.notes.append(said)
                    break
                study = found
                write(study)
                run(study, deadline=deadline)
        write(study)  # with what was said meanwhile
    return interrupt.is_set


NARROWER = 0.99
"""Times its spread that a prediction has at most once a cell that is worth a run is measured."""
STALLED, STALLED_AT = 4, 0.95
"""Cells after which the least sure prediction has to have at most such a part of its spread."""


@dataclass
class Until:
    """Finds what else to measure until all predictions are so sure."""

    share: float
    """Half of a 90 % interval, relative."""
    capacity: Capacity
    spreads: list[float] = field(default_factory=list)
    """Spread of the least sure prediction, before each cell."""

    def next_cell(
        self, study: ScalingStudy, fitted: Sequence[FittedGroup], over: StopReason | None
    ) -> tuple[ScalingStudy | None, str]:
        """Return the study with one more cell, and what is said of it; None, and why, where none is
        to be measured, or the study is `over`."""
        predicted = [(now, one) for one in fitted for now in one.model.predict(one.asked)]
        unsure = [(now, one) for now, one in predicted if now.spread > self.share]
        unsure.sort(key=lambda pair: -pair[0].spread)
        more = f"{counted(len(study.more), 'further cell')} measured"
        if not predicted:
            return None, "--until: so few cells predict nothing; measure more sizes."
        if not unsure:
            return None, f"All that --predict asks for is within ±{self.share:.0%}, {more}."
        least = unsure[0][0]
        head = f"Least sure is {place_of(least.cell)}, ±{least.spread:.1%}, {more}"
        self.spreads.append(least.spread)
        if over is not None:
            return None, f"{head}: {'the time is over' if over == 'time_budget' else over}."
        if least.spread > STALLED_AT * min(self.spreads[:-STALLED], default=math.inf):
            return None, f"{head}: the last {STALLED} cells did not narrow it."
        for now, one in unsure:
            if (found := self._narrowing(study, now, one)) is not None:
                cell, changes = found
                longer = study.model_copy(
                    update={"more": [*study.more, WrittenCell(changes=changes)]}
                )
                return longer, f"{head}: next is {place_of(cell)}."
        return None, f"{head}: nothing else that has room here would narrow it."

    def _narrowing(
        self, study: ScalingStudy, now: StepPrediction, one: FittedGroup
    ) -> tuple[Measured, dict[str, Any]] | None:
        """Return the cell with room that narrows a prediction most, itself where no smaller one
        does, and what it changes."""
        specs = [cell.spec for cell in study_cells(study)]
        alike = [s for s, name in zip(specs, series_of(specs), strict=True) if name == one.group[0]]
        ran = {tuple(getattr(spec, key) for key in OWN_KEYS) for spec in alike}

        def own(cell: Measured) -> dict[str, Any]:
            return {key: getattr(cell, key) for key in OWN_KEYS}

        def placed(cell: Measured) -> Measured | None:
            group = alike[0].model_copy(update=own(cell)).placement.group
            nodes = num_nodes(group, self.capacity.nodes)
            is_new = tuple(own(cell).values()) not in ran
            return replace(cell, num_nodes=nodes) if nodes and is_new else None

        found = next_cells(one.model, now.cell, placed)
        best = now.cell
        if found and found[0].spread <= NARROWER * now.spread:
            best = found[0].cell
        elif placed(best) != best:
            return None
        document = alike[0].document()
        changes = {
            key: functools.reduce(lambda part, name: part[name], key.split("."), document)
            for key in changed_keys(study)
        }
        return best, changes | own(best)


def changed_keys(study: ScalingStudy) -> list[str]:
    """Return the run-spec keys, dotted where they lie deeper, that cells differ in."""
    changes = [cell.changes for cell in study.cells or []]
    return list(dict.fromkeys([*study.axes, *(key for one in changes for key in one)]))


def outcome_words(record: RunRecord) -> str:
    """Return what the screen says of a finished run."""
    seconds = record.ledger["train"]
    speed = record.samples / seconds if seconds > 0 else 0.0
    return f"{speed:,.0f} samples/s in {seconds:.2f} s of training"
