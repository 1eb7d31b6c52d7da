"""The search itself: Tune's controller over trials, Optuna's proposals, the hub's workers."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ray import tune
from ray.tune.schedulers import FIFOScheduler

from raybench.cluster.session import Session
from raybench.core.study import StudySpec
from raybench.results.load import load
from raybench.results.progress import Progress
from raybench.results.store import Store
from raybench.search.pipeline.confirm_budget import ConfirmBudget
from raybench.search.pipeline.deadline import Deadline
from raybench.search.ray_tune.callback import Recorder
from raybench.search.ray_tune.scheduler import TimeRungs
from raybench.search.ray_tune.searcher import StudySearcher
from raybench.search.ray_tune.trainable import TrialRun
from raybench.speed.placement import Placer

HEAD = "node:__internal_head__"
"""A resource that only the head has: what Tune reserves for a trial's own process, which merely
waits, is taken where no worker runs. Cores are admitted by the hub."""
NOMINAL = 0.0001


def search(
    study: StudySpec,
    searcher: StudySearcher,
    *,
    session: Session,
    store: Store,
    control: Deadline,
    screen: Progress,
    allowance: ConfirmBudget,
    keep_groups: bool = True,
    concurrency: int,
    speed: Placer | None = None,
) -> None:
    """Run trials until the searcher has no more, or `control` ends them.

    `speed` is what the searcher was given, or None if the space is not taken apart.
    """
    trainable = tune.with_resources(
        tune.with_parameters(TrialRun, hub=session.hub, keep=keep_groups),
        tune.PlacementGroupFactory([{HEAD: NOMINAL}]),
    )
    scheduler = FIFOScheduler()
    if study.search.early_stopping:
        scheduler = TimeRungs(study, speed)
        scheduler.learn(load(store.folder))
    recorder = Recorder(
        store,
        study.objective,
        session.hub,
        control,
        screen,
        scheduler,
        searcher,
        allowance=allowance,
        is_factorised=speed is not None,
        keep_groups=keep_groups,
    )
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=scheduler,
            # The searcher ends the search; Tune's own number only has to be above it.
            num_samples=-1,
            max_concurrent_trials=concurrency,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(session.scratch),
            stop=control,
            callbacks=[recorder],
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    control.reserve_s = allowance.reserve_s()
    with _quiet(store.folder / "ray.log"):
        tuner.fit()
    if not control.interrupted:
        searcher.tell_all()


@contextlib.contextmanager
def _quiet(log: Path) -> Iterator[None]:
    """Send what Ray Tune prints to a file; the screen has its own handle of the terminal."""
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield
