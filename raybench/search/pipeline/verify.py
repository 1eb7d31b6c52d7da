"""Between a search and its race: what was only predicted is trained, interference is measured."""

from raybench.results.load import load
from raybench.search.confirm_budget import ConfirmBudget
from raybench.search.pipeline.interference import measure_interference
from raybench.search.pipeline.single_run import SingleRun
from raybench.search.pipeline.verify_predictions import run_finalists
from raybench.speed.placement import Placer

KEPT_FOR_CONFIRM = 0.75
"""Share of the time left that finalists leave to confirming, where there is little of it."""
INTERFERENCE_S = 5.0
"""What measuring the interference takes at most, about."""


def verify(placer: Placer | None, single_run: SingleRun, confirm_budget: ConfirmBudget) -> None:
    """Train what was only predicted, and measure how trials disturb each other."""
    store, deadline = single_run.store, single_run.deadline
    store.check()
    # A part of what is left, so that what is less than expected serves both phases.
    confirming_s = confirm_budget.confirming_s()
    deadline.reserve_s = min(confirming_s, KEPT_FOR_CONFIRM * deadline.left_s)
    if placer is not None:
        run_finalists(load(store.folder), placer, single_run)
        store.check()
    if deadline.left_s > confirming_s + INTERFERENCE_S:
        measure_interference(load(store.folder), single_run)
    deadline.reserve_s = 0.0
