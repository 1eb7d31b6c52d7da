"""One `raybench scale`, from its arguments to its last line."""

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from raybench.cluster.capacity import Capacity, local_capacity
from raybench.cluster.scratch import DATA
from raybench.cluster.session import Session, chosen_address
from raybench.cluster.signals import INTERRUPTED, Interrupt
from raybench.core.documents import read_mapping
from raybench.core.record import RunRecord
from raybench.core.scaling_study import ScalingStudy, study_cells
from raybench.data.load import STORED
from raybench.data.shared import share
from raybench.results.console import make_console, say
from raybench.results.label import label_keys
from raybench.results.live.progress import Progress
from raybench.results.load import load
from raybench.results.loggers.kinds import check_loggers
from raybench.results.loggers.processes import Loggers
from raybench.results.place import check_place
from raybench.results.provenance import with_session
from raybench.results.remote import study_file
from raybench.results.storage import open_storage
from raybench.results.store import SCALING, STUDY_FILE, Store
from raybench.results.study_folder import refuse_other_scaling
from raybench.search.deadline import Deadline
from raybench.search.pipeline.live_session import live_session
from raybench.search.pipeline.preflight import check_address
from raybench.search.pipeline.slots import num_at_most
from raybench.search.wait_watch import watching
from raybench.studies.checked import Checked, check_cells, with_metric
from raybench.studies.chosen import Chosen, chosen_study
from raybench.studies.fits import check_predict
from raybench.studies.page import try_scaling_page
from raybench.studies.plan_words import print_study
from raybench.studies.report import NAMED, PREDICT, ScalingReport
from raybench.studies.study_runner import run_study

DONE, FAILED = 0, 1
BUSY = 0.5
"""Load of the last minute per core, above which other work is said to disturb a measurement."""


def scale(options: argparse.Namespace, interrupt: Interrupt) -> int:
    """Run what is left of a study, write the results, print them; return the exit code."""
    # The handle itself: what Ray prints to sys.stdout is sent elsewhere meanwhile.
    console = make_console(file=sys.stdout)
    check_loggers(options.log)
    chosen = chosen_study(options)
    check_address(options.address)
    check_predict(options.predict)
    place = check_place(options.out or f"results/{chosen.study.name}")
    study = _continued(chosen.study, place, study_file(place))
    is_local = chosen_address(options.address) is None
    if is_local:
        study = with_room(study, local_capacity(), chosen.source)
    # Where only the cluster knows how many workers there are, one stands for them.
    checked = check_cells(study_cells(study.with_workers([1]), chosen.source))
    for sentence in checked.warnings:
        say(console, sentence)
    study = with_metric(study, checked.metric)
    if options.dry_run:
        print_study(console, study, checked.datasets, place)
        return DONE
    if is_local:
        _say_busy(console)
    warn = partial(say, console)
    with (
        open_storage(place, warn=warn) as storage,
        Loggers(options.log, storage.folder, place=place, say=warn) as loggers,
    ):
        # Again: only now nobody else writes there, and an earlier driver's spool is seen.
        here = storage.folder / STUDY_FILE
        study = _continued(study, place, here if here.is_file() else None)
        with Store(storage.folder, storage.check) as store:
            interrupt.defer()
            loggers.start()
            interrupted = _run(
                options, replace(chosen, study=study), store, console, checked, interrupt
            )
            loggers.end()
            store.check()
            report = ScalingReport.of(replace(load(storage.folder), place=place), options.predict)
            written = report.write(store)
            written += try_scaling_page(report, storage.folder, partial(say, console))
        report.show(console, written=written)
    if interrupted:
        tail = "." if report.results.trials.empty else ": the same command continues."
        console.print(f"interrupted{tail}")
        return INTERRUPTED
    return DONE if (report.results.scaling["n"] > 0).any() else FAILED


def with_room(study: ScalingStudy, capacity: Capacity, source: str) -> ScalingStudy:
    """Return the study with its numbers of workers; UserError where one does not fit.

    Those it leaves to the machines are 1, 2, 4, ... as long as every one of its cells fits, and a
    global batch divides.
    """
    if study.num_workers is None and study.cells is None:
        counts = [1]
        while _has_room(study, 2 * counts[-1], capacity, source):
            counts.append(2 * counts[-1])
        study = study.with_workers(counts)
    for cell in study_cells(study, source):
        capacity.refuse_infeasible(cell.spec.placement.group)
    return study


def _has_room(study: ScalingStudy, num_workers: int, capacity: Capacity, source: str) -> bool:
    parts = num_workers * study.base.accumulate
    if "strong" in study.scaling and any(batch % parts for batch in study.batch_sizes):
        return False
    cells = study_cells(study.with_workers([num_workers]), source)
    # Every worker has a core, also where GPUs cannot be counted.
    return num_workers <= capacity.cpus and all(
        capacity.fits(cell.spec.placement.group) for cell in cells
    )


def _continued(study: ScalingStudy, place: str, file: Path | None) -> ScalingStudy:
    """Return the study with the numbers of workers of an earlier session of it, if `file` tells
    of one; UserError with the difference where it is of another study."""
    if file is None:
        return study
    earlier = read_mapping(file).get(SCALING)
    if isinstance(earlier, dict) and isinstance(earlier.get("num_workers"), list):
        study = study.with_workers(earlier["num_workers"])
    refuse_other_scaling(place, file, study)
    return study


def _run(
    options: argparse.Namespace,
    chosen: Chosen,
    store: Store,
    console: Console,
    checked: Checked,
    interrupt: Interrupt,
) -> bool:
    """Run what is left of the study; return whether it was interrupted."""
    with live_session(options.address, interrupt, console) as session:
        study = with_room(chosen.study, session.capacity, chosen.source)
        _write_study(options, replace(chosen, study=study), store, session)
        # Loaded once here, mapped by every worker of this host.
        for key, dataset in checked.datasets.items():
            if dataset.name not in STORED:
                share(dataset, session.scratch / DATA / key)
        deadline = Deadline(None, interrupt=interrupt)
        cells = study_cells(study)
        progress = Progress(
            console,
            num_trials=len(cells) * study.repeats,
            keys=label_keys({key.partition(".")[0]: None for key in changed_keys(study)}),
            outcome=outcome_words,
            num_workers=lambda spec: num_at_most(spec, session.capacity),
        )
        interrupt.can_continue = True
        with progress, watching(session, progress, deadline, options.wait):
            run_study(study, session=session, store=store, progress=progress, deadline=deadline)
    return interrupt.is_set


def changed_keys(study: ScalingStudy) -> list[str]:
    """Return the run-spec keys, dotted where they lie deeper, that cells differ in."""
    changes = [cell.changes for cell in study.cells or []]
    return list(dict.fromkeys([*study.axes, *(key for one in changes for key in one)]))


def outcome_words(record: RunRecord) -> str:
    """Return what the screen says of a finished run."""
    seconds = record.ledger["train"]
    speed = record.samples / seconds if seconds > 0 else 0.0
    return f"{speed:,.0f} samples/s in {seconds:.2f} s of training"


def _write_study(
    options: argparse.Namespace, chosen: Chosen, store: Store, session: Session
) -> None:
    file = store.folder / STUDY_FILE
    earlier: dict[str, Any] = read_mapping(file) if file.is_file() else {}
    asked = options.predict
    is_numbers = asked is not None and not asked.strip("0123456789, ")
    store.write_yaml(
        STUDY_FILE,
        {
            "study": {"objective": chosen.study.base.objective.model_dump(mode="json")},
            SCALING: chosen.study.document(),
            NAMED: chosen.study.name if chosen.is_named else None,
            PREDICT: asked if is_numbers else earlier.get(PREDICT),
            "notes": [],
            **with_session(earlier, cluster=session.capacity.document()),
        },
    )


def _say_busy(console: Console) -> None:
    """Say where other work on this machine would be measured, too."""
    cores = os.cpu_count() or 1
    load_1min = os.getloadavg()[0]
    if load_1min > BUSY * cores:
        say(
            console,
            f"This machine is busy (load {load_1min:.1f} on {cores} cores): what else runs here "
            "is measured, too; end it for figures of the training alone.",
        )
