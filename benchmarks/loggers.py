"""What `--log` costs a study: nothing on the training clock.

Claim: with a logger, a driver writes a record as fast as without one, and training beside it on
every core of the machine loses no more than 2 % of its steps once the logger's process has started.
A study of 20 evaluations a second, far more than most, is written by the real `Store` beside one
training process a core (matrix products in numpy, one thread each), without a logger and with each,
interleaved in a new order every round. Printed for each: median and worst of `Store.append`, steps
of the training against the rounds without a logger (medians, and the same with start and end), CPU
seconds of the logger and all it started: for a study of one run (its start and its end with the
winners), and for each evaluation more.

    python benchmarks/loggers.py --rounds 5 --tools tensorboard,wandb,mlflow

W&B writes offline, MLflow to a database in a file. Bar: the share of steps above 0.98 for each.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import psutil

from raybench.core.objective import Objective
from raybench.core.record import Evaluation, RunOutcome
from raybench.core.spec import RunSpec
from raybench.results.loggers.processes import Loggers
from raybench.results.store import STUDY_FILE, Store

OBJECTIVE = Objective(target=0.9, max_train_seconds=60.0)
SPEC = RunSpec(objective=OBJECTIVE)
BAR = 0.98
NONE = "no logger"
POINTS = 40
"""Evaluations of a run."""
SETTLED_S = 6.0
"""After so long a logger's process has started, whatever else runs."""


def train(steps, core):
    """Train on a core for ever: count steps of about a millisecond."""
    os.sched_setaffinity(0, {core})
    weights = np.random.default_rng(core).normal(size=(256, 256))
    while True:
        np.tanh(weights @ weights)
        steps.value += 1


class Cpu:
    """CPU seconds of all processes that this one starts, looked at often: some end unnoticed."""

    def __init__(self, without):
        self._without = set(without)
        self._seen = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._end.set()
        self._thread.join()

    @property
    def seconds(self):
        """Seconds by now."""
        return sum(self._seen.values())

    def _look(self):
        while not self._end.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                try:
                    times = process.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                if process.pid not in self._without:
                    self._seen[process.pid] = times.user + times.system


def evaluation(index):
    return Evaluation(
        index=index,
        epoch=float(index),
        samples=1000 * (index + 1),
        train_s=0.05 * (index + 1),
        train_loss=1.0 / (index + 1),
        value=1.0 - 0.5 / (index + 1),
        learning_rate=1e-3,
        samples_per_s=20_000.0,
        ledger={"train": 0.05 * (index + 1)},
        best_value=1.0 - 0.5 / (index + 1),
    )


def write_study(store, seconds, rate, *, trial_points=POINTS):
    """Write evaluations at a rate, and a run's end after every `trial_points`; return the seconds
    of each append, and how many evaluations there were."""
    took, end, number = [], time.perf_counter() + seconds, 0
    began = time.perf_counter()
    while time.perf_counter() < end:
        trial, index = divmod(number, trial_points)
        lines = [evaluation(index).line(f"{trial:04d}", role="trial", spec=SPEC)]
        if index == trial_points - 1:
            outcome = RunOutcome(evaluation=evaluation(index), ledger={"train": 2.0})
            record = outcome.record(
                f"{trial:04d}", SPEC, role="trial", source=None, stopped_by="scheduler"
            )
            lines.append(record.line())
        for line in lines:
            since = time.perf_counter()
            store.append(line)
            took.append(time.perf_counter() - since)
        number += 1
        time.sleep(max(began + number / rate - time.perf_counter(), 0))
    time.sleep(max(end - time.perf_counter(), 0))
    return took, number


def one_round(tool, seconds, rate, steps, trainers):
    """Return (appends, steps a second settled, steps a second in all, CPU s, evaluations)."""
    folder = Path(tempfile.mkdtemp(prefix="raybench-loggers-"))
    os.environ |= {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    tools = [] if tool == NONE else [tool]
    said = []
    since, before = time.perf_counter(), count(steps)
    with (
        Cpu(trainers) as cpu,
        Store(folder) as store,
        Loggers(tools, folder, place=str(folder), say=said.append) as loggers,
    ):
        store.write_yaml(STUDY_FILE, {"study": {"objective": OBJECTIVE.model_dump(mode="json")}})
        loggers.start()
        time.sleep(SETTLED_S)
        settled, there = time.perf_counter(), count(steps)
        took, number = write_study(store, seconds, rate)
        speed = (count(steps) - there) / (time.perf_counter() - settled)
        loggers.end()
        loggers.close()
        in_all = (count(steps) - before) / (time.perf_counter() - since)
    assert not loggers.has_failed, said
    shutil.rmtree(folder)
    return took, speed, in_all, cpu.seconds, number


def count(steps):
    return sum(one.value for one in steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a study")
    parser.add_argument("--rate", type=float, default=20.0, help="evaluations a second")
    parser.add_argument("--tools", default="tensorboard,wandb,mlflow")
    options = parser.parse_args()
    tools = [NONE, *options.tools.split(",")]
    context = multiprocessing.get_context("spawn")
    cores = sorted(os.sched_getaffinity(0))
    steps = [context.Value("q", 0, lock=False) for _ in cores]
    training = [
        context.Process(target=train, args=pair, daemon=True)
        for pair in zip(steps, cores, strict=True)
    ]
    for one in training:
        one.start()
    trainers = {process.pid for process in psutil.Process().children(recursive=True)}
    time.sleep(2.0)
    appends, speeds, in_all, cpu, start = (defaultdict(list) for _ in range(5))
    for number in range(options.rounds):
        for tool in random.Random(number).sample(tools, len(tools)):
            took, speed, whole, seconds, evaluations = one_round(
                tool, options.seconds, options.rate, steps, trainers
            )
            appends[tool] += took
            speeds[tool].append(speed)
            in_all[tool].append(whole)
            cpu[tool].append((seconds, evaluations))
    for tool in tools:
        *_, seconds, evaluations = one_round(
            tool, POINTS / options.rate, options.rate, steps, trainers
        )
        start[tool] = seconds, evaluations
    for one in training:
        one.kill()
    print("| logger | append, us (median, worst) | steps | in all | CPU s of one run | more |")
    for tool in tools:
        share = statistics.median(speeds[tool]) / statistics.median(speeds[NONE])
        whole = statistics.median(in_all[tool]) / statistics.median(in_all[NONE])
        first, few = start[tool]
        each = statistics.median((s - first) / max(n - few, 1) for s, n in cpu[tool])
        us = [1e6 * took for took in appends[tool]]
        print(
            f"| {tool} | {statistics.median(us):.0f}, {max(us):.0f} | {share:.3f} "
            f"({min(speeds[tool]):.0f}..{max(speeds[tool]):.0f}/s) | {whole:.3f} "
            f"| {first:.2f} | {1000 * each:.1f} ms an evaluation | "
            f"{'' if share >= BAR else 'BELOW THE BAR'}"
        )


if __name__ == "__main__":
    main()
