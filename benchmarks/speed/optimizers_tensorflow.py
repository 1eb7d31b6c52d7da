"""One optimizer step in TensorFlow before and now: many tiny variables, and ResNet-50's 161.

Claim: what a step computes of rate and step number (bias corrections, RAdam's rectification) is
computed once and not once a variable, so that a step over tiny variables costs a fraction of what
it did, and one over large variables no more.

    git worktree add /tmp/before 20037ba
    taskset -c 1 python benchmarks/speed/optimizers_tensorflow.py --before /tmp/before

Two processes, one of each commit, keep their variables; they take turns (ABBA), one block of steps
each, under the loop's own strategy of one worker and with the call that its loop makes. The ratio
is the median over rounds of before / now of the same round, with quartiles and their number.
Bars: at most 0.75 of the time for tiny variables (SGD, which has no such numbers, 1.1), at most
1.1 for ResNet-50. Writes results/optimizers_tensorflow.md. Exit code: 0 all bars met, 1 one missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

NAMES = ("sgd", "adam", "radam", "lars", "lamb", "nadamw", "lion", "schedule_free_adamw", "muon")
CALLS = {"before": "apply", "now": "apply_exchanged"}
"""What the loop of one worker calls."""
NOTHING_SHARED = ("sgd", "lars", "lion")
HERE = Path(__file__).resolve().parent
BARS = {"tiny": 0.75, "resnet50": 1.1}


def serve(name: str, call: str, shapes: list[list[int]], steps: int) -> None:
    """Take `steps` steps for every line that comes in, and answer with the seconds of one."""
    from raybench.training.tensorflow.world import join

    world = join(rank=0, num_workers=1, device="cpu", num_threads=1)
    import keras
    import tensorflow as tf

    from raybench.training.tensorflow.optim import build_optimizer

    with world.strategy.scope():
        weights = [keras.Variable(np.full(shape, 0.01, np.float32)) for shape in shapes]
        gradients = [tf.Variable(np.full(shape, 1e-3, np.float32)) for shape in shapes]
        optimizer = build_optimizer(name, learning_rate=1e-4, weight_decay=0.01)
        optimizer.build(weights)

    def step() -> None:
        getattr(optimizer, call)([tf.identity(one) for one in gradients], weights)

    @tf.function
    def take() -> None:
        for _ in tf.range(steps):
            world.strategy.run(step)

    take()
    for _ in sys.stdin:
        started = time.perf_counter()
        take()
        print(f"seconds {(time.perf_counter() - started) / steps}", flush=True)


def measure(
    roots: dict[str, str], name: str, shapes: object, steps: int, rounds: int
) -> np.ndarray:
    """Return microseconds of a step, (rounds, 2): before and now."""
    children = {}
    for which, root in roots.items():
        command = [sys.executable, __file__, "--serve", name, CALLS[which], json.dumps(shapes)]
        children[which] = subprocess.Popen(
            [*command, str(steps)], env={"PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def ask(which: str) -> float:
        child = children[which]
        assert child.stdin
        assert child.stdout
        child.stdin.write("go\n")
        child.stdin.flush()
        for line in child.stdout:
            if line.startswith("seconds "):
                return 1e6 * float(line.split()[1])
        raise RuntimeError(f"the process of {which} ended: {name}, {CALLS[which]}")

    found = []
    for number in range(rounds + 2):
        order = ("before", "now") if number % 2 else ("now", "before")
        times = {which: ask(which) for which in order}
        found.append([times["before"], times["now"]])
    for child in children.values():
        child.communicate()
    return np.array(found[2:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", help="folder of the earlier commit")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--names", nargs="+", default=NAMES)
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        name, call, shapes, steps = arguments.serve
        serve(name, call, json.loads(shapes), int(steps))
        return 0
    if not arguments.before:
        parser.error("--before DIR is needed: a worktree of the commit to compare with")
    from optimizers import resnet50_shapes

    cases = {
        "tiny": ([(8, 8), (8,)] * 30, 200, arguments.rounds),
        "resnet50": (list(resnet50_shapes()), 2, max(6, arguments.rounds // 2)),
    }
    roots = {"before": arguments.before, "now": str(HERE.parents[1])}
    lines = ["| variables | optimizer | before, us | now, us | before / now (quartiles) | n | |"]
    lines += ["|---|---|---|---|---|---|---|"]
    missed = False
    for case, (shapes, steps, rounds) in cases.items():
        for name in arguments.names:
            times = measure(roots, name, shapes, steps, rounds)
            ratio, low, high = np.percentile(times[:, 0] / times[:, 1], [50, 25, 75])
            bar = max(BARS[case], 1.1 if name in NOTHING_SHARED else 0.0)
            missed |= 1 / ratio > bar
            before, now = np.median(times, axis=0)
            spread = f"{ratio:.2f} ({low:.2f}-{high:.2f})"
            word = "MISSED" if 1 / ratio > bar else "met"
            lines.append(
                f"| {case} | {name} | {before:.0f} | {now:.0f} | {spread} | {len(times)} | {word} |"
            )
            print(lines[-1], flush=True)
    text = "# TensorFlow's optimizer step, before and now\n\n" + "\n".join(lines) + "\n"
    (HERE.parent / "results" / "optimizers_tensorflow.md").write_text(text)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
