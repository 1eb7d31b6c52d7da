"""The search itself: Tune's controller over trials, our proposals, the pool's workers."""

import os
from collections.abc import Callable
from pathlib import Path

from ray import tune
from ray.tune.search import ConcurrencyLimiter

from raybench.cluster.layout import Node
from raybench.cluster.ray_internals.driver_node import waits_by_driver
from raybench.cluster.session import Session
from raybench.search.deadline import Deadline
from raybench.search.live_trials import LiveTrials
from raybench.search.quiet import quiet
from raybench.search.ray_tune.callback import TuneCallback
from raybench.search.ray_tune.following import Following
from raybench.search.ray_tune.scheduler import TuneScheduler
from raybench.search.ray_tune.searcher import TuneSearcher
from raybench.search.ray_tune.stopper import TuneStopper
from raybench.search.ray_tune.trainable import TuneTrainable

ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # `cluster.signals` listens instead
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a failed trial has no accuracy
    # Tune saves the state of all trials there were again and again; the records hold the study.
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""What Ray Tune reads from the environment."""


def run_trials(
    trials: LiveTrials,
    *,
    session: Session,
    deadline: Deadline,
    log: Path,
    keep_groups: bool,
    concurrency: int,
    follow: Callable[[tuple[Node, ...]], int] | None = None,
) -> None:
    """Run trials until there are no more, or `deadline` ends them.

    At most `concurrency` at once; `follow` tells it anew from the nodes that there are then. What
    Ray Tune prints goes to the file `log`.
    """
    os.environ.update(ENVIRONMENT)
    trainable = tune.with_resources(
        tune.with_parameters(TuneTrainable, pool=session.pool, keep=keep_groups),
        # A trial's own process merely waits; cores are admitted by the pool.
        tune.PlacementGroupFactory([waits_by_driver()]),
    )
    # Tune's own limit is fixed; this one is the same thing with a number that may change.
    searcher = ConcurrencyLimiter(TuneSearcher(trials), max_concurrent=concurrency)
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=TuneScheduler(trials),
            # The searcher ends the search; Tune's own number only has to be above it.
            num_samples=-1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(session.scratch),
            stop=TuneStopper(deadline),
            callbacks=[
                TuneCallback(trials, deadline, session),
                *([Following(searcher, session, follow)] if follow else []),
            ],
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    with quiet(log):
        tuner.fit()
