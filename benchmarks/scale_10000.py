"""Claim: the search costs the driver no more at the ten-thousandth trial than at the hundredth.

A study of 10,000 trials with 256 open at once. Real: the search as shipped (Optuna's TPE and
journal, priors, neighbours, step-time model, early stopping), `LiveTrials`, the records on the
disk, the lines on the screen, the budget for confirming, and `raybench.load` of what was written.
Not real: trainings (`scale_world.py` makes curves up), the clock they take (simulated), and Ray
Tune, which in a study calls `LiveTrials` from its hooks: its own cost is not in these figures.

Bar: CPU seconds of the driver per trial, at equal evaluations a trial (early stopping is judged but
trials go on to their end with `--all`), grow less than twofold from the hundred trials after the
hundredth (by then what is suggested is modelled: the first ones are drawn) to the last; and the
folder loads within 10 s. CPU seconds, so that a busy machine changes little; memory is resident.

    python benchmarks/scale_10000.py [--trials 10000] [--at-once 256] [--space wide|narrow]

Writes results/scale_10000.{md,png}; exit 1 above a bar.
"""

import argparse
import contextlib
import heapq
import itertools
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from growth import draw, parser, table_lines
from rich.console import Console
from scale_world import SPACES, content, outcomes

import raybench
from raybench.core.record import RunOutcome
from raybench.core.study import build_study
from raybench.report import report
from raybench.results.live.progress import Progress
from raybench.results.store import RECORDS_FILE, STUDY_FILE, Store, machine, versions
from raybench.search.ask_tell import Search
from raybench.search.confirm_budget import ConfirmBudget
from raybench.search.deadline import Deadline
from raybench.search.live_trials import LiveTrials
from raybench.search.saved_runs import SavedRuns
from raybench.speed.factorisation import Factors, factorise

GROWTH, LOAD_S = 2.0, 10.0
FIRST = 100
"""The trial from which growth is counted."""
PARTS = 20
"""Rows of the table."""


class NoPool:
    """The pool where nobody has taken a checkpoint."""

    @property
    def forget(self) -> "NoPool":
        """A method of an actor."""
        return self

    def remote(self, name: str) -> None:
        """Call it."""


class Meter:
    """CPU seconds of the driver by what it did, trial by trial."""

    def __init__(self, part: int) -> None:
        self._part, self.rows = part, list[dict[str, float]]()
        self._spent = dict.fromkeys(("suggest", "evaluate", "end"), 0.0)
        """`evaluate` is to judge an evaluation, too, and to write its record."""
        self._counts = dict.fromkeys(self._spent, 0)

    def call(self, what: str, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function and charge its CPU seconds."""
        began = time.process_time()
        result = function(*given)
        self._spent[what] += time.process_time() - began
        self._counts[what] += 1
        return result

    def ended(self, trials: int) -> None:
        """Close a row of the table after every part of the trials."""
        if trials % self._part:
            return
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        row = {"trials": float(trials), "MB": pages * os.sysconf("SC_PAGESIZE") / 2**20}
        for what, seconds in self._spent.items():
            row[f"ms a {what}"] = 1000 * seconds / max(self._counts[what], 1)
        records = self._counts["evaluate"] + self._counts["end"]
        busy = sum(self._spent.values())
        row |= {"ms a trial": 1000 * busy / self._part, "records a CPU s": records / busy}
        row["evaluations a trial"] = self._counts["evaluate"] / self._part
        self.rows.append(row)
        self._spent = dict.fromkeys(self._spent, 0.0)
        self._counts = dict.fromkeys(self._counts, 0)
        print(" ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)


def run(options: argparse.Namespace, folder: Path, meter: Meter) -> None:
    """Run the study on a simulated clock; evaluations come in the order of their seconds."""
    given = content(options.space, options.trials, early_stopping=not options.all)
    study, space = build_study(given, "scale")
    factors = factorise(study, space, equal_frameworks=True)
    assert isinstance(factors, Factors), factors
    search = Search(study, space, folder, factors=factors)
    with (
        Store(folder) as store,
        (folder / "screen").open("w") as screen,
        SavedRuns(NoPool(), store, say=print) as saved,
    ):
        store.write_yaml(STUDY_FILE, {"study": study.document()})
        trials = LiveTrials(
            search,
            store=store,
            progress=Progress(Console(file=screen), num_trials=options.trials),
            deadline=Deadline(None),
            confirm_budget=ConfirmBudget(study),
            saved=saved,
            release=lambda name: 0,
        )
        order, clock, num_ended, is_over = itertools.count(), 0.0, 0, False
        events: list[tuple[float, int, float, str, list[RunOutcome]]] = []
        while True:
            while len(events) < options.at_once and not is_over:
                asked = meter.call("suggest", trials.next)
                is_over = asked is None
                if asked is not None:
                    trials.started(asked[0])
                    course = outcomes(*asked)
                    event = clock + seconds_of(course[0]), next(order), clock, asked[0], course
                    heapq.heappush(events, event)
            if not events:
                return
            clock, _, began, name, course = heapq.heappop(events)
            outcome, following = course[0], course[1:]
            if not meter.call("evaluate", trials.must_stop, name, outcome) and following:
                moment = began + seconds_of(following[0])
                heapq.heappush(events, (moment, next(order), began, name, following))
                continue
            meter.call("end", trials.ended, name)
            num_ended += 1
            meter.ended(num_ended)


def seconds_of(outcome: RunOutcome) -> float:
    """Return a run's training seconds at an evaluation."""
    assert outcome.evaluation is not None
    return outcome.evaluation.train_s


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--space", choices=SPACES, default="wide")
    arguments.add_argument("--all", action="store_true", help="no trial is stopped early")
    options = arguments.parse_args()
    warnings.simplefilter("ignore")
    meter = Meter(min(FIRST, max(options.trials // PARTS, 1)))
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter(), time.process_time()
        run(options, Path(name), meter)
        wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        loading = time.process_time()
        results = raybench.load(name)
        load_s = time.process_time() - loading
        with (Path(name) / "screen").open("w") as screen, contextlib.redirect_stdout(screen):
            report(name)
        report_s = time.process_time() - loading - load_s
        size = (Path(name) / RECORDS_FILE).stat().st_size / 2**20
    rows = pd.DataFrame(meter.rows)
    # Per trial at the evaluations that all trials have on average: later ones have more.
    mean = rows["evaluations a trial"].mean()
    equal = rows["ms a suggest"] + rows["ms a end"] + mean * rows["ms a evaluate"]
    rows["ms a trial of equal length"] = equal
    asking = equal[rows["ms a suggest"] > 0]  # the last trials are not followed by others
    growth = float(asking.tail(5).mean() / asking.iloc[1])
    drawn = float(asking.tail(5).mean() / asking.iloc[0])
    every = max(len(rows) // PARTS, 1)
    table = rows.iloc[[0, 1, *range(every - 1, len(rows), every)]].drop_duplicates()
    lines = table_lines(table)
    good = growth < GROWTH, load_s < LOAD_S, len(results.trials) == options.trials
    lines += [
        "",
        f"- {'ok ' if good[0] else 'BAD'} driver CPU of a trial x {growth:.2f} from trials {FIRST} "
        f"to {2 * FIRST} to the last of {options.trials}, at {mean:.1f} evaluations a trial "
        f"(bar {GROWTH:g}); x {drawn:.2f} from the first {FIRST}, most of which are drawn, not "
        "modelled",
        f"- {'ok ' if good[1] else 'BAD'} raybench.load: {load_s:.1f} s of CPU for "
        f"{len(results.trials)} trials, {len(results.curves)} evaluations, {size:.0f} MB "
        f"(bar {LOAD_S:g} s); raybench.report: {report_s:.1f} s",
        f"- {'ok ' if good[2] else 'BAD'} {len(results.trials)} of {options.trials} recorded",
        f"- in all {wall:.0f} s, {cpu:.0f} s of CPU; {options.at_once} open at once, space "
        f"{options.space}{', no early stopping' if options.all else ''}; without Ray Tune",
        "",
        f"{machine()['processor']}, {machine()['cores']} cores, load {os.getloadavg()[0]:.1f}, "
        f"{versions()}",
    ]
    print("\n".join(lines))
    options.out.mkdir(exist_ok=True)
    (options.out / "scale_10000.md").write_text("\n".join(lines) + "\n")
    draw(rows, ("trial", "suggest", "evaluate", "end"), options.out / "scale_10000.png")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
