"""How much trials slow each other down: one configuration trained alone, then beside another.

Trials that run at the same time share caches, memory bandwidth and clocks even where their
cores are disjoint. The sentinel measures by how much that slows them, with what the search has
just run, in groups that are warm.
"""

import threading
from collections.abc import Callable

from raybench.cluster.run_once import run_once
from raybench.core.objective import BUDGET
from raybench.core.record import Evaluation, RunRecord, StopReason
from raybench.core.spec import RunSpec
from raybench.results.errors import keep_error
from raybench.results.load import StudyResults
from raybench.results.ranking import ranked
from raybench.search.pipeline.single_run import SingleRun

SECONDS = 1.0
"""Training seconds of one measurement."""
START_S = 60.0
"""Longest wait for the company's first evaluation."""


def measure_interference(results: StudyResults, single_run: SingleRun) -> None:
    """Measure and record both runs; nothing to do where no trial ran beside another.

    The sentinel is the best trial that had company; its company is the best such trial of
    another kind of worker group, or of the same kind where there is no other.
    """
    deadline, capacity = single_run.deadline, single_run.session.capacity
    runs = ranked(results.trials)
    runs = runs[runs["concurrent"] > 0]
    is_done = any(record.role == "sentinel" for record in results.runs.values())
    if runs.empty or is_done or deadline.over:
        return
    specs = {name: _for_seconds(results.specs[name], SECONDS) for name in runs["trial"]}
    source, sentinel = next(iter(specs.items()))
    group = sentinel.placement.group
    room = [
        spec for spec in specs.values() if capacity.fits_together([spec.placement.group, group])
    ]
    others = [spec for spec in room if spec.placement.group != group] or room
    if not others:
        return

    def measure(name: str) -> RunRecord:
        return _run(single_run, sentinel, name, source, lambda evaluation: deadline.reason())

    single_run.store.append(measure("sentinel-alone").line())
    # Company begins before the sentinel and outlasts it, so that it is never alone.
    company = _for_seconds(others[0], 20 * SECONDS)
    began, done = threading.Event(), threading.Event()

    def keep_company(evaluation: Evaluation) -> StopReason | None:
        began.set()
        return "scheduler" if done.is_set() else deadline.reason()

    def keep() -> None:
        try:
            _run(single_run, company, "company", source, keep_company)
        except Exception as error:  # noqa: BLE001 (raised when the study's own thread is done)
            deadline.ends_with(error)
        finally:
            began.set()  # nobody waits for what will not begin

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        began.wait(timeout=min(START_S, max(deadline.left_s - deadline.reserve_s, 0.0)))
        record = measure("sentinel-beside")
    finally:
        done.set()
        keeper.join()
    deadline.raise_fault()
    if record.concurrent:
        single_run.store.append(record.line())


def _run(
    single_run: SingleRun,
    spec: RunSpec,
    name: str,
    source: str,
    stop: Callable[[Evaluation], StopReason | None],
) -> RunRecord:
    reasons: list[StopReason | None] = [None]

    def on_evaluation(name: str, evaluation: Evaluation) -> None:
        reasons.append(stop(evaluation))

    record, _ = run_once(
        single_run.session.pool,
        spec,
        name,
        role="sentinel",
        source=source,
        on_evaluation=on_evaluation,
        stopped_by=lambda: reasons[-1],
        on_error=lambda *error: keep_error(single_run.store, *error),
        keep=single_run.keep_groups,
    )
    return record


def _for_seconds(spec: RunSpec, seconds: float) -> RunSpec:
    given = {"kind": BUDGET, "target": None, "max_train_seconds": seconds}
    budget = spec.objective.model_copy(update=given)
    return spec.model_copy(update={"objective": budget})
