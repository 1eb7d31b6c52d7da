"""Run the phases of a study: reference runs, search, placement checks, confirmation."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TextIO

from rich.console import Console

from raybench.cluster import run_client
from raybench.cluster.session import Session
from raybench.data.split_metrics import baselines
from raybench.data.store import shared_key
from raybench.report.console import say
from raybench.report.export import export
from raybench.report.progress import ProgressDisplay
from raybench.results.records import Records, read_records
from raybench.results.store import CODE, NOTHING_LEFT, STUDY_FILE, Store, with_session
from raybench.results.study import NUM_TRIALS, load
from raybench.runs.lifecycle import FirstRuns, SingleRun, single_runs
from raybench.runs.preflight import first_values
from raybench.runs.wait_watch import RAY_LOG, Deadline
from raybench.search.confirm_budget import ConfirmBudget
from raybench.search.confirmation import Confirmation, check_placements, num_raced
from raybench.search.factorisation import SAMPLED_WHOLE, study_factors
from raybench.search.preflight import following, groups, num_queued_ahead
from raybench.search.ray_tune import LiveTrials, run_trials
from raybench.search.reference import set_by_reference
from raybench.search.resolve import STUDY_KEY_MORE, STUDY_KEY_OVER, ResolvedStudy, StudyPlan
from raybench.search.search import Search
from raybench.spec.documents import read_mapping
from raybench.spec.objective import Baseline, StopReason, baseline_value_of
from raybench.spec.own_loop import is_own_loop
from raybench.spec.run import RunSpec, label_keys
from raybench.spec.study import StudySpec
from raybench.spec.text import counted
from raybench.stats.record import Role

LONGER = "increase --time-budget and rerun the same command to resume."


def more_until(asked: int, earlier: Mapping[str, Any], raced: int) -> int:
    """Return the total number of race runs at which `--more` (further runs) is finished.

    Args:
        asked: Number of further runs that the user asked for with `--more`.
        earlier: Content of `study.yaml`. An unfinished `--more` with the same number is resumed.
        raced: Number of race results so far.
    """
    begun = earlier.get(STUDY_KEY_MORE) or {}
    return min(begun["until"], raced + asked) if begun.get("asked") == asked else raced + asked


@dataclass(frozen=True)
class StudyState:
    """Part of `study.yaml` that changes while a study runs."""

    study: StudySpec
    num_trials: int
    """Number of trials of the search."""
    set_by: tuple[str, ...] = ()
    """One sentence for each setting that came from earlier results or from reference runs."""
    notes: tuple[str, ...] = ()
    """Notes for the user, one sentence each."""
    more: dict[str, int] | None = None
    """State of an unfinished `--more` (further confirmation runs); None if there is none. `asked`
    is the number that the user asked for, and `until` is the total number of race runs at which
    `--more` is finished."""
    is_over: bool | None = None
    """Whether the confirmation has ended and no trial has started since; None if unknown."""

    def document(self) -> dict[str, Any]:
        """Return the state as plain data for `study.yaml`."""
        target = "the user"
        if "target" in self.study.auto:
            target_sentences = (
                sentence for sentence in self.set_by if sentence.startswith("target")
            )
            target = next(target_sentences, "not set yet")
        return {
            "study": self.study.document(),
            "target_set_by": target,
            "set_by_reference": list(self.set_by),
            "notes": list(self.notes),
            **({STUDY_KEY_MORE: self.more} if self.more else {}),
            **({} if self.is_over is None else {STUDY_KEY_OVER: self.is_over}),
            NUM_TRIALS: self.num_trials,
        }


@dataclass
class StudyPipeline:
    """Runs the phases of a study that earlier sessions have not finished.

    The phases share the records, the progress display and the deadline. Whatever they change in the
    study is kept in `state`, which is written to `study.yaml` on every change (`_update`).
    """

    resolved: ResolvedStudy
    session: Session
    store: Store
    console: Console
    deadline: Deadline
    concurrency: int
    keep_groups: bool
    """Whether later trials reuse the worker processes."""
    wait_s: float | None = None
    """Largest total time in seconds that a trial may wait for resources; None for no limit."""
    lines: TextIO | None = None
    """Stream for JSON lines, one per event, instead of the progress display."""
    num_more: int = 0
    """Number of further confirmation runs for a finished study (`--more`); 0 runs the study
    itself."""

    def __post_init__(self) -> None:
        file = self.store.folder / STUDY_FILE
        self._earlier: dict[str, Any] = read_mapping(file) if file.is_file() else {}
        """Content of `study.yaml` before this session."""
        self.space, self._plan = self.resolved.space, self.resolved.plan
        before, num_trials, notes = self._earlier, self._plan.num_trials, self.session.notes
        if self.num_more:  # the search ran in earlier sessions
            num_trials = before.get(NUM_TRIALS, num_trials)
            notes = [*notes, *map(str, before.get("notes") or [])]
        self.state = StudyState(
            self.resolved.study,
            num_trials,
            set_by=(
                *self.resolved.taken_sentences,
                *map(str, before.get("set_by_reference") or []),
            ),
            notes=tuple(notes),
            more=before.get(STUDY_KEY_MORE),
            is_over=before.get(STUDY_KEY_OVER),
        )

    @property
    def study(self) -> StudySpec:
        """The study, including the settings made by reference runs."""
        return self.state.study

    def run(self) -> None:
        """Run the rest of the study until the deadline."""
        if not self.deadline.over:
            spec = self.study.run_spec(first_values(self.study, self.space))
            key = shared_key(spec.workload, spec.dataset, spec.data)
            self.session.share({key: self.resolved.dataset})
        self._update()
        self._run_phases()

    def _run_phases(self) -> None:
        if self.deadline.reason() == StopReason.TIME_BUDGET:
            started = time.perf_counter() - self.deadline.began
            self._note(f"Starting took {started:.0f} s, all of the {self._budget()}; {LONGER}")
            return
        if self.num_more:
            self._run_more()
            return
        if self.study.needs_reference and not self._set_by_reference():
            if self.deadline.reason() == StopReason.TIME_BUDGET:
                self._note(f"The {self._budget()} ended before the reference runs did; {LONGER}")
            return
        records = read_records(self.store.folder)
        if records.left_out is not None:
            say(self.console, records.left_out)
        trials = [run for run in records.runs.values() if run.role == Role.TRIAL]
        search, confirm_budget = self._open_search(records)
        progress = self._progress(search.num_trials, search.num_finished)
        progress.state.best = min(
            (run for run in trials if run.failure is None and run.samples),
            key=lambda run: run.score,
            default=None,
        )
        first_runs = FirstRuns(have_trained=any(run.samples for run in trials))
        with self._single_runs(progress, first_runs) as single_run:
            with self.deadline.reserving(confirm_budget.reserve_s()):
                self._search(search, single_run, confirm_budget)
            check_placements(search.placer, single_run, confirm_budget)
            self._keep_best()
            if not self.deadline.interrupted:
                self._confirmation(single_run).run()
                self._update(is_over=not self.deadline.interrupted)

    def _run_more(self) -> None:
        """Run the further confirmation runs of `--more` that are still missing.

        Repeating the command resumes an interrupted session.
        """
        raced = num_raced(read_records(self.store.folder))
        until = more_until(self.num_more, self._earlier, raced)
        left = max(until - raced, 0)
        if left < self.num_more:
            done = self.num_more - left
            say(self.console, f"resuming --more {self.num_more}: {done} of its runs are done")
        self._update(more={"asked": self.num_more, "until": until})
        with self._single_runs(self._progress(self.num_more)) as single_run:
            is_over = self._confirmation(single_run).run_more(left)
        if is_over:
            self._update(more=None)

    def _keep_best(self) -> None:
        """Write best.yaml and the tables now, in case the driver is killed later."""
        export(load(self.store.folder), self.store)

    def _set_by_reference(self) -> bool:
        """Train the reference runs that set the `auto` keys; return whether the keys are set."""
        with self._single_runs(self._progress(self.state.num_trials)) as single_run:
            settings = set_by_reference(
                self.study,
                self.space,
                single_run,
                at_once=self._at_once(self._slots()),
                baseline_value=self._baseline_value(),
                baselines=self._baselines,
                num_train_samples=self.resolved.dataset.num_train_samples,
                has_room=self._has_room,
            )
        if settings is None:
            return False
        study, sentences = settings
        self._plan = StudyPlan.of(study, self.space)
        set_by = (*self.state.set_by, *sentences)
        self._update(study=study, set_by=set_by, num_trials=self._plan.num_trials)
        self._keep_best()
        for sentence in sentences:
            say(self.console, sentence)
        return True

    def _open_search(self, records: Records) -> tuple[Search, ConfirmBudget]:
        """Create the search and the time estimate of the confirmation from the records of earlier
        sessions."""
        folder = self.store.folder
        references = [run for name, run in records.runs.items() if name.startswith("reference")]
        if any(run.batch_statistics for run in references):
            sampled = study_factors(self.study, self.space, batch_statistics=True)
            self._plan = replace(self._plan, factors=sampled)
            self._update(num_trials=self._plan.num_trials)
        if self._plan.factors == SAMPLED_WHOLE:
            self._note(SAMPLED_WHOLE)
        factors = None if isinstance(self._plan.factors, str) else self._plan.factors
        slots, capacity = None, self.session.capacity
        if factors is not None and not capacity.grows:
            slots = max(map(capacity.num_fitting, groups(self.study, self.space)))
        search = Search(
            self.study,
            self.space,
            folder,
            factors=factors,
            slots=slots,
            runs=records.runs,
            curves=records.curves,
            unfinished=records.unfinished,
            has_room=self._has_room,
        )
        if self.resolved.earlier is not None:
            say(self.console, search.learn_from(self.resolved.earlier))
        if self._earlier and (records.runs or records.curves):
            done = counted(search.num_finished, "finished trial")
            say(self.console, f"resuming {folder} with {done}")
        at_once = self._at_once(self.concurrency)
        confirm_budget = ConfirmBudget(self.study, at_once=at_once, left_s=self.deadline.left_s)
        confirm_budget.learn(records.runs.values())
        return search, confirm_budget

    def _search(self, search: Search, single_run: SingleRun, confirm_budget: ConfirmBudget) -> None:
        """Run the trials of the search; if it ends early, note why."""
        pool, keep = self.session.pool, self.keep_groups
        trials = LiveTrials(
            search,
            single_run,
            confirm_budget=confirm_budget,
            release=lambda name: run_client.release(pool, name, keep=keep),
            on_begun=self._trial_begun,
        )
        ahead = 0  # with a placer, most trials share a few worker groups
        if search.placer is None:
            ahead = num_queued_ahead(self.study, self.space, is_local=self.session.is_local)
        if not self.deadline.over:
            run_trials(
                trials,
                session=self.session,
                deadline=self.deadline,
                log=self.store.folder / RAY_LOG,
                keep_groups=keep,
                limit_s=self.study.search.trial_seconds,
                concurrency=self.concurrency,
                ahead=ahead,
                follow=following(self.study, self.space, self.session.capacity),
            )
        ended_by = trials.ended_by or self.deadline.reason()
        self.deadline.raise_fault()
        if (sentence := search.left_out()) is not None:
            self._note(sentence)
        for note in single_run.notes if is_own_loop(self.study.workload) else ():
            self._note(f"{note[:1].upper()}{note[1:]}.")
        done = f"{search.num_finished} of {search.num_trials} trials"
        if search.num_finished < search.num_trials and ended_by == StopReason.TIME_BUDGET:
            self._note(f"The {self._budget()} ended the search after {done}.")
        elif search.num_finished < search.num_trials and ended_by is None:
            self._note(f"The search ended after {done}: {NOTHING_LEFT}")

    def _trial_begun(self) -> None:
        """Record that a new trial has started, so that the confirmation of an earlier session is
        out of date."""
        if self.state.is_over is not False:
            self._update(is_over=False)

    def _confirmation(self, single_run: SingleRun) -> Confirmation:
        slots = self._slots()
        return Confirmation(
            self.study,
            single_run,
            slots=slots,
            at_once=self._at_once(slots),
            baseline_value=self._baseline_value(),
            note=self._note,
        )

    def _slots(self) -> int:
        """Return how many runs can run on the current nodes of the cluster at the same time."""
        follow = following(self.study, self.space, self.session.capacity)
        if follow is None or self.session.is_local:
            return self.concurrency
        return max(1, follow(self.session.nodes()))

    def _at_once(self, slots: int) -> Callable[[RunSpec], int]:
        return lambda spec: self.session.capacity.most_groups(spec.resources, slots)

    @cached_property
    def _baselines(self) -> dict[str, Baseline | None]:
        """Baselines (metric values of a constant prediction), keyed by split; None if unknown or
        the split is empty."""
        return baselines(self.study.objective, self.resolved.dataset)

    def _baseline_value(self) -> float | None:
        return baseline_value_of(self.study.objective, self.resolved.dataset.num_classes)

    def _has_room(self, spec: RunSpec) -> bool:
        return self.session.capacity.may_fit(spec.resources)

    def _note(self, sentence: str) -> None:
        self._update(notes=tuple(dict.fromkeys([*self.state.notes, sentence])))

    def _budget(self) -> str:
        return f"time budget of {self.deadline.time_budget_s:g} s"

    def _progress(self, num_trials: int, num_done: int = 0) -> ProgressDisplay:
        return ProgressDisplay(
            self.console,
            num_trials=num_trials,
            num_done=num_done,
            keys=label_keys(self.study.space),
            began=self.deadline.began,
            ends_in_s=self.deadline.left_s,
            num_workers=lambda spec: self.session.capacity.most_workers(spec.resources),
            lines=self.lines,
        )

    @contextmanager
    def _single_runs(
        self, progress: ProgressDisplay, first_runs: FirstRuns | None = None
    ) -> Iterator[SingleRun]:
        """Context manager that displays the runs of a phase, and yields the `SingleRun` that trains
        them."""
        with (
            progress,
            single_runs(
                self.session,
                self.store,
                self.deadline,
                progress,
                wait_s=self.wait_s,
                keep_groups=self.keep_groups,
                limit_s=self.study.search.trial_seconds,
                first_runs=first_runs,
            ) as single_run,
        ):
            yield single_run

    def _update(self, **changes: Any) -> None:
        """Change the state and write `study.yaml`."""
        self.state = replace(self.state, **changes)
        cluster = self.session.capacity.document()
        content = {
            **self.state.document(),
            "baseline": {
                name: baseline and baseline.document() for name, baseline in self._baselines.items()
            },
            **({CODE: self.store.versions} if self.store.versions else {}),
            **with_session(self._earlier, cluster=cluster, concurrency=self.concurrency),
        }
        self.store.write_yaml(STUDY_FILE, content)
