"""The `tune` command: resolve the study, print its plan or run it, and print the result."""

import importlib
import threading
import time
from pathlib import Path

from raybench.cluster.layout import Capacity, local_capacity
from raybench.cluster.session import chosen_address
from raybench.cluster.signals import Interrupt
from raybench.report.progress import lines_for
from raybench.report.show import show
from raybench.results.ranking import ranked_runs
from raybench.results.records import read_records
from raybench.results.storage import study_file
from raybench.results.store import RECORDS_FILE, STUDY_FILE
from raybench.results.study import Study, load
from raybench.results.verdict import verdict_of
from raybench.runs.frame import CommandFrame, OpenStudy
from raybench.runs.options import TuneOptions
from raybench.runs.preflight import GPUS, check_cluster, first_values
from raybench.runs.wait_watch import RAY_LOG, Deadline, live_session, quiet
from raybench.search import preflight
from raybench.search.resolve import DECIDED, STUDY_KEY_OVER, ResolvedStudy, resolve_study
from raybench.search.sampling.default_rates import first_specs
from raybench.spec.documents import read_mapping
from raybench.spec.errors import DONE, FAILED, NOT_REACHED, Ended, ErrorCode, UserError
from raybench.spec.text import counted
from raybench.stats.record import Phase, Purpose, Role
from raybench.training.machine import machine_facts, problems_of


def tune(options: TuneOptions, interrupt: Interrupt) -> Ended:
    """Run the `tune` command: search, confirm, then write and print the results.

    For the arguments, see `CommandFrame`. Returns how the command ended.
    """
    frame = CommandFrame(options, interrupt)
    is_local = chosen_address(options.address) is None
    capacity = local_capacity() if is_local else None
    resolved = resolve_study(options, capacity)
    place = resolved.place
    if options.dry_run:
        resolved = resolved.continued(study_file(place))
        if options.more is not None:
            return _show_more(frame, options.more, place)
        return _show_plan(frame, resolved, capacity)
    frame.say(*resolved.sentences)
    if options.more is not None and study_file(place) is None:
        check_finished(options.more, place, None)
    # The time budget in the file of a finished study was meant for the search.
    budget_s = resolved.study.search.time_budget_s if options.more is None else options.time_budget
    deadline = Deadline(budget_s, interrupt=interrupt)
    refuse_spent(deadline)
    with frame.open(place) as opened:
        # From here on, no other process writes to `place`, and `opened.folder` is a local copy.
        resolved = resolved.continued(opened.study_file)
        frame.say(*resolved.taken_sentences)
        if options.more is not None:
            check_finished(options.more, place, opened.folder)
        opened.begin({resolved.study.workload}, is_kept=options.keep_code_change)
        is_interrupted = _run(options, resolved, opened, deadline)
        results = opened.results()
        opened.write(results)
        show(frame.console, results, verbose=options.verbose)
    can_resume = not results.trials.empty
    return frame.ended(
        place, exit_code(results), is_interrupted=is_interrupted, can_resume=can_resume
    )


def exit_code(results: Study) -> int:
    """Return the exit code of a study that was not interrupted."""
    if not len(ranked_runs(results.trials)):
        return FAILED
    return NOT_REACHED if verdict_of(results) is None else DONE


def _show_plan(frame: CommandFrame, resolved: ResolvedStudy, capacity: Capacity | None) -> Ended:
    """Print the plan for `--dry-run`, after the choices made for the user and the problems found on
    this machine."""
    sentences = [*resolved.sentences, *resolved.taken_sentences]
    problems = problems_of(machine_facts(is_quick=True)) if capacity is not None else ()
    frame.say(*sentences, *problems)
    plan = resolved.plan
    plan.show(frame.console, resolved.dataset, resolved.place, capacity)
    return frame.planned(sentences, plan.document(resolved.place, capacity))


def _show_more(frame: CommandFrame, number: int, place: str) -> Ended:
    """Print the plan of `--more` for `--dry-run`: the configurations that would run again."""
    results = load(place) if study_file(place) is not None else None
    check_finished(number, place, None if results is None else results.folder)
    verdict = None if results is None else verdict_of(results)
    trials: list[str] = []
    if verdict is not None and verdict.undecided:  # without a winner, nothing is left to decide
        trials = list(dict.fromkeys((verdict.fastest, verdict.cheapest, *verdict.undecided)))
    plan = f"at most {counted(number, 'confirmation run')} of trials {', '.join(trials)}"
    frame.say(plan if trials else DECIDED)
    return frame.planned((), {"results": place, "more": number, "trials": trials})


def refuse_spent(deadline: Deadline) -> None:
    """Raise UserError if loading the data used up the time budget, before Ray starts."""
    if deadline.is_spent:
        raise UserError(
            f"Loading the data took {time.perf_counter() - deadline.began:.0f} s and used up the "
            f"{deadline.time_budget_s:g} s time budget; increase --time-budget.",
            ErrorCode.NO_TIME,
        )


def check_finished(number: int, place: str, folder: Path | None) -> None:
    """Check that a results folder contains a study whose confirmation has ended.

    Args:
        number: Value of `--more`, for the error message.
        place: Folder or URL that the user gave, for the error message.
        folder: Local results folder; None if it does not exist.

    Raises:
        UserError: The folder contains no such study.
    """
    has_records = folder is not None and (folder / RECORDS_FILE).is_file()
    runs = list(read_records(folder).runs.values()) if folder and has_records else []
    roles = [
        run.role
        for run in runs
        if run.phase == Phase.CONFIRM and run.counts_for(Purpose.COMPARISON)
    ]
    if (
        folder
        and roles
        and read_mapping(folder / STUDY_FILE).get(STUDY_KEY_OVER, Role.CONFIRM in roles)
    ):
        return
    done = "no confirmed study"
    if roles:
        done = f"an unfinished confirmation with {len(roles)} runs"
    raise UserError(
        f"--more {number}: {place} contains {done}; run the same command without --more until "
        "it has finished, then add --more.",
        ErrorCode.NO_RESULT,
    )


def _run(
    options: TuneOptions, resolved: ResolvedStudy, opened: OpenStudy, deadline: Deadline
) -> bool:
    """Run the unfinished part of the study; return whether it was interrupted."""
    study, space = resolved.study, resolved.space
    console, interrupt = opened.frame.console, opened.frame.interrupt
    lines = lines_for(options.progress)  # before stderr is redirected
    # Import Ray Tune and Optuna while Ray's processes start.
    importing = threading.Thread(
        target=importlib.import_module, args=["raybench.search.study"], daemon=True
    )
    importing.start()
    # Also while Ray shuts down, since it still prints then.
    silence = quiet(opened.folder / RAY_LOG)
    with silence, live_session(options.address, interrupt, console) as session:
        importing.join()
        interrupt.check()
        if not session.is_local:  # the room on this machine was checked before Ray started
            firsts = first_specs(study, space).values()
            opened.frame.say(*preflight.check_room(study, space, session.capacity, firsts))
        are_gpus_named = GPUS in space or GPUS in study.fixed
        spec = study.run_spec(first_values(study, space))
        asking = "--gpus-per-worker 1"
        check_cluster(session, console, spec, are_gpus_named=are_gpus_named, asking=asking)
        concurrency = study.search.concurrency or preflight.default_concurrency(
            study, space, session.capacity
        )
        from raybench.search.study import StudyPipeline

        pipeline = StudyPipeline(
            resolved,
            session,
            opened.store,
            console,
            deadline,
            concurrency,
            keep_groups=options.isolation == "none",
            wait_s=options.wait,
            num_more=options.more or 0,
            lines=lines,
        )
        interrupt.can_continue = True
        pipeline.run()
        deadline.raise_fault()
    return interrupt.is_set
