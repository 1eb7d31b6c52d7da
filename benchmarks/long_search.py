"""Claim: 200 trials in one search leave memory flat after the first 20, and nothing behind.

Runs `python -m raybench.tune` on a space of short trials (both frameworks, 1 and 2 workers) and
samples the resident memory of the driver and of every Ray Train worker once a second. Bars: the
driver and the largest worker grow by at most 10 % from the 20th trial to the last, all 200
trials are recorded, no process of the search is alive afterwards, and the wall time is at most
1.25 x (train + eval + setup + compile over what can run at once) + 20 s.

    python benchmarks/long_search.py [--trials 200]

About five minutes on two cores. Writes results/long_search.{md,png}; exit 1 above a bar.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from matplotlib.figure import Figure

import raybench
from raybench.results.store import machine, versions

SPACE = """
dataset: {name: digits, image_size: 28, limit: 512}
objective: {kind: time_to_accuracy, target: 0.999, max_train_seconds: 0.3}
search: {trials: TRIALS, sampler: random}
confirm: {top: 0}
space:
  framework: [torch, tensorflow]
  num_workers: [1, 2]
  batch_size_per_worker: {low: 32, high: 256, log2: true}
  optimizer: [adam, radam, lars, lamb]
  learning_rate: {low: 1.0e-3, high: 3.0e-2, log: true}
"""
GROWTH, SETTLED = 0.10, 20


def watch(process: subprocess.Popen[bytes], records: Path) -> list[dict[str, float]]:
    """Sample memory (MB) and the number of finished trials until the command ends."""
    samples, began = [], time.perf_counter()
    while process.poll() is None:
        trials = records.read_text().count('"kind": "run"') if records.is_file() else 0
        sample = {"seconds": time.perf_counter() - began, "trials": float(trials), "workers": 0.0}
        try:
            driver = psutil.Process(process.pid)
            sample["driver"] = driver.memory_info().rss / 2**20
            for child in driver.children(recursive=True):
                if "RayTrainWorker" in "".join(child.cmdline()):
                    size = child.memory_info().rss / 2**20
                    sample["workers"] = max(sample["workers"], size)
        except psutil.Error:
            continue  # a process ended while it was looked at
        samples.append(sample)
        time.sleep(1)
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    options = parser.parse_args()
    results = Path(__file__).parent / "results"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "space.yaml").write_text(SPACE.replace("TRIALS", str(options.trials)))
        command = [sys.executable, "-m", "raybench.tune", "space.yaml", "--out", "out"]
        before = {p.pid for p in psutil.process_iter()}
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
            samples = watch(process, folder / "out" / "records.jsonl")
        assert process.returncode == 0, (folder / "log").read_text()[-3000:]
        time.sleep(2)
        left = [
            p.pid
            for p in psutil.process_iter(["cmdline"])
            if p.pid not in before and "ray" in " ".join(p.info["cmdline"] or [])
        ]
        study = raybench.load(folder / "out")
    trials = study.trials[study.trials["phase"] == "search"]
    settled = next(s for s in samples if s["trials"] >= SETTLED)
    last = [sample for sample in samples if sample["workers"]][-1]
    growth = {key: last[key] / settled[key] - 1 for key in ("driver", "workers")}
    work = sum(
        float((trials[f"{phase}_s"] * trials["num_workers"]).sum())
        for phase in ("train", "eval", "setup", "compile")
    )
    wall, bound = samples[-1]["seconds"], 1.25 * work / (os.cpu_count() or 1) + 20
    checks = {
        f"driver memory {growth['driver']:+.1%} after trial {SETTLED} (bar +10 %)": growth["driver"]
        <= GROWTH,
        f"largest worker {growth['workers']:+.1%} (bar +10 %)": growth["workers"] <= GROWTH,
        f"{len(trials)} of {options.trials} trials recorded": len(trials) == options.trials,
        f"{len(left)} processes left behind": not left,
        f"wall {wall:.0f} s, bound {bound:.0f} s": wall <= bound,
    }
    totals = {
        phase: round(float((trials[f"{phase}_s"] * trials["num_workers"]).sum()))
        for phase in ("queue", "start", "setup", "compile", "train", "eval", "report")
    }
    print(f"worker-seconds by phase: {totals}")
    lines = [f"{'ok ' if good else 'BAD'} {text}" for text, good in checks.items()]
    lines.append(f"{machine()['processor']}, {machine()['cores']} cores, {versions()}")
    print("\n".join(lines))
    (results / "long_search.md").write_text("\n".join(lines) + "\n")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="finished trials", ylabel="resident memory [MB]")
    for key in ("driver", "workers"):
        label = "driver" if key == "driver" else "largest worker"
        axes.plot([s["trials"] for s in samples], [s[key] for s in samples], label=label)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    figure.savefig(results / "long_search.png", dpi=90)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
