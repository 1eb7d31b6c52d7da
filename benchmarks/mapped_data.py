"""Claim: pictures mapped from the store train as fast as the same arrays in memory (within 3 %).

    python -m benchmarks.mapped_data [--rounds 15] [--images 20000] [--workload mnist_small]

Random pictures of 32 x 32 x 3 are mapped from a file as the store's are. One process, one core,
trains the same batches in the same order from a copy in memory, from the mapping, and from the
mapping read batch by batch, which is what larger ones than memory get (`prefetch: 2`), in turns
(ABCABC): the ratio of the samples/s in each round, their median with quartiles, and whether the
losses of all turns are equal. The file's pages are in the system's cache, as after a first epoch of
data that fit; what a disk costs beyond that is the disk's. Bar: 0.97 of the in-memory path for
the mapping.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")

from raybench.backends import room
from raybench.backends.base import Step, Trainer
from raybench.backends.find import find_backend
from raybench.backends.steps import take_until, training_steps
from raybench.core.spec import RunSpec
from raybench.data.dataset import Array, Dataset, Split
from raybench.workloads.find import find_workload
from raybench.workloads.shape import DataShape

BAR = 0.97
BATCH, STEPS = 64, 60
"""Samples of a step, and steps of a turn."""


def pictures(folder: Path, number: int) -> tuple[Array, Array, Array]:
    """Return random pictures in memory, the same from a file, and labels of ten classes."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, size=(number, 32, 32, 3), dtype=np.uint8)
    np.save(folder / "inputs.npy", inputs)
    mapped = np.load(folder / "inputs.npy", mmap_mode="r")
    return inputs, mapped, rng.integers(0, 10, size=number)


def trainer_of(
    framework: str, workload: str, inputs: Array, labels: Array, prefetch: int
) -> Trainer:
    """Return a warm trainer of these samples; with `prefetch` they are read batch by batch."""
    few = Split(inputs[:256], labels[:256])
    dataset = Dataset("made up", 10, Split(inputs, labels), few, few)
    spec = RunSpec(framework=framework, batch_size_per_worker=BATCH, prefetch=prefetch)  # type: ignore[arg-type]
    backend = find_backend(framework)
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
    usual = room.SHARE
    room.SHARE = 0.0 if prefetch else usual
    trainer: Trainer = backend.Trainer(
        spec, find_workload(workload, DataShape.of(dataset)), dataset, world
    )
    room.SHARE = usual
    trainer.warm_up(steps_of(spec, dataset, world, 1)[0])
    return trainer


def steps_of(spec: RunSpec, dataset: Dataset, world: object, number: int) -> list[Step]:
    """Return the first steps of a run."""
    return take_until(training_steps(spec, dataset, world), number * BATCH)[0]  # type: ignore[arg-type]


def measure(framework: str, workload: str, rounds: int, images: int, folder: Path) -> bool:
    """Print the ratios of a framework; return whether the mapping holds the bar."""
    inputs, mapped, labels = pictures(folder, images)
    kinds = {"memory": (inputs, 0), "mapped": (mapped, 0), "read by batch": (mapped, 2)}
    trainers = {
        kind: trainer_of(framework, workload, array, labels, prefetch)
        for kind, (array, prefetch) in kinds.items()
    }
    whole = Dataset("made up", 10, *[Split(inputs, labels)] * 3)
    spec = RunSpec(batch_size_per_worker=BATCH)
    world = find_backend(framework).join(rank=0, num_workers=1, device="cpu", num_threads=1)
    steps = steps_of(spec, whole, world, STEPS * rounds)
    speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
    losses: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(rounds):
        for kind, trainer in trainers.items():
            started = time.perf_counter()
            losses[kind].append(trainer.train(steps[turn * STEPS : (turn + 1) * STEPS]))
            speeds[kind].append(STEPS * BATCH / (time.perf_counter() - started))
    holds = True
    for kind in ("mapped", "read by batch"):
        ratios = [one / two for one, two in zip(speeds[kind], speeds["memory"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        same = "equal" if losses[kind] == losses["memory"] else "OTHER"
        print(f"{framework:<10} {kind:<13} {middle:5.3f} ({low:.3f} - {high:.3f})  {same} losses")
        holds &= kind != "mapped" or (middle >= BAR and same == "equal")
    return holds


def main() -> None:
    """Measure both frameworks; exit 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--workload", default="mnist_small")
    options = parser.parse_args()
    print(
        f"{options.workload}, {options.images:,} pictures, {options.rounds} rounds of {STEPS} steps"
    )
    print(platform.processor(), *(f"{name} {version(name)}" for name in ("torch", "tensorflow")))
    print("samples/s over those of the same arrays in memory: median (quartiles)")
    with tempfile.TemporaryDirectory() as folder:
        held = [
            measure(framework, options.workload, options.rounds, options.images, Path(folder))
            for framework in ("torch", "tensorflow")
        ]
    raise SystemExit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
