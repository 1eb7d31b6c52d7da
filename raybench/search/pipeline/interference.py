"""The sentinel: one configuration trained alone and then beside others.

Trials that run at the same time share caches, memory bandwidth and clocks even where their
cores are disjoint; the sentinel measures by how much that slows them, with what the search has
just run, in groups that are warm.
"""

import threading
from collections.abc import Callable

from raybench.cluster.run_client import shape_of
from raybench.cluster.run_once import run_once
from raybench.cluster.session import Session
from raybench.core.documents import validate
from raybench.core.record import Evaluation, RunRecord
from raybench.core.objective import Objective
from raybench.core.spec import RunSpec
from raybench.results.load import StudyResults
from raybench.results.store import Store
from raybench.results.tables import ranked
from raybench.search.pipeline.deadline import Deadline

SECONDS = 1.0
"""Training seconds of one measurement."""
START_S = 60.0
"""Longest wait for the company's first evaluation."""
ALONE, BESIDE = "sentinel-alone", "sentinel-beside"


def run_sentinel(
    results: StudyResults, *, session: Session, store: Store, control: Deadline
) -> None:
    """Measure and record both runs; nothing to do where no trial ran beside another.

    The sentinel is the best trial that had company; its company is the best such trial of
    another kind of worker group, or of the same kind where there is no other.
    """
    runs = ranked(results.trials)
    runs = runs[runs["concurrent"] > 0]
    if runs.empty or ALONE in set(results.trials["trial"]) or control.over:
        return
    specs = [_for_measuring(results.specs[name], SECONDS) for name in runs["trial"]]
    sentinel = specs[0]
    room = [spec for spec in specs if _fit_together(spec, sentinel, session)]
    others = [spec for spec in room if shape_of(spec) != shape_of(sentinel)] or room
    if not others:
        return
    store.append(_run(session, sentinel, ALONE, lambda evaluation: control.reason()).line())
    # Company begins before the sentinel and outlasts it, so that it is never alone.
    company = others[0].model_copy(update={"objective": _budget(20 * SECONDS)})
    began, done = threading.Event(), threading.Event()

    def keep_company(evaluation: Evaluation) -> str | None:
        began.set()
        return "scheduler" if done.is_set() else control.reason()

    keeper = threading.Thread(target=_run, args=(session, company, "company", keep_company))
    keeper.start()
    began.wait(timeout=START_S)
    record = _run(session, sentinel, BESIDE, lambda evaluation: control.reason())
    done.set()
    keeper.join()
    if record.concurrent:
        store.append(record.line())


def _run(
    session: Session, spec: RunSpec, name: str, stop: Callable[[Evaluation], str | None]
) -> RunRecord:
    reasons: list[str | None] = [None]

    def on_evaluation(name: str, evaluation: Evaluation) -> None:
        reasons.append(stop(evaluation))

    record, _ = run_once(
        session.hub,
        spec,
        name,
        "reference",
        on_evaluation=on_evaluation,
        outer_stop=lambda: reasons[-1],
    )
    return record


def _fit_together(one: RunSpec, other: RunSpec, session: Session) -> bool:
    return session.capacity.fits_together([shape_of(one), shape_of(other)])


def _for_measuring(document: dict[str, object], seconds: float) -> RunSpec:
    spec = validate(RunSpec, dict(document), "sentinel")
    return spec.model_copy(update={"objective": _budget(seconds)})


def _budget(seconds: float) -> Objective:
    return Objective(kind="accuracy_at_budget", max_train_seconds=seconds)
