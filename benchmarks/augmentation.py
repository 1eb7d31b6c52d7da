"""Augmentation of uint8 images on one core: raybench's against torchvision's and Keras's.

Claim: for every kind, on batches of 32x32x3 and of 224x224x3 pixels, raybench makes at least as
many images by CPU second as torchvision.transforms.v2 called a sample at a time, as a DataLoader
does, and as Keras's preprocessing layers called on batches in a traced function; but for the flip
alone of 224x224x3, where torchvision's images lie channel by channel and ours are pixels: half as
many. And training at 32x32x3 with random crop and flip takes at most 5 % more CPU seconds than
without.

    pip install 'raybench[benchmarks]'
    python benchmarks/augmentation.py

Takes about ten minutes. All sides take the same images in memory to a batch of the same size, one
batch each in rotating turns, on one thread. The ratio is the median over rounds of raybench's
speed / the peer's in the same round. *a sample*: tensors (3, height, width) one by one, then
stacked; *PIL*: the same from PIL images and to tensors, the most written form; both have no draw
by sample and epoch that can be repeated elsewhere. *a batch* draws once for all samples of a
batch: cheaper, and another augmentation, so it has no bar. What Keras has no layer for is the
nearest one (random resized crop: RandomZoom; random crop: ZeroPadding2D and RandomCrop, one place
for a whole batch; cutout: RandomErasing). torchvision's mixup is of batches alone.

Memory that is freed stays with the process, as in raybench's workers (backends/allocator.py).

Writes results/augmentation.md beside this file. Exit code: 0 all bars met, 1 one missed.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from raybench.backends.allocator import ENVIRONMENT
from raybench.core.dataset_spec import Augmentation
from raybench.data.augment import Augmenter
from raybench.data.dataset import Split

Side = Callable[[int], object]
"""Makes the batch of that round."""
RESULTS = Path(__file__).parent / "results"
SIZES = {32: 128, 224: 32}
"""Side of the images, and images of a batch."""
KINDS: dict[str, list[Any]] = {
    "random_crop": ["random_crop"],
    "flip": ["flip"],
    "random_resized_crop": ["random_resized_crop"],
    "cutout": ["cutout"],
    "color_jitter": ["color_jitter"],
    "mixup": ["mixup"],
    "crop and flip": ["random_crop", "flip"],
    "resized crop, flip, jitter": ["random_resized_crop", "flip", "color_jitter"],
}
BARS = {"a sample": 1.0, "PIL": 1.0, "Keras": 1.0}
"""Least ratio raybench / peer, but for FLIP."""
FLIP = ("flip", 224, "a sample", 0.5)
MOST_TRAINING = 1.05
ROUNDS = 15


def images_of(side: int) -> np.ndarray:
    """Return smooth random images (n, side, side, 3): neither noise nor one colour."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (SIZES[side], side // 8, side // 8, 3), dtype=np.uint8)
    return np.ascontiguousarray(coarse.repeat(8, axis=1).repeat(8, axis=2))


def raybench_side(kinds: list[Any], images: np.ndarray) -> Side:
    """Return ours; of mixup the other samples are read and changed too."""
    augmentations = TypeAdapter(list[Augmentation]).validate_python(kinds)
    augmenter = Augmenter(augmentations, Split(images, np.zeros(len(images), np.int64)), 0)
    rows = np.arange(len(images))
    return lambda one: augmenter(images, rows, np.full(len(images), one))


def torchvision_sides(name: str, images: np.ndarray) -> dict[str, Side]:
    """Return a sample at a time, from PIL images, and a batch at once."""
    import torch
    from PIL import Image
    from torchvision.transforms import v2

    side = images.shape[1]
    made: dict[str, list[Any]] = {
        "random_crop": [v2.RandomCrop(side, padding=4)],
        "flip": [v2.RandomHorizontalFlip()],
        "random_resized_crop": [v2.RandomResizedCrop(side)],
        "cutout": [v2.RandomErasing(p=1.0, scale=(0.25, 0.25), ratio=(1.0, 1.0))],
        "color_jitter": [v2.ColorJitter(0.4, 0.4, 0.4)],
    }
    made["crop and flip"] = made["random_crop"] + made["flip"]
    made["resized crop, flip, jitter"] = (
        made["random_resized_crop"] + made["flip"] + made["color_jitter"]
    )
    batch = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    if name == "mixup":
        labels = torch.zeros(len(images), dtype=torch.long)
        floats, mixup = batch.float(), v2.MixUp(alpha=0.2, num_classes=10)
        return {"a batch": lambda _: mixup(floats, labels)}
    change = v2.Compose(made[name]) if len(made[name]) > 1 else made[name][0]
    sides: dict[str, Side] = {"a sample": lambda _: torch.stack([change(one) for one in batch])}
    if name != "cutout":  # which torchvision has for tensors alone
        pictures = [Image.fromarray(one) for one in images]
        to_tensor = v2.PILToTensor()
        sides["PIL"] = lambda _: torch.stack([to_tensor(change(one)) for one in pictures])
    sides["a batch"] = lambda _: change(batch)
    return sides


def keras_sides(name: str, images: np.ndarray) -> dict[str, Side]:
    """Return Keras's layers, or the nearest ones, in a traced function over a batch."""
    import keras
    import tensorflow as tf
    from keras import layers

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    side = images.shape[1]
    made: dict[str, list[Any]] = {
        "random_crop": [layers.ZeroPadding2D(4), layers.RandomCrop(side, side)],
        "flip": [layers.RandomFlip("horizontal")],
        "random_resized_crop": [layers.RandomZoom((-0.7, 0.0), fill_mode="nearest")],
        "cutout": [layers.RandomErasing(scale=(0.25, 0.25), fill_value=0.0)],
        "color_jitter": [
            layers.RandomColorJitter((0, 255), 0.4, 0.4, 0.4, None),
        ],
        "mixup": [layers.MixUp(alpha=0.2)],
    }
    made["crop and flip"] = made["random_crop"] + made["flip"]
    made["resized crop, flip, jitter"] = (
        made["random_resized_crop"] + made["flip"] + made["color_jitter"]
    )
    keras.utils.set_random_seed(0)

    @tf.function
    def change(batch: Any) -> Any:
        for layer in made[name]:
            batch = layer(batch, training=True)
        return tf.cast(batch, tf.uint8)

    batch = tf.constant(images)
    if name != "flip":  # RandomFlip alone keeps bytes
        batch = tf.cast(batch, tf.float32)
    return {"Keras": lambda _: change(batch)}


def compared(sides: dict[str, Side], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of every side's batches, made in rotating turns."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for one in range(rounds + 3):
        for name in names:
            started = time.process_time()
            sides[name](one)
            if one >= 3:  # earlier ones trace, and fill the heap
                seconds[name].append(time.process_time() - started)
        names = names[1:] + names[:1]
    return seconds


def compare_kinds(rounds: int, lines: list[str]) -> bool:
    """Measure all kinds at all sizes; return whether the bars are met."""
    met = True
    for side, number in SIZES.items():
        images = images_of(side)
        lines += ["", f"{side}x{side}x3, {number} a batch: images by CPU second, and ratio", ""]
        lines += ["| kind | raybench | a sample | PIL | a batch (no bar) | Keras |"]
        lines += ["|---|---|---|---|---|---|"]
        for name, kinds in KINDS.items():
            sides = {"raybench": raybench_side(kinds, images)}
            sides |= torchvision_sides(name, images) | keras_sides(name, images)
            seconds = compared(sides, rounds)
            cells = [f"{number / statistics.median(seconds['raybench']):,.0f}"]
            for peer in ("a sample", "PIL", "a batch", "Keras"):
                if peer not in seconds:
                    cells.append("-")
                    continue
                pairs = zip(seconds[peer], seconds["raybench"], strict=True)
                ratio = statistics.median(theirs / ours for theirs, ours in pairs)
                bar = FLIP[3] if (name, side, peer) == FLIP[:3] else BARS.get(peer, 0.0)
                met &= ratio >= bar
                speed = number / statistics.median(seconds[peer])
                cells.append(f"{speed:,.0f} ({ratio:.2f}x{', lost' if ratio < 1 else ''})")
            lines.append(f"| {name} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return met


def compare_trainings(rounds: int, lines: list[str]) -> bool:
    """Train with and without augmentation in turns; return whether the bar is met."""
    from raybench.backends.find import find_backend
    from raybench.backends.steps import take_until, training_steps, warm_up_step
    from raybench.core.spec import DatasetSpec, RunSpec
    from raybench.workloads.find import load_workload_dataset

    lines += [
        "",
        "Training of small_resnet at 32x32x3, batch 64, one thread: an interval of 512",
        "",
    ]
    lines += ["| framework | CPU seconds without | with crop and flip | ratio | input share |"]
    lines += ["|---|---|---|---|---|"]
    met = True
    data = DatasetSpec(name="synthetic", shape=[32, 32, 3], num_samples=512)
    for framework in ("torch", "tensorflow"):
        sides: dict[str, Side] = {}
        trainers = {}
        for name, augment in (("without", []), ("with", KINDS["crop and flip"])):
            spec = RunSpec(
                workload="small_resnet", dataset=data, framework=framework, augment=augment
            )
            workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
            backend = find_backend(framework)
            world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
            trainer = backend.Trainer(spec, workload, dataset, world)
            trainer.warm_up(warm_up_step(spec, dataset, world))
            steps = training_steps(spec, dataset, world)
            trainers[name] = trainer
            sides[name] = lambda _, t=trainer, s=steps: t.train(take_until(s, 512)[0])
        started = time.perf_counter()
        seconds = compared(sides, rounds)
        lasted = (time.perf_counter() - started) / 2
        pairs = zip(seconds["with"], seconds["without"], strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        met &= ratio <= MOST_TRAINING
        share = trainers["with"].input_seconds() / lasted
        medians = [statistics.median(seconds[name]) for name in ("without", "with")]
        cells = f"{medians[0]:.3f} | {medians[1]:.3f} | {ratio:.3f} | {share:.1%}"
        lines.append(f"| {framework} | {cells} |")
        print(lines[-1], flush=True)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    wanted = ENVIRONMENT | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if any(os.environ.get(key) != value for key, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)
    import torch

    torch.set_num_threads(1)
    names = ("numpy", "torch", "torchvision", "pillow", "tensorflow", "keras")
    lines = [
        "# Augmentation on one core",
        "",
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.machine()}, {os.cpu_count()} CPUs, "
        f"load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in names)
        + f". {rounds} rounds; in brackets raybench's speed / the peer's, medians.",
    ]
    met = compare_kinds(rounds, lines)
    met &= compare_trainings(max(5, rounds // 3), lines)
    lines += ["", "All bars met." if met else "A bar is missed."]
    (RESULTS / "augmentation.md").write_text("\n".join(lines) + "\n")
    print(lines[-1])
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
