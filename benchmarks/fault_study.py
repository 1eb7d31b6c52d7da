"""A small study on two hosts that faults are tried on: started, watched, continued, judged.

Three torch runs one after another, each over both hosts, of some seconds with an evaluation every
half second and a checkpoint every second. The records are read as they grow, so that a fault comes
in the middle of a run, and the first evaluation after it is seen.
"""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from raybench.results.load import load
from raybench.results.records import read_records
from tests.e2e.host_cluster import TOKEN, start_head, start_node
from tests.e2e.hosts import Host, Hosts

TRIALS = 3
SPACE = f"""
dataset: {{name: digits, image_size: 28}}
objective: {{kind: accuracy_at_budget, max_train_seconds: 6}}
search: {{trials: {TRIALS}, concurrency: 1, sampler: random, early_stopping: false}}
confirm: {{top: 0}}
space:
  learning_rate: {{low: 1.0e-3, high: 1.0e-2, log: true}}
fixed:
  framework: torch
  num_workers: 2
  placement_strategy: spread
  batch_size_per_worker: 64
  eval_every_samples: 1437
  checkpoint_every_s: 1
"""
CPUS = 2
"""Of each host, so that one alone can go on."""
FIRST_S, ENDS_S = 120.0, 200.0
SETTLED_S = 0.3
"""An evaluation that comes so soon after the fault was on its way already."""
RESULTS = "Best ten of the search"
"""Beginning of the tables at the end of the screen."""
ROUTINE = re.compile(r"^\S+ t=\S+ \w+ \S+ (finished|status|starting|begin)\b|^\s*$")


class FaultStudy:
    """A cluster of two hosts and a search on it; its driver can be started again."""

    def __init__(self, hosts: Hosts, folder: Path, out: str | None = None, **environment: str):
        self.hosts, self.folder, self.log = hosts, folder, folder / "screen.log"
        self.out = out or str(folder / "out")
        self.records = Path(self.out) / "records.jsonl"
        self._environment = {**TOKEN, **environment}
        (folder / "space.yaml").write_text(SPACE)
        start_head(hosts[0], CPUS)
        start_node(hosts[1], hosts[0], CPUS)
        self._driver: subprocess.Popen[bytes] | None = None
        self._said_before = 0
        self.hit_at, self.went_on_s = 0.0, None

    def start(self, host: Host) -> None:
        """Start the command, for the first time or again, on a host of the cluster."""
        words = ("tune", "space.yaml", "--out", self.out, "--address", "auto")
        self._driver = host.start(
            *(sys.executable, "-m", f"raybench.{words[0]}", *words[1:]),
            log=self.log,
            cwd=self.folder,
            **self._environment,
        )

    def wait_for_middle(self) -> None:
        """Wait until the first run has trained for two checkpoints and goes on."""
        deadline = time.monotonic() + FIRST_S
        while len(self._evaluations()) < 6:
            assert time.monotonic() < deadline, self.screen()
            assert self._driver is not None
            assert self._driver.poll() is None, self.screen()
            time.sleep(0.02)
        self._said_before = len(self.screen())
        self.hit_at = time.monotonic()

    def kill_driver(self) -> None:
        """Kill the command as `kill -9` does, and wait for its end."""
        assert self._driver is not None
        for process in psutil.Process(self._driver.pid).children():
            process.send_signal(signal.SIGKILL)
        self._driver.wait()

    def wait_to_go_on(self, within_s: float = ENDS_S) -> None:
        """Note when an evaluation was recorded that was not there before the fault, if one is."""
        while time.monotonic() < self.hit_at + SETTLED_S:
            time.sleep(0.02)
        before, deadline = self._evaluations(), self.hit_at + within_s
        while time.monotonic() < deadline and self.went_on_s is None:
            if self._evaluations() - before:
                self.went_on_s = round(time.monotonic() - self.hit_at, 1)
            if self._driver is not None and self._driver.poll() is not None:
                break
            time.sleep(0.05)

    def wait_for_end(self) -> int | None:
        """Return the command's exit code; None where it does not end."""
        assert self._driver is not None
        try:
            return self._driver.wait(timeout=ENDS_S)
        except subprocess.TimeoutExpired:
            return None

    def verdict(self, exit_code: int | None, place: str | Path | None = None) -> dict[str, Any]:
        """Return what became of the study, as it is read back from `place`."""
        found: dict[str, Any] = {"wanted": TRIALS, "exit": exit_code, "went_on_s": self.went_on_s}
        screen, _, _ = self.screen()[self._said_before :].partition(RESULTS)
        said = screen.splitlines()
        found["said"] = [line for line in said if not ROUTINE.search(line)][:6]
        folder = load(place or self.out).folder
        read = read_records(folder)
        runs = {name: run for name, run in read.runs.items() if run.role == "trial"}
        finished = [name for name, run in runs.items() if run.state == "complete"]
        found |= {"finished": len(finished), "lost": max(0, TRIALS - len(finished))}
        lines = [
            json.loads(line) for line in (folder / "records.jsonl").open() if line.endswith("\n")
        ]
        records = Counter(line["trial"] for line in lines if line["kind"] == "run")
        twice = [name for name, count in records.items() if count > 1]
        torn = [
            name
            for name in finished
            if [point.index for point in read.curves[name]] != list(range(len(read.curves[name])))
        ]
        extra = max(0, len(runs) - TRIALS)
        found |= {"doubled": len(twice) + extra, "torn_curves": len(torn)}
        found["failures"] = [
            f"{run.failure}: {run.message}" for run in runs.values() if run.failure
        ]
        found["reasons"] = [run.restart_reason for run in runs.values() if run.restarts]
        found["lost_s"] = [round(run.ledger.get("lost", 0.0), 2) for run in runs.values()]
        return found

    def screen(self) -> str:
        """Return what the command has printed, all its starts together."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _evaluations(self) -> set[tuple[str, int]]:
        """Return trial and index of every evaluation; repeated ones are one."""
        try:
            lines = self.records.read_text().splitlines()
        except OSError:
            return set()
        found = set()
        for line in lines:
            with contextlib.suppress(ValueError):  # the last one may be half written
                content = json.loads(line)
                if content["kind"] == "eval":
                    found.add((content["trial"], content["index"]))
        return found
