"""Claim: Ray Tune costs the driver no more at the ten-thousandth trial than at the thousandth.

`run_trials` as shipped: Tune's controller, our searcher, scheduler, callbacks and stopper. Not
real: the trials' actors, for which `StandIn` answers in the driver's own process, on a simulated
clock, so that 256 are at once on any machine; and the search (`scale_10000.py`), which costs
nothing here. A result is unpickled as one of Ray's is. What is left out is Ray's own work to start
actors and to carry messages.

Bar: CPU seconds of the driver per result grow less than twofold from the second of twenty parts of
the trials (before it more begin than end) to the last five; trials have equal numbers of results on
average.

    python benchmarks/scale_tune.py [--trials 10000] [--at-once 256] [--actors]

No Ray is started, unless `--actors` is given: then every trial has its actor (try 16 at once), and
only its run is made up. Writes results/scale_tune.{md,png}, with actors scale_tune_actors; exit 1
above the bar.
"""

import argparse
import heapq
import itertools
import os
import pickle
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import ray
from matplotlib.figure import Figure
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.train._internal import storage
from ray.tune.execution import tune_controller
from scale_world import content, outcomes

from raybench.core.outcome import RunOutcome
from raybench.core.spec import RunSpec
from raybench.core.study import build_study
from raybench.results.provenance import machine, versions
from raybench.search.deadline import Deadline
from raybench.search.ray_tune import tuner
from raybench.search.ray_tune.trainable import OUTCOME, TuneTrainable
from raybench.search.ray_tune.tuner import run_trials

GROWTH = 2.0
PARTS = 20
"""Rows of the table."""
RESULTS = 6
"""Of a trial, on average."""


class Meter:
    """CPU seconds of the driver, less those of what stands for other processes."""

    def __init__(self, part: int) -> None:
        self._part, self.rows = part, list[dict[str, float]]()
        self.away = 0.0
        self.num_results = 0
        self._began = time.process_time()

    def ended(self, trials: int) -> None:
        """Close a row after every part of the trials."""
        if trials % self._part:
            return
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        spent = time.process_time() - self._began - self.away
        row = {
            "trials": float(trials),
            "MB": pages * os.sysconf("SC_PAGESIZE") / 2**20,
            "ms a trial": 1000 * spent / self._part,
            "results a trial": self.num_results / self._part,
            "ms a result": 1000 * spent / max(self.num_results, 1),
        }
        self.rows.append(row)
        print(" ".join(f"{key} {value:.4g}" for key, value in row.items()), file=sys.__stdout__)
        sys.__stdout__.flush()
        self._began, self.away, self.num_results = time.process_time(), 0.0, 0


class Trials:
    """Stands for `LiveTrials` and the search: hands out run specs, and lets all go on."""

    def __init__(self, specs: list[RunSpec], num_trials: int, meter: Meter) -> None:
        self._specs, self._left, self._meter = specs, num_trials, meter
        self._num_asked = self.num_ended = 0

    def __getstate__(self) -> dict[str, object]:
        return {}

    def next(self) -> tuple[str, RunSpec] | None:
        """Return the next trial."""
        if self._num_asked == self._left:
            return None
        self._num_asked += 1
        return f"{self._num_asked:04d}", self._specs[self._num_asked % len(self._specs)]

    def started(self, name: str) -> None:
        """Nobody looks."""

    def seen(self, name: str, outcome: RunOutcome) -> None:
        """Count it."""
        self._meter.num_results += 1

    def must_stop(self, name: str, outcome: RunOutcome) -> bool:
        """None must."""
        return False

    def ended(self, name: str) -> None:
        """Count it."""
        self.num_ended += 1
        self._meter.ended(self.num_ended)


def num_results(name: str, mean: int) -> int:
    """Return after how many results a trial is over."""
    return 1 + random.Random(name).randrange(2 * mean - 1)


class MadeUp(TuneTrainable):
    """A trial whose run is made up."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial."""
        self._spec, self._client = new_config["spec"], Course(**new_config)
        return True


class Course:
    """Stands for a run in workers of the pool, in a trial's real actor."""

    def __init__(self, trial: str, spec: RunSpec) -> None:
        self._left = outcomes(trial, spec)[: num_results(trial, RESULTS)]
        self._last = RunOutcome()

    def step(self) -> RunOutcome:
        """Return the next outcome."""
        self._last = self._left.pop(0)
        return self._last if self._left else self.finish()

    def finish(self) -> RunOutcome:
        """Return the last one, over."""
        return replace(self._last, is_over=True)


class StandIn:
    """Does for Tune's controller what Ray's actor manager does, without actors."""

    meter: Meter
    courses: list[list[RunOutcome]]
    """Outcomes of a run, of every run spec."""

    def __init__(self, resource_manager: Any) -> None:
        self._pending: dict[TrackedActor, dict[str, Any]] = {}
        self._live_actors_to_ray_actors_resources: dict[TrackedActor, tuple[None, None]] = {}
        self._running: dict[TrackedActor, tuple[dict[str, Any], int]] = {}
        """Configuration and results so far."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._clock, self._ids = itertools.count(), 0.0, itertools.count()

    @property
    def num_live_actors(self) -> int:
        """Actors that have started."""
        return len(self._live_actors_to_ray_actors_resources)

    @property
    def num_pending_actors(self) -> int:
        """Actors that start with the next event."""
        return len(self._pending)

    @property
    def num_total_actors(self) -> int:
        """Both."""
        return self.num_live_actors + self.num_pending_actors

    @property
    def num_actor_tasks(self) -> int:
        """Events to come."""
        return len(self._events)

    def is_actor_started(self, tracked_actor: TrackedActor) -> bool:
        """Whether it has."""
        return tracked_actor in self._live_actors_to_ray_actors_resources

    def is_actor_failed(self, tracked_actor: TrackedActor) -> bool:
        """None does."""
        return False

    def add_actor(
        self, *, kwargs: dict[str, Any], on_start: Any, on_stop: Any, on_error: Any, **given: Any
    ) -> TrackedActor:
        """Take an actor that is to start."""
        actor = TrackedActor(next(self._ids), on_start, on_stop, on_error)
        self._pending[actor] = kwargs
        return actor

    def next(self, timeout: float | None = None) -> bool:
        """Handle the next event."""
        for actor, kwargs in self._pending.items():
            self._live_actors_to_ray_actors_resources[actor] = None, None
            self._running[actor] = kwargs["config"], 0
            self._after(0.0, lambda actor=actor: actor._on_start(actor))
        self._pending.clear()
        if not self._events:
            return False
        self._clock, _, event = heapq.heappop(self._events)
        event()
        return True

    def schedule_actor_task(
        self,
        tracked_actor: TrackedActor,
        method_name: str,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
        on_result: Any = None,
        on_error: Any = None,
        _return_future: bool = False,
    ) -> object:
        """Run a method of an actor; return its future."""
        if method_name == "train":
            self._train(tracked_actor, on_result)
        elif method_name == "reset":
            self._running[tracked_actor] = args[0], 0
            self._after(0.0, lambda: on_result(tracked_actor, True))
        else:
            assert method_name == "stop", method_name
        return object()

    def remove_actor(self, tracked_actor: TrackedActor, **given: Any) -> bool:
        """Stop an actor; whether it had started."""
        if self._pending.pop(tracked_actor, None) is not None:
            return False

        def stopped() -> None:
            del self._live_actors_to_ray_actors_resources[tracked_actor]
            if tracked_actor._on_stop:
                tracked_actor._on_stop(tracked_actor)

        self._after(0.0, stopped)
        return True

    def clear_actor_task_futures(self, tracked_actor: TrackedActor) -> None:
        """Nothing to do: a trial that ends has no result to come."""

    def cleanup(self) -> None:
        """Forget what is to come."""
        self._events.clear()

    def _train(self, actor: TrackedActor, on_result: Any) -> None:
        began = time.process_time()
        config, index = self._running[actor]
        self._running[actor] = config, index + 1
        count = num_results(config["trial"], RESULTS)
        outcome = self.courses[int(config["trial"]) % len(self.courses)][index]
        seconds = outcome.evaluation.train_s / (index + 1) if outcome.evaluation else 0.0
        line = pickle.dumps(_result(config, outcome, index, is_over=index + 1 >= count))
        self.meter.away += time.process_time() - began

        self._after(seconds, lambda: on_result(actor, pickle.loads(line)))

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._clock + seconds, next(self._order), event))


def _result(
    config: dict[str, Any], outcome: RunOutcome, index: int, *, is_over: bool
) -> dict[str, Any]:
    """Return what a trial's actor would send: our part, and that which Tune's trainable adds."""
    train_s = outcome.evaluation.train_s if outcome.evaluation else 0.0
    return {
        "train_s": train_s,
        "score": -float(index),
        "done": is_over,
        OUTCOME: outcome,
        "trial_id": config["trial"],
        "training_iteration": index + 1,
        "iterations_since_restore": index + 1,
        "time_this_iter_s": 1.0,
        "time_total_s": train_s,
        "time_since_restore": train_s,
        "date": "2000-01-01_00-00-00",
        "timestamp": 0,
        "pid": 1,
        "hostname": "host",
        "node_ip": "127.0.0.1",
        "config": {"trial": config["trial"], "spec": config["spec"]},
    }


def prepare(options: argparse.Namespace, meter: Meter, folder: str) -> Trials:
    """Make the trials up, and put the stand-in into Tune's controller."""
    study, _ = build_study(content("narrow", options.trials, early_stopping=False), "scale")
    batches = (16, 32, 64, 128, 256, 512)
    specs = [
        study.run_spec({"batch_size_per_worker": n, "learning_rate": rate, "optimizer": name})
        for n in batches
        for rate in (1e-4, 1e-3, 1e-2)
        for name in ("adam", "radam", "lamb")
    ]
    StandIn.meter = meter
    courses = [outcomes(f"{at}", spec) for at, spec in enumerate(specs)]
    long = max(courses, key=len)
    trials = Trials(specs, options.trials, meter)
    if options.actors:
        ray.init("local", num_cpus=2, include_dashboard=False, logging_level="error")
        tuner.TuneTrainable = MadeUp
        return trials
    StandIn.courses = [course + long[len(course) :] for course in courses]
    tune_controller.RayActorManager = StandIn
    os.environ["TUNE_DISABLE_AUTO_INIT"] = "1"
    tuner.waits_on_head = lambda: {"CPU": 0.001}
    ray.cluster_resources = lambda: {"CPU": 1.0}
    storage._get_ray_train_session_dir = lambda: folder
    return trials


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw cost and memory over the trial number."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(table["trials"], table["ms a trial"], label="a trial")
    above.plot(table["trials"], table["ms a result"], label="a result")
    above.set(ylabel="CPU of the driver [ms]", yscale="log")
    above.legend(frameon=False)
    below.plot(table["trials"], table["MB"])
    below.set(xlabel="trials that have ended", ylabel="resident memory [MB]", ylim=(0, None))
    figure.savefig(path, dpi=90)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=256)
    parser.add_argument("--actors", action="store_true", help="in a real Ray, with real actors")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    meter = Meter(max(options.trials // PARTS, 1))
    with tempfile.TemporaryDirectory() as name:
        trials = prepare(options, meter, name)
        began = time.perf_counter(), time.process_time()
        run_trials(
            trials,  # type: ignore[arg-type]
            session=SimpleNamespace(pool=None, scratch=Path(name), is_local=True),  # type: ignore[arg-type]
            deadline=Deadline(None),
            log=Path(name) / "log",
            keep_groups=True,
            concurrency=options.at_once,
        )
        wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        ray.shutdown()
    last = time.process_time() - meter._began
    table = pd.DataFrame(meter.rows)
    mean = table["results a trial"].mean()
    growth = float((table["ms a result"].tail(5).mean()) / table["ms a result"].iloc[1])
    lines = [f"| {' | '.join(table.columns)} |", "|---" * len(table.columns) + "|"]
    lines += [f"| {' | '.join(f'{v:.4g}' for v in row)} |" for row in table.itertuples(index=False)]
    good = growth < GROWTH, trials.num_ended == options.trials
    lines += [
        "",
        f"- {'ok ' if good[0] else 'BAD'} driver CPU of a result x {growth:.2f} from trial "
        f"{meter.rows[1]['trials']:.0f} to {options.trials}, at {mean:.1f} results a trial "
        f"(bar {GROWTH:g})",
        f"- {'ok ' if good[1] else 'BAD'} {trials.num_ended} of {options.trials} ended",
        f"- {last:.1f} s of CPU after the last trial: Tune's state is saved, its results collected",
        f"- in all {wall:.0f} s ({options.trials / wall:.1f} trials a second), {cpu:.0f} s of CPU; "
        f"{options.at_once} open at once, {'real' if options.actors else 'no'} actors",
        "",
        f"{machine()['processor']}, {machine()['cores']} cores, load {os.getloadavg()[0]:.1f}, "
        f"{versions()}",
    ]
    print("\n".join(lines))
    options.out.mkdir(exist_ok=True)
    name = "scale_tune_actors" if options.actors else "scale_tune"
    (options.out / f"{name}.md").write_text("\n".join(lines) + "\n")
    draw(table, options.out / f"{name}.png")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
