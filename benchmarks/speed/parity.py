"""Claim: raybench's training loop costs nothing compared with a plain script of the same training.

Two tables with medians of ratios; both sides of a pair are measured in turns within one run:

1. *Groups*: epochs of raybench's workers (the warm groups of every command: a TorchTrainer, a
   TensorflowTrainer) and of a plain script with as many processes (parity_torch.py under
   `torchrun`, DDP and torch's fused Adam; parity_tensorflow.py under a plain
   MultiWorkerMirroredStrategy), an epoch each in turns. Model, data, initial weights, sample order,
   optimizer and threads are equal; the final weights prove equal work.
2. *Loops*: in one process on one core, raybench's loop, the same plain loop, and a common loop (a
   DataLoader, Keras's `fit`).

    python benchmarks/speed/parity.py [--rounds 15] [--frameworks ...] [--workers 1 2]

Ten minutes on two cores. Bar: 0.98 of the plain script's samples/s in every row of the first table;
exit 1 below it. Prints losses and wins.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from parity_groups import BATCH, REPEATS, SAMPLES, Pair, compare, spec_of

from benchmarks import installed
from benchmarks.output import conditions, write_lines
from raybench.cluster.session import Session
from raybench.training.machine import ALLOCATOR_ENVIRONMENT

BAR = 0.98
HERE = Path(__file__).parent
LIMIT_S = 900.0
WARM_UP = 1
"""Epochs of each side that do not count."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
    parser.add_argument("--workloads", nargs="+", default=list(REPEATS))
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--skip", choices=["groups", "loops"], help="leave a table out")
    options = parser.parse_args()
    options.frameworks = installed.frameworks("parity.py", options.frameworks)
    lines, is_met = [], True
    if options.skip != "groups":
        pairs = groups(options)
        is_met = all(pair.ratio >= BAR for pair in pairs.values())
        lines += groups_table(pairs)
        lines += ["", f"bar {BAR} {'met' if is_met else 'NOT MET'}", ""]
    if options.skip != "loops":
        lines += loops_table(options)
    lines += ["", about()]
    if options.skip is None:
        write_lines(HERE.parent / "results" / "parity.md", lines)
    else:
        print("\n".join(lines))
    return 0 if is_met else 1


def groups(options: argparse.Namespace) -> dict[tuple[str, str, int], Pair]:
    """Measure the first table's rows: (framework, workload, workers)."""
    found = {}
    with Session() as session, tempfile.TemporaryDirectory() as folder:
        for framework in options.frameworks:
            for workers in options.workers:
                for workload in options.workloads:
                    spec = spec_of(framework, workload, workers, options.rounds + WARM_UP)
                    own = Path(folder) / f"{framework}-{workload}-{workers}"
                    pair = compare(session, spec, own)
                    # Sums in another order differ in their last bits, and training amplifies that:
                    # weights are equal after an epoch, but maybe not at the end.
                    once = spec_of(framework, workload, workers, WARM_UP)
                    first = compare(session, once, own.with_name(f"{own.name}-once"))
                    pair.weights = f"{first.weights} after an epoch, {pair.weights} in the end"
                    found[framework, workload, workers] = pair
                    print(own.name, _spread(pair.ratios), pair.weights, flush=True)
    return found


def groups_table(pairs: dict[tuple[str, str, int], Pair]) -> list[str]:
    """Return the lines of the first table."""
    lines = [
        "## Worker groups beside plain scripts",
        "",
        "| framework | workload | workers | raybench samples/s | plain script | ratio | weights |",
        "|---|---|---|---|---|---|---|",
    ]
    for (framework, workload, workers), pair in pairs.items():
        lines.append(
            f"| {framework} | {workload} | {workers} | {statistics.median(pair.own):,.0f} | "
            f"{statistics.median(pair.peer):,.0f} | {_spread(pair.ratios)} | {pair.weights} |"
        )
    return lines


def loops_table(options: argparse.Namespace) -> list[str]:
    """Measure the second table; return its lines."""
    lines = [
        "## Loops in one process, one core",
        "",
        "| framework | workload | raybench samples/s | over the plain loop | the same in torch's "
        "default layout | over a user's loop | weights (plain) |",
        "|---|---|---|---|---|---|---|",
    ]
    for framework in options.frameworks:
        for workload in options.workloads:
            with tempfile.TemporaryDirectory() as folder:
                found = loops(framework, workload, options.rounds, Path(folder))
            speeds = found["speeds"]
            own = statistics.median(wall for wall, _ in speeds["raybench"])
            cells = [framework, workload, f"{own:,.0f}"]
            for peer in ("plain", "default layout", "user"):
                cells.append(_both(speeds["raybench"], speeds[peer]) if peer in speeds else "")
            lines.append(f"| {' | '.join([*cells, found['weights']])} |")
            print(lines[-1], flush=True)
    return lines


def loops(framework: str, workload: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Run parity_loops.py in a process of its own."""
    script = str(HERE / "parity_loops.py")
    more = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, script, framework, workload, str(rounds), str(folder)],
        # All loops have the environment of raybench's workers, whose effect is in the other table.
        env=os.environ | ALLOCATOR_ENVIRONMENT | more,
        stdout=subprocess.PIPE,
        timeout=LIMIT_S,
        check=True,
    )
    return json.loads(done.stdout)


def about() -> str:
    """Return the lines on the measurement and the machine."""
    return (
        f"Medians (quartiles, n) of ratios of neighbouring epochs; digits at 28x28, {SAMPLES} of "
        f"them {' or '.join(map(str, REPEATS.values()))} times an epoch "
        f"({', '.join(REPEATS)}), batch {BATCH} a worker, float32, Adam, one thread a worker.\n"
        f"{conditions()}"
    )


def _both(own: list[list[float]], peer: list[list[float]]) -> str:
    """Return the ratios by wall-clock and by CPU seconds."""
    wall, cpu = ([a[i] / b[i] for a, b in zip(own, peer, strict=True)] for i in range(2))
    return f"{_spread(wall)}, by CPU seconds {_spread(cpu)}"


def _spread(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):.3f} ({low:.3f} - {high:.3f}, {len(values)})"


if __name__ == "__main__":
    sys.exit(main())
