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
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import ray
from growth import draw, parser, table_lines
from ray.train._internal import storage
from ray.tune.execution import tune_controller
from scale_world import content, outcomes
from tune_stand_in import RESULTS, StandIn, num_results

from raybench.core.record import RunOutcome
from raybench.core.spec import RunSpec
from raybench.core.study import build_study
from raybench.results.store import machine, versions
from raybench.search import ray_tune
from raybench.search.deadline import Deadline
from raybench.search.ray_tune import TuneTrainable, run_trials

GROWTH = 2.0
PARTS = 20
"""Rows of the table."""


class Meter:
    """CPU seconds of the driver, less those of what stands for other processes."""

    def __init__(self, part: int) -> None:
        self._part, self.rows = part, list[dict[str, float]]()
        self._away = 0.0
        self.num_results = 0
        self._began = time.process_time()

    def leave_out(self, seconds: float) -> None:
        """Take off what stands for other processes."""
        self._away += seconds

    def ended(self, trials: int) -> None:
        """Close a row after every part of the trials."""
        if trials % self._part:
            return
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        spent = time.process_time() - self._began - self._away
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
        self._began, self._away, self.num_results = time.process_time(), 0.0, 0


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
    StandIn.leave_out = meter.leave_out
    courses = [outcomes(f"{at}", spec) for at, spec in enumerate(specs)]
    long = max(courses, key=len)
    trials = Trials(specs, options.trials, meter)
    if options.actors:
        ray.init("local", num_cpus=2, include_dashboard=False, logging_level="error")
        ray_tune.TuneTrainable = MadeUp
        return trials
    StandIn.courses = [course + long[len(course) :] for course in courses]
    tune_controller.RayActorManager = StandIn
    os.environ["TUNE_DISABLE_AUTO_INIT"] = "1"
    ray_tune.waits_by_driver = lambda: {"CPU": 0.001}
    ray.cluster_resources = lambda: {"CPU": 1.0}
    storage._get_ray_train_session_dir = lambda: folder
    return trials


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--actors", action="store_true", help="in a real Ray, with real actors")
    options = arguments.parse_args()
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
    lines = table_lines(table)
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
    draw(table, ("trial", "result"), options.out / f"{name}.png")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
