"""Claim: on several workers the training clock holds training, not who hears "go on" first.

After an evaluation every rank waits for the owner's command, and hears it at a moment of its own.
A rank whose clock runs from then on counts its wait for the others, in the first gradient
exchange, as training. Measured in two ways, for both frameworks on 2 workers:

- *Without Ray*: two processes in which rank 1 hears "go on" 0, 5 or 20 ms after rank 0, in turns.
  Training until the next evaluation (median) must not follow that delay.
- *In `python -m raybench.train`*: the same run evaluating at every step (fine) and once (coarse),
  with 1 and with 2 workers, interleaved, `--rounds` times. Read are train seconds a sample; and,
  by a workload that notes when each rank enters training (`skew_workload.py`), the skew itself:
  between the first and the last rank at every evaluation, summed, as a share of the run's
  train seconds.

Fine takes longer a sample than coarse with one worker too (calls, caches): what is left with two
workers beyond that, an evaluation, is the exchange's own start and the skew.

    python benchmarks/clock_skew.py [--rounds 3] [--no-ray] [--tree BEFORE --tree AFTER]

Bars, for the last `--tree`: training an evaluation grows by at most a tenth of the delay of 20 ms
(without Ray), and skew is at most 1 % of the train seconds of the fine run. About 6 minutes a tree
on two cores, half a minute with `--no-ray`. Writes results/clock_skew.md; exit 1 above a bar.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import installed
import trees
from skew_group import DELAYS_MS, gaps_of, without_ray

from raybench.results.store import machine, versions

BAR_DELAY, BAR_SHARE = 0.1, 0.01
LIMIT_S = 180.0
BATCH, WORKERS, SAMPLES = 32, 2, 1257
"""Per worker; the digits' training split."""
EPOCHS = 2.0
LOCAL_EPOCHS = 6.0  # 40 slices for each delay
CADENCES = {"fine": BATCH * WORKERS, "coarse": round(EPOCHS * SAMPLES)}
Measured = dict[str, list[float]]


def spec(framework: str, epochs: float = EPOCHS) -> dict[str, Any]:
    """A short run that ends by itself, evaluating at every step."""
    return {
        "framework": framework,
        "num_workers": WORKERS,
        "batch_size_per_worker": BATCH,
        "dataset": {"name": "digits", "image_size": 28},
        "objective": {"kind": "best_at_budget", "max_train_seconds": 600},
        "epochs": epochs,
        "eval_every_samples": CADENCES["fine"],
    }


def with_ray(tree: Path, framework: str, num_workers: int, cadence: str) -> dict[str, float]:
    """Run `python -m raybench.train`; return microseconds a sample, and with two workers skew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = spec(framework) | {
            "num_workers": num_workers,
            # The same steps on one worker.
            "batch_size_per_worker": BATCH * WORKERS // num_workers,
            "eval_every_samples": CADENCES[cadence],
            "workload": "skew_workload:Skewed",
        }
        (folder / "spec.yaml").write_text(json.dumps(content))  # JSON is YAML
        done = trees.raybench(
            tree,
            *("train", "spec.yaml", "--out", "out"),
            cwd=folder,
            limit_s=LIMIT_S,
            SKEW_FOLDER=name,
        )
        assert done.code == 0, done.printed[-3000:]
        run = trees.runs(folder / "out")[0]
        train_s = float(run["ledger"]["train"])
        found = {"us": 1e6 * train_s / run["samples"]}
        if num_workers > 1 and cadence == "fine":
            gaps = gaps_of(folder, WORKERS)
            found |= {"share": sum(gaps) / train_s, "skew_ms": 1e3 * sum(gaps) / len(gaps)}
    return found


def local_table(names: dict[str, Path], frameworks: list[str]) -> tuple[list[str], bool]:
    """Measure and describe the groups without Ray; whether the last tree meets the bar."""
    lines = [
        "Without Ray: rank 1 hears `go on` later, at each evaluation.",
        "",
        "| framework | tree | heard later | entered apart | train ms an evaluation | of delay |",
        "|---|---|---|---|---|---|",
    ]
    is_met = True
    for framework in frameworks:
        for name, tree in names.items():
            found = without_ray(tree, spec(framework, LOCAL_EPOCHS))
            for delay, (trained, apart) in found.items():
                share = (trained - found[0][0]) / delay if delay else 0.0
                lines.append(
                    f"| {framework} | {name} | {delay} ms | {apart:.2f} ms | {trained:.2f} | "
                    f"{f'{share:.0%}' if delay else ''} |"
                )
                print(lines[-1], flush=True)
                if delay == DELAYS_MS[-1] and name == list(names)[-1]:
                    is_met &= share <= BAR_DELAY
    return [*lines, ""], is_met


def ray_table(names: dict[str, Path], frameworks: list[str], rounds: int) -> tuple[list[str], bool]:
    """Measure and describe the command's runs; whether the last tree meets the bar."""
    kinds = [
        (framework, name, workers, cadence)
        for framework in frameworks
        for workers in (1, WORKERS)
        for name in names
        for cadence in CADENCES
    ]
    found: dict[tuple[str, str, int, str], Measured] = {kind: {} for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            framework, name, workers, cadence = kind
            for key, value in with_ray(names[name], framework, workers, cadence).items():
                found[kind].setdefault(key, []).append(value)
            print(*kind, {key: round(values[-1], 4) for key, values in found[kind].items()})
    lines = [
        f"`python -m raybench.train`: microseconds of training a sample, {rounds} runs each.",
        "",
        "| framework | tree | workers | fine | coarse | fine - coarse, ms an evaluation | "
        "entered apart, ms | share of train |",
        "|---|---|---|---|---|---|---|---|",
    ]
    is_met = True
    for framework, name, workers, cadence in kinds:
        if cadence == "coarse":
            continue
        fine, coarse = (found[framework, name, workers, one] for one in CADENCES)
        more_us = statistics.median(fine["us"]) - statistics.median(coarse["us"])
        cells = [framework, name, str(workers), _spread(fine["us"], 0), _spread(coarse["us"], 0)]
        cells.append(f"{more_us * CADENCES['fine'] / 1e3:.2f}")
        if workers > 1:
            share = statistics.median(fine["share"])
            cells += [_spread(fine["skew_ms"], 2), f"{share:.1%}"]
            if name == list(names)[-1]:
                is_met &= share <= BAR_SHARE
        else:
            cells += ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""], is_met


def _spread(values: list[float], digits: int) -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} - {high:.{digits}f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
    parser.add_argument("--no-ray", action="store_true", help="only the groups without Ray")
    trees.add_tree_option(parser)
    options = parser.parse_args()
    names = trees.trees(options)
    frameworks = installed.frameworks("clock_skew.py", options.frameworks)
    lines, is_met = local_table(names, frameworks)
    if not options.no_ray:
        more, is_share_met = ray_table(names, frameworks, options.rounds)
        lines, is_met = lines + more, is_met and is_share_met
    lines += [
        f"bars {'met' if is_met else 'NOT MET'} (last tree): at most {BAR_DELAY:.0%} of a delay of "
        f"{DELAYS_MS[-1]} ms in training, skew at most {BAR_SHARE:.0%} of training",
        f"{machine()['processor']}, {machine()['cores']} cores, load {os.getloadavg()[0]:.1f}, "
        f"{versions()}",
    ]
    print("\n".join(lines))
    if not options.no_ray:
        (trees.HERE / "results" / "clock_skew.md").write_text("\n".join(lines) + "\n")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
