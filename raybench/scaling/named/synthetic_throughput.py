"""Throughput of multi-GPU training on synthetic data (Rossum, 2017), again.

    python -m raybench.scale synthetic_throughput --quick

Claims: Keras scales worse than TensorFlow's own benchmarks; large batches scale better, small ones
get slower; models of fewer than 400,000 to 500,000 parameters may not be worth it; synthetic data
give the same speed as real data; the first epochs are slower and must be left out; without exchange
of gradients ("independent") scaling is linear.

Source: "Towards Efficient Multi-GPU Training in Keras with TensorFlow", github.com/rossumai/
keras-multi-gpu: InceptionV3 and ResNet50 on 1,024 random images, a CIFAR-10 CNN of 1,250,858
parameters (`cifar_cnn`), TensorFlow's tf_cnn_benchmarks; GTX 1070s and Azure's M60s; median of
batches. What it confounded, and what is done about it here:

- Keras's runs kept a global batch of 32 and cut it up (strong scaling: 5 samples a GPU at 6 of
  them), those of tf_cnn_benchmarks had 32 on each GPU (weak scaling). Here every cell says which it
  is, both are run, and no curve mixes them.
- Whether real data are as fast depends on how they come: here both are in memory, which tells of
  the arrays' contents alone; `bottleneck_probe` compares with data that are decoded on demand.
- The larger groups probably had one faster card among them. Here models of GPUs are recorded, and
  runs on different ones are not compared.

Here torch runs, whatever a claim's figures were measured with: of Keras and tf_cnn_benchmarks only
the kind of scaling that each had is compared. `--set framework=tensorflow` runs TensorFlow.

Full size: `mnist_small`, `mnist_large_dense`, `cnn7` at 299 pixels and `cifar_cnn` on 1, 2, 4
and 8 workers; InceptionV3 and ResNet50 are not among the shipped workloads (write them as a class
of your own). Quick: `mnist_small`, `cifar_cnn`, and `deep_mlp` as the small model, on 1 and 2,
images of 32 pixels and one channel.
"""

import itertools
from typing import Any

from raybench.core.objective import Objective
from raybench.core.scaling_study import Cell, Scaling, ScalingStudy
from raybench.core.spec import DatasetSpec, RunSpec
from raybench.scaling.named.claims import Claim, Measured, Results, claim, measured, pairs

NAME = "synthetic_throughput"
TF_CNN_WEAK = {1: 44.9, 2: 91.4, 3: 127.3, 4: 173.5}
"""InceptionV3, images/s of tf_cnn_benchmarks by number of M60s, 32 images on each."""
KERAS_STRONG = {1: 29.4, 2: 53.2, 3: 64.2, 4: 75.5}
"""InceptionV3, images/s of Keras by number of M60s, 32 images on all of them together."""
CIFAR_WEAK = {
    4096: (1.80, 2.28, 1.80, 2.16, 4.03),
    512: (1.75, 2.04, 1.49, 1.87, 1.76),
    32: (0.78, 0.55),
}
"""Speed-ups of the CIFAR-10 CNN by batch per GPU, at 2, 3, ... 6 GTX 1070s; of 32 the first and
the last."""
SMALL_MODELS = {"alexnet": (1_756_620, 1.17), "resnet20": (271_164, 1.51), "others": (0, 1.92)}
"""Parameters and speed-up on 2 GPUs of models for CIFAR-10; the others had 364,772 to 2,259,652
parameters and 1.92 to 2.07 times."""
WORTH_PARAMETERS = 400_000
SHAPES = {
    "mnist_small": [28, 28, 1],
    "mnist_large_dense": [28, 28, 1],
    "deep_mlp": [28, 28, 1],
    "cifar_cnn": [32, 32, 3],
    "cnn7": [299, 299, 3],
}
PIXELS = 32
"""Of the images of a quick study, which have one channel as digits do."""
QUICK = {"mnist_small": ((32, 512), 4096), "cifar_cnn": ((32,), 640), "deep_mlp": ((32,), 8192)}
FULL = {
    "mnist_small": ((32, 512, 4096), 65536),
    "mnist_large_dense": ((32, 512), 16384),
    "cifar_cnn": ((32, 512, 4096), 50000),
    "cnn7": ((32,), 1024),
}
"""Batch sizes and samples of an epoch, by workload."""


def study(quick: bool) -> ScalingStudy:
    """Return the study; `quick` for two cores in at most five minutes."""
    sizes, workers = (QUICK, (1, 2)) if quick else (FULL, (1, 2, 4, 8))
    cells = []
    for workload, (batches, samples) in sizes.items():
        shape = [PIXELS, PIXELS, 1] if quick else SHAPES[workload]
        data = {"name": "synthetic", "shape": shape, "num_samples": samples}
        data["image_size"] = shape[0]
        common: dict[str, Any] = {"workload": workload, "dataset": data}
        for batch, k in itertools.product(batches, workers):
            cells.append(_cell("weak", common, k, batch))
            cells.append(_cell("strong", common, k, batch // k))
            if k > 1:
                cells.append(_cell("weak", common | {"exchange_gradients": False}, k, batch))
    # The same network and batch on real digits.
    batches, samples = sizes["mnist_small"]
    size = PIXELS if quick else 28
    real = {"shape": [size, size, 1], "num_samples": samples, "image_size": size}
    more = {"workload": "mnist_small", "dataset": {"name": "digits", **real}}
    cells.append(_cell("weak", more, 1, batches[0]))
    base = RunSpec(
        workload="mnist_small",
        framework="torch",
        dataset=DatasetSpec(name="synthetic"),
        objective=Objective(kind="best_at_budget", max_train_seconds=1e6),
        optimizer="sgd",
        learning_rate=1e-3,
        epochs=2.0 if quick else 5.0,
    )
    return ScalingStudy(name=NAME, base=base, cells=cells)


def _cell(scaling: Scaling, common: dict[str, Any], workers: int, batch: int) -> Cell:
    more = {"num_workers": workers, "batch_size_per_worker": batch}
    return Cell(scaling=scaling, changes=common | more)


def compare(results: Results) -> list[Claim]:
    """Return the published claims beside what was measured."""
    weak = measured(results, "weak", exchange_gradients=True)
    strong = measured(results, "strong", exchange_gradients=True)
    both = [
        one.number("efficiency_same_batch") / other.number("efficiency_same_batch")
        for one, other in itertools.product(weak, strong)
        if one.spec.num_workers == other.spec.num_workers > 1
        and one.spec.workload == other.spec.workload
        and one.spec.batch_size_per_worker == other.spec.global_batch_size
    ]
    small = [
        one.number("speedup_same_batch")
        for one in weak
        if one.spec.num_workers > 1 and one.number("num_parameters") < WORTH_PARAMETERS
    ]
    return [
        claim(
            "Weak scaling (tf_cnn_benchmarks) is more efficient than strong scaling (Keras)",
            f"{_efficiency(TF_CNN_WEAK):.0%} against {_efficiency(KERAS_STRONG):.0%} at 4 GPUs",
            both,
            lambda value: value > 1,
            unit="times the efficiency",
        ),
        _batches(weak),
        claim(
            "A model of fewer than 400,000 parameters is not worth two workers",
            f"resnet20 ({SMALL_MODELS['resnet20'][0]:,}) {SMALL_MODELS['resnet20'][1]} times at 2 "
            f"GPUs, and alexnet ({SMALL_MODELS['alexnet'][0]:,}) {SMALL_MODELS['alexnet'][1]}",
            small,
            lambda value: value < 1.5,
        ),
        claim(
            "Synthetic data give the same speed as real data, both in memory",
            "the same",
            _real_against_synthetic(results),
            lambda value: 0.95 <= value <= 1.05,
        ),
        claim(
            "The first epochs are slower",
            "1 to 4 epochs are to be left out",
            [
                one.number("first_epoch_samples_per_s") / one.number("samples_per_s")
                for one in weak
                if one.number("first_epoch_samples_per_s") > 0
            ],
            lambda value: value < 0.95,
            unit="of the steady rate",
        ),
        claim(
            "Without exchange of gradients scaling is linear",
            '"independent": the upper bound of tf_cnn_benchmarks',
            _independent(results),
            lambda value: value > 0.9,
            unit="efficiency",
        ),
    ]


def _efficiency(rates: dict[int, float]) -> float:
    return rates[4] / rates[1] / 4


def _batches(weak: list[Measured]) -> Claim:
    """Compare speed-ups at the largest batch with those at the smallest."""
    several = [one for one in weak if one.spec.num_workers == 2]
    return claim(
        "Large batches scale better than small ones",
        f"at 2 GPUs {CIFAR_WEAK[4096][0]} times with 4,096 a GPU, {CIFAR_WEAK[512][0]} with 512, "
        f"{CIFAR_WEAK[32][0]} with 32",
        [
            large.number("speedup_same_batch") / one.number("speedup_same_batch")
            for one, large in pairs(several, "batch_size_per_worker")
        ],
        lambda value: value > 1,
        unit="times the speed-up",
    )


def _real_against_synthetic(results: Results) -> list[float]:
    real, synthetic = (
        measured(
            results, "weak", dataset__name=name, workload="mnist_small", exchange_gradients=True
        )
        for name in ("digits", "synthetic")
    )
    return [
        one.number("samples_per_s") / other.number("samples_per_s")
        for one, other in itertools.product(real, synthetic)
        if one.spec.num_workers == other.spec.num_workers
        and one.spec.batch_size_per_worker == other.spec.batch_size_per_worker
    ]


def _independent(results: Results) -> list[float]:
    """Return the rate a worker without exchange, over that of one alone."""
    every = measured(results, "weak", dataset__name="synthetic")
    alone = {
        (one.spec.workload, one.spec.batch_size_per_worker): one.number("samples_per_s")
        for one in every
        if one.spec.num_workers == 1
    }
    return [
        one.number("samples_per_s")
        / one.spec.num_workers
        / alone[one.spec.workload, one.spec.batch_size_per_worker]
        for one in every
        if not one.key("exchange_gradients")
        and (one.spec.workload, one.spec.batch_size_per_worker) in alone
    ]
