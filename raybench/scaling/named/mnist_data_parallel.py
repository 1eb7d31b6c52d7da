"""Data-parallel PyTorch against TensorFlow on MNIST (Ramkeesoon, 2020), again.

    python -m raybench.scale mnist_data_parallel --quick

Claims: the small TensorFlow model gets slower with more GPUs; a larger batch brings a higher rate,
and the more so with more GPUs; an epoch takes less time with more GPUs; TensorFlow's first epoch is
slow; the size of the dataset does not change the rate; TensorFlow is faster than PyTorch.

Source: "Benchmarking data parallel distributed training of deep learning models in PyTorch and
TensorFlow", github.com/r-o-s-h-a-n/data_parallel_benchmark: Tesla K80s on n1-highmem-2, PyTorch
1.2.0 DataParallel and TensorFlow 2.0.0 MirroredStrategy, one run of each of 108 cells of two
epochs, Adam. What it confounded, and what is done about it here:

- TensorFlow's seconds were `time.clock()`, processor time: the slower small model and speed-ups
  above the number of GPUs come from it (`WALL` has what its own progress bars say). Here both
  frameworks have one clock, `perf_counter` around synchronised steps.
- The two models differed in their padding, so in size; PyTorch decoded pictures one by one in the
  main process and TensorFlow cached them. Here the same layers get the same arrays in one order.
- PyTorch's models were trained on from cell to cell. Here a run builds its own.

Full size as published but for two things: of the 60,000 images 5,000 are held out, and strategies
are torch DDP and TensorFlow MultiWorkerMirrored. `--set strategy=single_process` takes those of the
source (torch's on GPUs alone), and at full size `--set framework=tensorflow --set
axes.strategy=[distributed,single_process]` one against the other. "Large" is `mnist_large_dense`,
the network of the published PyTorch timings. 108 cells; hours on a CPU, on GPUs add
`--set base.gpus_per_worker=1`. Quick: 16 cells of the small model, 3,072 images an epoch.
"""

from typing import Any

from raybench.core.objective import Objective
from raybench.core.scaling_study import Cell, ScalingStudy
from raybench.core.spec import FRAMEWORKS, DatasetSpec, RunSpec
from raybench.scaling.named.claims import Claim, Measured, Results, claim, measured, pairs, ratios

NAME = "mnist_data_parallel"
GPUS, BATCHES = (1, 2, 4), (128, 256, 512)
PUBLISHED = {
    ("torch", "small"): ((5759, 6446, 6997), (6183, 6909, 7392), (6372, 7091, 7527)),
    ("torch", "large"): ((2178, 2901, 3827), (2414, 3006, 4351), (2507, 3767, 5081)),
    ("tensorflow", "small"): (
        (15968, 12735, 10439),
        (24766, 22743, 19152),
        (35003, 38502, 34639),
    ),
    ("tensorflow", "large"): ((3549, 6089, 5674), (4338, 9743, 9153), (4684, 12550, 12510)),
}
"""Images/s of the second epoch at 8 times MNIST: for each batch of BATCHES, at 1, 2, 4 GPUs."""
WALL = {
    ("small", 128): (26.2, 20.6),
    ("small", 256): (16.9, 14.1),
    ("small", 512): (12.2, 8.4),
    ("large", 128): (120.0, 71.2),
    ("large", 256): (103.1, 58.2),
    ("large", 512): (100.4, 54.4),
}
"""Wall seconds of TensorFlow's second epoch at 8 times MNIST, at 1 and 2 GPUs, from the progress
bars in the source's notebook."""
QUICK_SAMPLES = 3072


def study(quick: bool) -> ScalingStudy:
    """Return the study; `quick` for two cores in at most five minutes."""
    if not quick:
        return ScalingStudy(
            name=NAME,
            base=_base(DatasetSpec(name="mnist")),
            scaling=["weak"],
            num_workers=list(GPUS),
            batch_sizes=list(BATCHES),
            axes={
                "framework": list(FRAMEWORKS),
                "workload": ["mnist_small", "mnist_large_dense"],
                "dataset.repeat": [1, 4, 8],
            },
        )
    # The rate at twice the data is for one batch size: time is short.
    grid = [
        (repeat, batch) for repeat in (1, 2) for batch in BATCHES if repeat == 1 or batch == 256
    ]
    changes: list[dict[str, Any]] = [
        {
            "framework": framework,
            "num_workers": workers,
            "batch_size_per_worker": batch,
            "dataset.repeat": repeat,
        }
        for framework in FRAMEWORKS
        for repeat, batch in grid
        for workers in (1, 2)
    ]
    return ScalingStudy(
        name=NAME,
        base=_base(DatasetSpec(name="mnist", limit=QUICK_SAMPLES, validation_size=1000)),
        cells=[Cell(changes=each) for each in changes],
    )


def _base(dataset: DatasetSpec) -> RunSpec:
    return RunSpec(
        workload="mnist_small",
        dataset=dataset,
        objective=Objective(kind="best_at_budget", max_train_seconds=1e6),
        optimizer="adam",
        learning_rate=1e-3,
        epsilon=1e-7,
        epochs=2.0,
    )


def compare(results: Results) -> list[Claim]:
    """Return the published claims beside what was measured."""
    every = measured(results)
    of = {name: measured(results, framework=name) for name in FRAMEWORKS}
    small, large = (
        [one for one in of["tensorflow"] if one.spec.workload == name]
        for name in ("mnist_small", "mnist_large_dense")
    )
    by_batch = _by_batch(every, 1)
    most = max((one.spec.num_workers for one in every), default=1)
    together = _by_batch(every, most) if most > 1 else {}
    more_so = [together[key] / one for key, one in by_batch.items() if key in together]
    first = [
        one.number("samples_per_s") / one.number("first_epoch_samples_per_s")
        for one in of["tensorflow"]
        if one.number("first_epoch_samples_per_s") > 0
    ]
    return [
        claim(
            "The small TensorFlow model gets slower with more GPUs",
            f"{_published('tensorflow', 'small')} by processor time; by wall time "
            f"{_wall('small')} at 2",
            ratios(small, "num_workers"),
            lambda value: value < 1,
        ),
        claim(
            "PyTorch speeds up with more GPUs",
            f"small {_published('torch', 'small')}, large {_published('torch', 'large')}",
            ratios(of["torch"], "num_workers"),
            lambda value: value > 1,
        ),
        claim(
            "The large TensorFlow model speeds up with more GPUs",
            f"{_published('tensorflow', 'large')} by processor time; by wall time "
            f"{_wall('large')} at 2",
            ratios(large, "num_workers"),
            lambda value: value > 1,
        ),
        claim(
            "A larger batch brings a higher rate",
            f"{_growth(0)} times from batch 128 to 512 at 1 GPU",
            [*by_batch.values()],
            lambda value: value > 1,
        ),
        claim(
            "... and the more so with more GPUs",
            f"{_growth(2)} times at 4 GPUs",
            more_so,
            lambda value: value > 1,
        ),
        claim(
            "TensorFlow's first epoch is slow",
            "3 to 20 times as slow as the second, tracing and caching included",
            first,
            lambda value: value > 1.5,
        ),
        claim(
            "The size of the dataset does not change the rate",
            "the same at 1, 4 and 8 times MNIST (figure 5e)",
            ratios(every, "dataset.repeat"),
            lambda value: 0.9 < value < 1.1,
        ),
        claim(
            "TensorFlow is faster than PyTorch",
            f"{_lead()} times, with processor time, other layers and other input",
            # Of the two names, tensorflow comes first in the alphabet.
            [1 / value for value in ratios(every, "framework")],
            lambda value: value > 1,
        ),
    ]


def _by_batch(cells: list[Measured], workers: int) -> dict[tuple[object, ...], float]:
    """Return the rate at the largest batch over that at the smallest, of so many workers."""
    return {
        (one.spec.framework, one.spec.strategy, one.spec.workload, one.spec.dataset.repeat): (
            other.number("samples_per_s") / one.number("samples_per_s")
        )
        for one, other in pairs(cells, "batch_size_per_worker")
        if one.spec.num_workers == workers
    }


def _growth(at: int) -> str:
    """Return by how much the published rates grow from the smallest batch to the largest."""
    found = [rows[-1][at] / rows[0][at] for rows in PUBLISHED.values()]
    return f"{min(found):.2f} to {max(found):.2f}"


def _lead() -> str:
    """Return how much faster TensorFlow was published to be."""
    found = [
        ours / theirs
        for size in ("small", "large")
        for rows, others in zip(
            PUBLISHED["tensorflow", size], PUBLISHED["torch", size], strict=True
        )
        for ours, theirs in zip(rows, others, strict=True)
    ]
    return f"{min(found):.2g} to {max(found):.2g}"


def _published(framework: str, size: str) -> str:
    rates = PUBLISHED[framework, size]
    found = {gpus: [row[i] / row[0] for row in rates] for i, gpus in enumerate(GPUS) if i}
    return ", ".join(f"{min(r):.2f} to {max(r):.2f} times at {gpus}" for gpus, r in found.items())


def _wall(size: str) -> str:
    found = [one / two for (name, _), (one, two) in WALL.items() if name == size]
    return f"{min(found):.2f} to {max(found):.2f} times"
