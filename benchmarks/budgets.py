"""Claim: a time budget is kept, and the answer is confirmed where there was time to confirm it.

`python -m raybench.tune --time-budget SECONDS` from an empty folder, on two studies: the default
one (trainings of seconds), and a user's workload (`long_workload.py`) whose usual configuration
takes about `--run-seconds` (60) to the target: real training, its work sized by a calibration on
this machine before the first search. Reported: wall-clock of the whole command, whether the answer
was confirmed, the verdict and what was said of the budget.

    python benchmarks/budgets.py [--budgets 90 150 400 none] [--studies default long] [--cores 1]
        [--tree PATH]

`--cores N` binds the command to the first N cores (`taskset`); `none` is the command without a
budget, on the default study only. Bars: the command ends at most 10 s after its budget (without
one within 180 s); a budget of more than three times the best time to target plus start-up, both
as measured in that search, ends with a confirmed answer; a shorter one with that or with a
sentence that says what it was too short for. How to read it: start-up is from the command until
training begins, best the least seconds to the target in a search trial. About 25 minutes for all
six and `none`. Writes results/budgets.md (budgets_1_core.md with `--cores 1`); exit 1 below a bar.
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import installed
import long_workload
import trees

from raybench.results.store import machine, versions

SLACK_S, WITHOUT_S = 10.0, 180.0
RUNS_TO_CONFIRM = 3.0
LEARNING_RATE, BATCH = 1e-3, 64
"""The usual configuration, which calibration trains."""
TARGET = 0.95
SPACE = """
workload: long_workload:Long
dataset: {name: digits, image_size: 28}
objective: {kind: time_to_accuracy, target: TARGET, hold: 2, max_train_seconds: LIMIT}
search: {trials: 40, seed: 0}
confirm: {top: 3, repeats: 3}
space:
  num_workers: WORKERS
  batch_size_per_worker: {low: 16, high: 128, log2: true}
  learning_rate: {low: 3.0e-4, high: 1.0e-2, log: true}
fixed: {framework: torch, optimizer: adam}
"""
VERDICTS = ("Fastest", "Cheapest", "Most accurate", "No run")


@dataclass(frozen=True)
class Outcome:
    """What one command came to."""

    study: str
    budget_s: float | None
    wall_s: float
    code: int
    startup_s: float
    best_s: float | None
    """Least seconds to the target of a search trial."""
    num_searched: int
    num_confirming: int
    is_confirmed: bool
    verdict: str
    said: str

    @property
    def is_kept(self) -> bool:
        """Whether it ended in time."""
        limit = WITHOUT_S if self.budget_s is None else self.budget_s + SLACK_S
        return self.wall_s <= limit

    @property
    def is_answered(self) -> bool:
        """Whether it confirmed what there was time for, or said why not."""
        had_time = self.budget_s is None or (
            self.best_s is not None
            and self.budget_s > RUNS_TO_CONFIRM * self.best_s + self.startup_s
        )
        return self.is_confirmed or (not had_time and bool(self.said))


def calibrate(run_seconds: float) -> int:
    """Return the ballast with which the usual configuration takes so long to the target."""
    import torch

    from raybench.backends.find import find_backend
    from raybench.backends.run import run
    from raybench.core.clock import Ledger
    from raybench.core.objective import Objective
    from raybench.core.spec import DatasetSpec, RunSpec
    from raybench.data.load import load_dataset

    os.environ["LONG_PASSES"] = "0"
    spec = RunSpec(
        workload="long_workload:Long",
        dataset=DatasetSpec(name="digits", image_size=28),
        objective=Objective(target=TARGET, hold=2, max_train_seconds=60),
        batch_size_per_worker=BATCH,
        learning_rate=LEARNING_RATE,
    )
    world = find_backend("torch").join(rank=0, num_workers=1, device="cpu", num_threads=1)
    dataset = load_dataset(spec.dataset)
    trainer = find_backend("torch").Trainer(spec, long_workload.Long(), dataset, world)
    *_, last = run(spec, dataset, trainer, world, Ledger("setup"))
    assert last.time_to_target_s is not None, "the usual configuration misses the target"
    num_passes = last.samples / BATCH * last.time_to_target_s / last.train_s
    ballast = dict(long_workload.Long().build_torch().named_buffers())["ballast"]
    images = torch.zeros(BATCH, 1, 28, 28)
    with torch.no_grad():
        times = []
        for _ in range(300):
            began = time.perf_counter()
            torch.nn.functional.conv2d(images, ballast, padding=1)
            times.append(time.perf_counter() - began)
    one_s = sorted(times)[len(times) // 2]
    passes = round((run_seconds - last.time_to_target_s) / (num_passes * one_s))
    print(
        f"calibrated: {last.time_to_target_s:.2f} s and {num_passes:.0f} passes to the target "
        f"without ballast, {1e3 * one_s:.2f} ms for one; {passes} of them in each pass",
        flush=True,
    )
    return max(passes, 0)


def measure(
    tree: Path, study: str, budget_s: float | None, options: argparse.Namespace, passes: int
) -> Outcome:
    """Run one command in an empty folder."""
    arguments: list[str | Path] = ["tune"]
    limit_s = 900.0 if budget_s is None else budget_s + 300.0
    if budget_s is not None:
        arguments += ["--time-budget", f"{budget_s:g}"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if study == "long":
            cores = options.cores or os.cpu_count() or 1
            text = SPACE.replace("TARGET", str(TARGET)).replace(
                "LIMIT", f"{3 * options.run_seconds:g}"
            )
            (folder / "space.yaml").write_text(
                text.replace("WORKERS", "[1, 2]" if cores > 1 else "[1]")
            )
            arguments += ["space.yaml"]
        began = datetime.now(UTC)
        done = trees.raybench(
            tree,
            *(*arguments, "--out", "out"),
            cwd=folder,
            limit_s=limit_s,
            cores=options.cores,
            LONG_PASSES=str(passes),
        )
        runs = trees.runs(folder / "out") if (folder / "out" / "records.jsonl").is_file() else []
    lines = done.printed.splitlines()
    verdict = [line for line in lines if line.startswith(VERDICTS)]
    searched = [run for run in runs if run["phase"] == "search"]
    times = [run["time_to_target_s"] for run in searched if run["time_to_target_s"] is not None]
    startup_s = float("nan")
    if runs:
        first = min(runs, key=lambda run: str(run["finished"]))
        ended = (datetime.fromisoformat(first["finished"]) - began).total_seconds()
        startup_s = max(0.0, ended - first["ledger"]["train"] - first["ledger"]["eval"])
    return Outcome(
        study=study,
        budget_s=budget_s,
        wall_s=done.wall_s,
        code=done.code,
        startup_s=startup_s,
        best_s=min(times, default=None),
        num_searched=len(searched),
        num_confirming=sum(run["phase"] == "confirm" for run in runs),
        is_confirmed=bool(verdict) and all("; confirmed by " in line for line in verdict[:1]),
        verdict=" ".join(verdict),
        said=" ".join(line for line in lines if "too short" in line),
    )


def describe(outcomes: list[Outcome]) -> list[str]:
    """Return the table, and verdicts in full below it."""
    lines = [
        "| study | budget s | whole command s | kept | confirmed | trials | confirming runs | "
        "start-up s | best s | bars |",
        "|---" * 10 + "|",
    ]
    for one in outcomes:
        budget = "none" if one.budget_s is None else f"{one.budget_s:g}"
        best = "none" if one.best_s is None else f"{one.best_s:.2f}"
        good = one.is_kept and one.is_answered
        lines.append(
            f"| {one.study} | {budget} | {one.wall_s:.0f} | {'yes' if one.is_kept else 'NO'} | "
            f"{'yes' if one.is_confirmed else 'no'} | {one.num_searched} | {one.num_confirming} | "
            f"{one.startup_s:.0f} | {best} | {'met' if good else 'NOT MET'} |"
        )
    lines.append("")
    for one in outcomes:
        budget = "no budget" if one.budget_s is None else f"{one.budget_s:g} s"
        lines.append(f"- {one.study}, {budget} (exit {one.code}): {one.verdict or 'no verdict'}")
        if one.said:
            lines.append(f"  - {one.said}")
    return [*lines, ""]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budgets", nargs="+", default=["90", "150", "400", "none"])
    parser.add_argument("--studies", nargs="+", choices=("default", "long"))
    parser.add_argument("--run-seconds", type=float, default=60.0, help="of the long study's runs")
    parser.add_argument("--cores", type=int, help="bind the commands to so many cores")
    trees.add_tree_option(parser)
    options = parser.parse_args()
    studies = options.studies or ["default", "long"]
    if "default" in studies and installed.missing(["torch", "tensorflow"]):
        print("budgets.py: the default study needs torch and tensorflow.", file=sys.stderr)
        return 2
    budgets = [None if text == "none" else float(text) for text in options.budgets]
    passes = calibrate(options.run_seconds) if "long" in studies else 0
    lines, is_met = [], True
    for name, tree in trees.trees(options).items():
        outcomes = []
        for study in studies:
            for budget_s in budgets:
                if budget_s is None and study == "long":
                    continue
                outcomes.append(measure(tree, study, budget_s, options, passes))
                print("\n".join(describe(outcomes[-1:])), flush=True)
        cores = f"{options.cores} of " if options.cores else ""
        lines += [f"{name}, on {cores}{machine()['cores']} cores", "", *describe(outcomes)]
        is_met = all(one.is_kept and one.is_answered for one in outcomes)
    lines.append(
        f"{machine()['processor']}, load {os.getloadavg()[0]:.1f}, {versions()}; runs of the long "
        f"study are calibrated to {options.run_seconds:g} s ({passes} passes of ballast)"
    )
    print("\n".join(lines))
    suffix = f"_{options.cores}_core{'s' * (options.cores > 1)}" if options.cores else ""
    (trees.HERE / "results" / f"budgets{suffix}.md").write_text("\n".join(lines) + "\n")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
