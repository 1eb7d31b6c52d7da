"""Claim: pictures three times as large as the memory train with flat memory, decoded once.

    python -m benchmarks.larger_than_memory [--limit-mb 900] [--times 3] [--seconds 60]

Needs Linux and the right to make a control group of memory (root; version 1 or 2). Random pictures
of 96 x 96 x 3 are written as a stored dataset of `--times` the limit. Then a process of each
framework, held to the limit by the system, opens it and trains for `--seconds`; its own memory
(`RssAnon`) is read at every evaluation, and the store is opened a second time. Bars: it is not
killed, and its memory is flat: the median of the last third of the evaluations is above that of
the second third by less than a hundredth of the limit.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np

MB = 2**20
SIDE = 96
GROWTH = 0.01
"""Of the limit."""
CHILD = "--child"


def make_group(limit_bytes: int) -> Path:
    """Return a new control group that holds so much memory."""
    root = Path("/sys/fs/cgroup")
    first = root / "memory"
    folder = (first if first.is_dir() else root) / f"raybench-{os.getpid()}"
    folder.mkdir()
    limit = "memory.limit_in_bytes" if first.is_dir() else "memory.max"
    (folder / limit).write_text(str(limit_bytes))
    return folder


def write_pictures(folder: Path, num_bytes: int) -> int:
    """Write the arrays as the store has them; return the number of pictures."""
    number = num_bytes // SIDE**2 // 3
    rng = np.random.default_rng(0)
    pixels = np.lib.format.open_memmap(
        folder / "inputs.npy", mode="w+", dtype=np.uint8, shape=(number, SIDE, SIDE, 3)
    )
    for start in range(0, number, 1000):
        chunk = pixels[start : start + 1000]
        chunk[:] = rng.integers(0, 256, size=chunk.shape, dtype=np.uint8)
    pixels.flush()
    np.save(folder / "labels.npy", rng.integers(0, 10, size=number))
    return number


def own_memory() -> int:
    """Return the bytes of this process that are no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [one for one in lines if one.startswith("RssAnon")]
    return int(line.split()[1]) * 1024


def train(framework: str, folder: Path, seconds: float) -> Iterator[tuple[int, int]]:
    """Yield samples trained on and own memory at every evaluation."""
    from raybench.backends.find import find_backend
    from raybench.backends.run import run
    from raybench.core.clock import Ledger
    from raybench.core.objective import Objective
    from raybench.core.spec import RunSpec
    from raybench.data.dataset import Dataset, Split
    from raybench.data.memory import map_array
    from raybench.workloads.find import find_workload
    from raybench.workloads.shape import DataShape

    inputs, labels = map_array(folder / "inputs.npy"), map_array(folder / "labels.npy")
    few = Split(np.array(inputs[:64]), np.array(labels[:64]))
    dataset = Dataset("made up", 10, Split(inputs, labels), few, few)
    spec = RunSpec(
        framework=framework,  # type: ignore[arg-type]
        objective=Objective(kind="best_at_budget", max_train_seconds=seconds),
        eval_every_samples=512,
        prefetch=2,
    )
    backend = find_backend(framework)
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
    trainer = backend.Trainer(
        spec, find_workload("mnist_small", DataShape.of(dataset)), dataset, world
    )
    for point in run(spec, dataset, trainer, world, Ledger("setup")):
        yield point.samples, own_memory()


def child(framework: str, folder: Path, seconds: float) -> None:
    """Train within the group; print what each evaluation saw."""
    for samples, own in train(framework, folder, seconds):
        print(f"point {samples} {own}", flush=True)


def held(framework: str, group: Path, folder: Path, options: argparse.Namespace) -> bool:
    """Train in the group; print the memory, and return whether the bars are held."""
    module = [sys.executable, "-m", "benchmarks.larger_than_memory", CHILD, framework, str(folder)]
    command = f"echo $$ > {group}/cgroup.procs && exec {' '.join(module)} {options.seconds}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    points = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("point ")]
    if done.returncode or len(points) < 3:
        print(f"{framework:<10} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return False
    own = [int(one) for _, one in points]
    third = len(own) // 3
    middle, last = (statistics.median(own[at : at + third]) for at in (third, 2 * third))
    growth = last - middle
    print(
        f"{framework:<10} {len(points)} evaluations, {int(points[-1][0]):,} pictures; own memory "
        f"{own[0] / MB:.0f} MB at the first, {middle / MB:.0f} MB in the second third, "
        f"{last / MB:.0f} MB in the last, at most {max(own) / MB:.0f} MB"
    )
    return growth < GROWTH * options.limit_mb * MB


def main() -> None:
    """Measure both frameworks; exit 1 where a bar is missed."""
    if CHILD in sys.argv:
        child(sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit-mb", type=int, default=900)
    parser.add_argument("--times", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    print(platform.processor(), *(f"{name} {version(name)}" for name in ("torch", "tensorflow")))
    group = make_group(options.limit_mb * MB)
    try:
        with tempfile.TemporaryDirectory() as name:
            started = time.perf_counter()
            number = write_pictures(Path(name), int(options.times * options.limit_mb * MB))
            size = number * SIDE**2 * 3 / MB
            print(f"{number:,} pictures, {size:,.0f} MB, limit {options.limit_mb} MB", end="; ")
            print(f"written in {time.perf_counter() - started:.0f} s")
            results = [held(one, group, Path(name), options) for one in ("torch", "tensorflow")]
    finally:
        group.rmdir()
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
