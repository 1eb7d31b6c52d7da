"""Claim: a user's slow `load_dataset` is paid once a node, not once a worker process.

A study whose own `load_dataset` takes 10 s and brings 200 MB: both frameworks, groups of two
worker processes each, so four processes (and the driver) need the data. Reported are the share of
setup in all seconds of all runs, how often and in how many processes `load_dataset` was called,
the wall-clock of the command, and the most memory that its processes held together (PSS: a page
that several share counts once).

    python benchmarks/setup_share.py [--rounds 1] [--tree BEFORE --tree AFTER]

Bars, for the last `--tree`: setup is at most 5 % of all seconds of the runs, and `load_dataset` is
called once. How to read it: before, every worker process called it, 10 s each, and held a copy of
its own. About two minutes a tree on two cores. Writes results/setup_share.md; exit 1 above a bar.
"""

import argparse
import contextlib
import os
import re
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import installed
import psutil
import trees

from raybench.results.store import machine, versions

SPACE = """
workload: slow_data:SlowDigits
dataset: {name: workload}
objective: {kind: accuracy_at_budget, max_train_seconds: 3}
search: {trials: TRIALS, sampler: random, early_stopping: false, factorise: false, concurrency: 1}
confirm: {top: 0}
space:
  framework: FRAMEWORKS
  learning_rate: {low: 1.0e-3, high: 3.0e-2, log: true}
fixed: {num_workers: 2, batch_size_per_worker: 64, eval_every_samples: 8192}
"""
BAR_SHARE, BAR_CALLS = 0.05, 1
LIMIT_S = 570.0


@dataclass(frozen=True)
class Found:
    """What one study took."""

    seconds: Counter[str]
    """Of all runs, by phase."""
    calls: int
    processes: int
    wall_s: float
    memory_mb: float

    @property
    def share(self) -> float:
        """Of setup in all seconds."""
        return self.seconds["setup"] / sum(self.seconds.values())


class Memory:
    """Watches the memory that this process's descendants hold together; a context manager."""

    def __init__(self) -> None:
        self.most_mb = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(1.0):
            total = 0.0
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(OSError):  # it ended, or this is no Linux
                    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                    # Empty of one that has ended and waits to be reaped.
                    for size in re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE):
                        total += int(size) / 1024
            self.most_mb = max(self.most_mb, total)


def measure(tree: Path, options: argparse.Namespace) -> Found:
    """Run the study with the code of a checkout."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = SPACE.replace("TRIALS", str(options.trials))
        (folder / "space.yaml").write_text(
            text.replace("FRAMEWORKS", f"[{', '.join(options.frameworks)}]")
        )
        with Memory() as memory:
            done = trees.raybench(
                tree,
                *("tune", "space.yaml", "--out", "out"),
                cwd=folder,
                limit_s=LIMIT_S,
                SLOW_LOG=str(folder / "calls"),
                SLOW_SECONDS=str(options.seconds),
                SLOW_MEGABYTES=str(options.megabytes),
            )
        assert done.code == 0, done.printed[-3000:]
        calls = (folder / "calls").read_text().split()
        runs = trees.runs(folder / "out")
    seconds: Counter[str] = Counter()
    for run in runs:
        # `input` is a part of train.
        seconds.update({k: v for k, v in run["ledger"].items() if k != "input"})
    assert len(runs) >= options.trials, f"{len(runs)} runs"
    return Found(seconds, len(calls), len(set(calls)), done.wall_s, memory.most_mb)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=10.0, help="of one load_dataset")
    parser.add_argument("--megabytes", type=float, default=200.0, help="of the training data")
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
    trees.add_tree_option(parser)
    options = parser.parse_args()
    options.frameworks = installed.frameworks("setup_share.py", options.frameworks)
    names = trees.trees(options)
    found: dict[str, list[Found]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name, tree in names.items():
            found[name].append(measure(tree, options))
            one = found[name][-1]
            print(f"{name}: setup {one.share:.1%}, {one.calls} calls, {one.wall_s:.0f} s")
    lines = [
        f"`load_dataset` takes {options.seconds:g} s and brings {options.megabytes:g} MB; "
        f"{options.trials} trials of at most 3 s on groups of two workers of "
        f"{' and '.join(options.frameworks)}.",
        "",
        "| tree | setup of all seconds | setup s | train s | all s | calls | in processes | "
        "command s | memory at most, MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, studies in found.items():
        for one in studies:
            everything = sum(one.seconds.values())
            lines.append(
                f"| {name} | {one.share:.1%} | {one.seconds['setup']:.1f} | "
                f"{one.seconds['train']:.1f} | {everything:.1f} | {one.calls} | {one.processes} | "
                f"{one.wall_s:.0f} | {one.memory_mb:.0f} |"
            )
    last = found[list(names)[-1]]
    checks = {
        f"setup at most {BAR_SHARE:.0%}": all(one.share <= BAR_SHARE for one in last),
        f"load_dataset called {BAR_CALLS} time": all(one.calls <= BAR_CALLS for one in last),
    }
    lines += ["", *(f"- {what}: {'met' if good else 'NOT MET'}" for what, good in checks.items())]
    lines.append(
        f"{machine()['processor']}, {machine()['cores']} cores, load {os.getloadavg()[0]:.1f}, "
        f"{versions()}"
    )
    print("\n".join(lines))
    (trees.HERE / "results" / "setup_share.md").write_text("\n".join(lines) + "\n")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
