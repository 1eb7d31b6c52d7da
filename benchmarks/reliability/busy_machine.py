"""Claim: what else the machine does changes neither the winner of a study nor its seconds.

The same study (a grid of batch sizes and rates; the same seeds in each run of it) three times:
undisturbed, with a busy loop per core that is switched on for the middle third of the seconds that
the first took, and undisturbed again. Compared are the configuration of `best.yaml` and the
seconds of its runs alone; both are printed with how many runs were disturbed. The
third says what the machine does to a study by itself. Batch sizes lie a factor of eight apart: of
factors of two (`--batches 8,16,32,64,128,256`) 16 and 32 are tied, and name each other's winner.

    python benchmarks/reliability/busy_machine.py [--rounds 3] [--batches 4,32,256,2048]

Bar: in every round the same winner, its seconds within 10 % of each other. Nothing else may run on
the machine. About 5 minutes a round on two cores. Writes results/busy_machine.md, with hardware and
versions; exit 1 above the bar.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import raybench
from raybench.results.store import machine, versions

BAR = 0.10
LIMIT_S = 1800.0
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "busy_machine.md"
BATCHES, RATES = "4,32,256,2048", [3e-4, 1e-3, 3e-3]


@dataclass(frozen=True)
class Found:
    """What a study said."""

    winner: str
    seconds: float
    """Of the winner's runs alone."""
    wall_s: float
    disturbed: int
    """Runs that were disturbed."""
    runs: int


def space(batches: list[int]) -> dict[str, object]:
    """A grid of so many batch sizes, each with every rate."""
    return {
        "workload": "mnist_small",
        "dataset": {"name": "digits", "image_size": 28},
        "objective": {"target": 0.95, "hold": 2, "max_train_seconds": 60},
        "search": {"trials": len(batches) * len(RATES), "sampler": "grid", "seed": 0},
        "confirm": {"race": 8, "fresh": 5},
        "space": {"batch_size_per_worker": batches, "learning_rate": RATES},
        "fixed": {"framework": "torch", "optimizer": "adam", "num_workers": 1},
    }


def busy_loops(on: threading.Event, off: threading.Event, begin_s: float, end_s: float) -> None:
    """Keep every core busy from `begin_s` to `end_s`, or until `off`."""
    if off.wait(begin_s):
        return
    loops = [
        subprocess.Popen([sys.executable, "-c", "while 1: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    on.set()
    off.wait(end_s - begin_s)
    for loop in loops:
        loop.kill()
        loop.wait()


def tune(folder: Path) -> float:
    """Run the study of a folder to its end, as a user does; return the seconds that it took."""
    command = [sys.executable, "-m", "raybench.tune", "space.yaml", "--out", "out"]
    own = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    began, log = time.perf_counter(), folder / "log"
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, stdout=file, stderr=file, cwd=folder, env=own | {"PYTHONPATH": str(ROOT)}
        ) as process,
    ):
        try:
            code = process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # it writes its results and ends Ray
            raise
    assert code == 0, log.read_text(errors="replace")[-3000:]
    return time.perf_counter() - began


def run(batches: list[int], busy: tuple[float, float] | None) -> Found:
    """Run the study, beside busy loops from `busy[0]` to `busy[1]` seconds if those are given."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "space.yaml").write_text(json.dumps(space(batches)))  # JSON is YAML
        on, off = threading.Event(), threading.Event()
        thread = threading.Thread(target=busy_loops, args=(on, off, *(busy or (LIMIT_S, LIMIT_S))))
        thread.start()
        try:
            wall_s = tune(folder)
        finally:
            off.set()
            thread.join()
        assert on.is_set() == (busy is not None), "it ended before its middle third"
        records = map(json.loads, (folder / "out" / "records.jsonl").read_text().splitlines())
        lines = [line for line in records if line["kind"] == "run"]
        first = raybench.load(folder / "out").configurations.iloc[0]
        last = {line["trial"]: line for line in lines}.values()
        stays = sum(
            line["ledger"].get("disturbed", 0.0) > max(0.25 * line["ledger"]["train"], 0.05)
            for line in last
        )
        return Found(
            winner=str(first["config"]),
            seconds=float(first["time_to_target_s"]),
            wall_s=wall_s,
            disturbed=stays,
            runs=len(last),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", default=BATCHES)
    options = parser.parse_args()
    batches = [int(one) for one in options.batches.split(",")]
    lines = [
        "| round | study | winner | seconds | wall s | disturbed | runs |",
        "|---|---|---|---|---|---|---|",
    ]
    is_met = True
    for number in range(options.rounds):
        quiet = run(batches, None)
        busy = run(batches, (quiet.wall_s / 3, 2 * quiet.wall_s / 3))
        again = run(batches, None)
        kinds = ("undisturbed", "busy middle third", "undisturbed again")
        for kind, one in zip(kinds, (quiet, busy, again), strict=True):
            cells = f"{one.winner} | {one.seconds:.3f} | {one.wall_s:.0f} | {one.disturbed}"
            lines.append(f"| {number} | {kind} | {cells} | {one.runs} |")
            print(lines[-1], flush=True)
        is_met &= quiet.winner == busy.winner
        is_met &= abs(busy.seconds / quiet.seconds - 1) <= BAR
    lines += [
        "",
        f"bar {'met' if is_met else 'NOT MET'}: the same winner, seconds within "
        f"{BAR:.0%}; {machine()['processor']}, {machine()['cores']} cores, {versions()}",
    ]
    print(lines[-1])
    RESULTS.write_text("\n".join(lines) + "\n")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
