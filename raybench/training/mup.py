"""muP: initial weights and rates by width, so that what is best narrow is best wide.

Of Yang et al. 2022 (arXiv:2203.03466), table 3, beside a base model, where both parametrisations
are the same. A weight of the wide model has `inputs` times as many inputs and `outputs` times as
many outputs; what is no matrix (biases, norms, embeddings) has outputs alone.

| weight | initial values | rate of Adam's kind | rate of SGD |
|---|---|---|---|
| head: the last matrix | 1 / inputs | 1 / inputs | outputs / inputs |
| other matrices | inputs^(-1/2) | 1 / inputs | outputs / inputs |
| the others | 1 | 1 | outputs |

All are times what the base model has; of initial values their root mean square, however the model
draws them. Weight decay keeps its product with the rate. What a model does between its weights is
its own: attention whose heads become wider is to divide its products by their width, not its root.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raybench.data.dataset import Dataset
from raybench.models.base import DataShape, Workload
from raybench.models.find import find_workload, load_workload_dataset
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.training.base import find_backend
from raybench.training.run import run


@dataclass(frozen=True)
class Form:
    """What of a weight's shape counts: a matrix as inputs and outputs; the others have 1 input."""

    inputs: int
    outputs: int
    rms: float
    """Of its initial values, the root of their mean square."""
    is_matrix: bool = True


@dataclass(frozen=True)
class Factors:
    """What is multiplied by it."""

    initial: float
    rate: float


def factors(optimizer: str, forms: Sequence[Form], base: Sequence[Form]) -> list[Factors]:
    """Return those of each trainable weight of a model, by the same weights of its base model.

    UserError where these are not the same but for their sizes.
    """
    if [one.is_matrix for one in forms] != [one.is_matrix for one in base]:
        raise UserError(
            "mup_base: the model with these settings has other weights, not the same of another "
            "width; name settings of the width alone."
        )
    last = max((at for at, one in enumerate(forms) if one.is_matrix), default=None)
    found = []
    for at, (one, small) in enumerate(zip(forms, base, strict=True)):
        inputs, outputs = one.inputs / small.inputs, one.outputs / small.outputs
        rate = (outputs if optimizer == "sgd" else 1.0) / inputs
        wanted = small.rms / (inputs if at == last else math.sqrt(inputs))
        found.append(Factors(wanted / one.rms if one.rms and wanted else 1.0, rate))
    return found


def base_workload(spec: RunSpec, dataset: Dataset) -> Workload:
    """Return the workload of the base model."""
    return find_workload(spec.workload, DataShape.of(dataset), spec.model | spec.mup_base)


TIMES = (1, 2, 4, 8)
"""Widths of the check, beside the base model's."""
NUM_STEPS = 10
"""RAdam's first five are not those of Adam's kind."""
NUM_SEEDS = 2
ROWS = 64
"""Validation samples whose outputs are looked at."""
MOST_GROWTH = 0.4
"""Power of the width; of the standard parametrisation with Adam those of hidden layers are 1."""


@dataclass(frozen=True)
class Growth:
    """With which power of the width something grows in the first steps: 0 under muP."""

    name: str
    power: float


OUTPUTS = "the outputs"


def growths(spec: RunSpec, *, num_threads: int = os.cpu_count() or 1) -> list[Growth]:
    """Train models of several widths for some steps, in this process; return how what is added to
    each matrix grows, and how the outputs change.

    A matrix by its spectral norm times (inputs / outputs)^(1/2), which muP keeps the same at any
    width (Yang, Simon, Bernstein 2023, arXiv:2310.17813): the coordinate check of Yang et al. 2022,
    of weights and outputs in place of all activations. UserError for a model that is no wider than
    its base.
    """
    sizes: dict[float, list[dict[str, float]]] = {}
    own: dict[str, Any] = dict(spec.model)
    base: dict[str, Any] = {key: one for key, one in spec.mup_base.items() if key in own}
    for times in TIMES:
        model = own | {key: min(one * times, own[key]) for key, one in base.items()}
        wide = max((model[key] / one for key, one in base.items()), default=1.0)
        if wide not in sizes:
            seeds = [{"model": model, "seed": spec.seed + number} for number in range(NUM_SEEDS)]
            sizes[wide] = [_changes(spec.model_copy(update=one), num_threads) for one in seeds]
    if len(sizes) < 2:
        raise UserError("mup_base: the model is no wider than its base; set model.KEY wider.")
    found = []
    for at, name in enumerate(sizes[1.0][0]):
        # By position: Keras numbers its layers anew.
        values = [[max(list(one.values())[at], TINY) for one in seeds] for seeds in sizes.values()]
        power = np.polyfit(np.log2(list(sizes)), np.log2(values).mean(axis=1), 1)[0]
        found.append(Growth(name, float(power)))
    return found


TINY = 1e-12
ALONE: dict[str, Any] = {"num_workers": 1, "strategy": "distributed", "gpus_per_worker": 0}
ALONE |= {"sync_batch_norm": False, "precision": "fp32", "compile": "none"}
ALONE |= {"eval_every_samples": None, "checkpoint_every_s": 0.0}
"""What a run on the cores of this process has in place of its own."""
FOR_EVER_S = 1e9


def _changes(spec: RunSpec, num_threads: int) -> dict[str, float]:
    """Return how much NUM_STEPS steps change a model's matrices and outputs."""
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset, spec.model, spec.data)
    spec = spec.model_copy(update=ALONE)
    epochs = NUM_STEPS * spec.global_batch_size / dataset.num_train_samples
    objective = spec.objective.model_copy(update={"max_train_seconds": FOR_EVER_S})
    spec = spec.model_copy(update={"epochs": epochs, "objective": objective})
    backend = find_backend(spec.framework)
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=num_threads)
    trainer = backend.Trainer(spec, workload, dataset, world)
    inputs = dataset.validation.read(np.arange(min(ROWS, len(dataset.validation))))
    before, first = trainer.matrices(), trainer.predict(inputs)
    for _ in run(spec, dataset, trainer, world, Ledger("setup")):
        pass
    after, last = trainer.matrices(), trainer.predict(inputs)
    trainer.close()
    found = {OUTPUTS: math.sqrt(np.mean((last - first) ** 2))}
    for name, one in before.items():
        change = float(np.linalg.norm(after[name] - one, 2))
        found[name] = change * math.sqrt(one.shape[1] / one.shape[0])
    return found
