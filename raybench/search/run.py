"""The search itself: Tune's controller over trials, Optuna's proposals, the hub's workers."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler

from raybench.cluster.session import Session
from raybench.core.study import StudySpec
from raybench.results.store import Store
from raybench.search.control import Control
from raybench.search.recorder import Recorder
from raybench.search.screen import Screen
from raybench.search.searcher import StudySearcher
from raybench.search.trainable import TrialRun

NOMINAL_CPU = 0.001
"""What Tune reserves for a trial's own process, which only waits; the hub admits workers."""
RUNG_FACTOR = 4
RUNG_START = 1 / 16
"""First rung, as a share of max_train_seconds."""


def search(
    study: StudySpec,
    searcher: StudySearcher,
    *,
    session: Session,
    store: Store,
    control: Control,
    screen: Screen,
    keep_groups: bool = True,
    concurrency: int,
) -> None:
    """Run trials until the searcher has no more, or `control` ends them."""
    trainable = tune.with_resources(
        tune.with_parameters(TrialRun, hub=session.hub, keep=keep_groups), {"CPU": NOMINAL_CPU}
    )
    recorder = Recorder(store, study.objective, session.hub, control, screen)
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=build_scheduler(study),
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
    with _quiet(store.folder / "ray.log"):
        tuner.fit()


def build_scheduler(study: StudySpec) -> TrialScheduler:
    """Successive halving over seconds of training, not epochs: epochs cost different seconds."""
    if not study.search.early_stopping:
        return FIFOScheduler()
    limit = study.objective.max_train_seconds
    return AsyncHyperBandScheduler(
        time_attr="train_s",
        metric="accuracy",
        mode="max",
        max_t=limit,
        stop_last_trials=False,  # the run ends itself, at its first evaluation after the limit
        grace_period=limit * RUNG_START,
        reduction_factor=RUNG_FACTOR,
    )


@contextlib.contextmanager
def _quiet(log: Path) -> Iterator[None]:
    """Send what Ray Tune prints to a file; the screen has its own handle of the terminal."""
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


def prepare_environment() -> None:
    """Set what Tune reads from the environment; called before Ray starts."""
    os.environ.update(
        {
            "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
            "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Control listens instead
            "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a failed trial has no accuracy
            "RAY_AIR_NEW_OUTPUT": "0",
        }
    )
