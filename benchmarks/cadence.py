"""Claim: without `eval_every_samples` a run near the target is evaluated about twenty times.

A user's own workload (`cifar10.py`: 10,000 images of CIFAR-10, a small convolution net, torch) in
a short search that says nothing of evaluations. Times to the target come in steps of what lies
between two of them: with one evaluation an epoch, some ten seconds here. Reported are, for every
run that reached the target, the evaluations until then and the step between them (the resolution
of its time to target), and evaluation's seconds over training's, of all runs together.

    RAYBENCH_DATA=DIR python benchmarks/cadence.py [--target 0.55] [--tree BEFORE --tree AFTER]

Bars, for the last `--tree`: the fastest run had 10 to 40 evaluations until the target, all runs
of the study the same cadence, and evaluation took at most 25 % of training. How to read it: a step
of more than a tenth of the time to target is what the search cannot see beyond; a share above a
fifth is a validation set too large for the cadence, which the study should have said (the last
column). About five minutes a tree on two cores. Writes results/cadence.md; exit 1 above a bar.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import cifar10
import trees
import yaml

from raybench.results.store import machine, versions

SPACE = """
workload: cifar10:Cifar10
dataset: {name: workload}
objective: {kind: time_to_accuracy, target: TARGET, max_train_seconds: 90}
search: {trials: TRIALS, seed: 0}
confirm: {top: 0}
space:
  num_workers: [1, 2]
  learning_rate: {low: 5.0e-4, high: 4.0e-3, log: true}
fixed: {framework: torch, batch_size_per_worker: 32, optimizer: adam}
"""
LEAST, MOST, BAR_SHARE = 10, 40, 0.25
LIMIT_S = 1500.0


def curve(records: list[dict[str, Any]], trial: str) -> list[dict[str, Any]]:
    """Return a run's evaluations in order."""
    points = [r for r in records if r["kind"] == "eval" and r["trial"] == trial]
    return sorted(points, key=lambda point: int(point["samples"]))


def measure(tree: Path, options: argparse.Namespace) -> tuple[list[str], dict[str, bool]]:
    """Search with the code of a checkout; return what to print of it, and its checks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = SPACE.replace("TARGET", str(options.target))
        (folder / "space.yaml").write_text(text.replace("TRIALS", str(options.trials)))
        done = trees.raybench(
            tree,
            *("tune", "space.yaml", "--out", "out"),
            cwd=folder,
            limit_s=LIMIT_S,
            RAYBENCH_DATA=str(cifar10.folder().parent.absolute()),
        )
        assert done.code == 0, done.printed[-3000:]
        records, runs = trees.records(folder / "out"), trees.runs(folder / "out")
        study = yaml.safe_load((folder / "out" / "study.yaml").read_text())["study"]
    runs = [run for run in runs if run["phase"] == "search" and not run["failure"]]
    reached = [run for run in runs if run["time_to_target_s"] is not None]
    assert reached, "no run reached the target; choose a lower --target"
    lines = [
        "| trial | workers | target after s | evaluations until then | step s |",
        "|---" * 5 + "|",
    ]
    counts = {}
    for run in sorted(reached, key=lambda run: float(run["time_to_target_s"])):
        points = [
            p for p in curve(records, run["trial"]) if p["train_s"] <= run["time_to_target_s"]
        ]
        counts[run["trial"]] = len(points)
        lines.append(
            f"| {run['trial']} | {run['spec']['num_workers']} | {run['time_to_target_s']:.1f} | "
            f"{len(points)} | {run['time_to_target_s'] / len(points):.2f} |"
        )
    seconds = {key: sum(run["ledger"][key] for run in runs) for key in ("eval", "train")}
    share = seconds["eval"] / seconds["train"]
    every = {run["spec"].get("eval_every_samples") for run in runs}
    said = [line for line in done.printed.splitlines() if "validation" in line and "large" in line]
    lines += [
        "",
        f"- eval_every_samples in study.yaml: {study['fixed'].get('eval_every_samples', 'none')}; "
        f"of the runs: {', '.join(map(str, every))} (None: one epoch)",
        f"- evaluation {seconds['eval']:.1f} s, {share:.0%} of {seconds['train']:.1f} s training",
        f"- said of the validation set: {said[0] if said else 'nothing'}",
        f"- the command took {done.wall_s:.0f} s",
        "",
    ]
    fastest = next(iter(counts.values()))
    checks = {
        f"{LEAST} to {MOST} evaluations until the target in the fastest run: {fastest}": LEAST
        <= fastest
        <= MOST,
        f"one cadence for all runs: {len(every)}": len(every) <= 1,
        f"evaluation at most {BAR_SHARE:.0%} of training: {share:.0%}": share <= BAR_SHARE,
    }
    return lines, checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=float, default=0.55)
    parser.add_argument("--trials", type=int, default=6)
    trees.add_tree_option(parser)
    options = parser.parse_args()
    if not cifar10.folder().is_dir():
        print(f"cadence.py: no folder {cifar10.folder()}; set RAYBENCH_DATA.", file=sys.stderr)
        return 2
    lines: list[str] = []
    checks: dict[str, bool] = {}
    for name, tree in trees.trees(options).items():
        more, checks = measure(tree, options)
        lines += [f"{name}: target {options.target:.0%}", "", *more]
        print("\n".join(more), flush=True)
    lines += [f"- {what} {'met' if good else 'NOT MET'}" for what, good in checks.items()]
    lines.append(
        f"{machine()['processor']}, {machine()['cores']} cores, load {os.getloadavg()[0]:.1f}, "
        f"{versions()}"
    )
    print("\n".join(lines[-len(checks) - 1 :]))
    (trees.HERE / "results" / "cadence.md").write_text("\n".join(lines) + "\n")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
