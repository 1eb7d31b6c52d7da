"""muP: initial weights and rates by width, so that what is best narrow is best wide.

Of Yang et al. 2022 (arXiv:2203.03466), table 3, beside a base model, where both parametrisations
are the same. A weight of the wide model has `inputs` times as many inputs and `outputs` times as
many outputs; what is no matrix (biases, norms, embeddings) has outputs alone.

| weight | initial values | rate of Adam's kind | rate of SGD |
|---|---|---|---|
| head: a matrix of more inputs and as many outputs | 1 / inputs | 1 / inputs | 1 / inputs |
| other matrices | inputs^(-1/2) | 1 / inputs | outputs / inputs |
| the others | 1 | 1 | outputs |

All are times what the base model has; of initial values their root mean square, however the model
draws them. Weight decay keeps its product with the rate. What a model does between its weights is
its own: attention whose heads become wider is to divide its products by their width, not its root,
and so are outputs whose weights are those of an embedding.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from raybench.data.dataset import Dataset
from raybench.models.base import DataShape, Workload, known_settings, users_code
from raybench.models.find import find_workload, load_workload_dataset
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.training.base import find_backend
from raybench.training.run import run


@dataclass(frozen=True)
class WeightForm:
    """Shape of a weight: a matrix as inputs and outputs; the others have 1 input."""

    inputs: int
    outputs: int
    rms: float
    """Root mean square of the initial values."""
    is_matrix: bool = True
    of_own_layer: str = ""
    """The name of a weight whose layer is the user's own, so that its first axis may be either."""


@dataclass(frozen=True)
class WidthFactors:
    """Factors on the initial value and the learning rate of a weight."""

    initial: float
    rate: float


def factors(
    optimizer: str, forms: Sequence[WeightForm], base: Sequence[WeightForm]
) -> list[WidthFactors]:
    """Return those of each trainable weight of a model, by the same weights of its base model.

    UserError where these are not the same but for their sizes, or a weight's inputs are not known.
    """
    if [one.is_matrix for one in forms] != [one.is_matrix for one in base]:
        raise UserError(
            "mup_base: the model with these settings has other weights, not the same of another "
            "width; name settings of the width alone."
        )
    if not forms:
        raise UserError("mup_base: the model has no weights that are trained.")
    found = []
    for one, small in zip(forms, base, strict=True):
        inputs, outputs = one.inputs / small.inputs, one.outputs / small.outputs
        if one.of_own_layer and inputs != outputs:
            raise UserError(
                f"mup_base: of weight {one.of_own_layer} it is not known whether it is a matrix or "
                "a table; keep it in nn.Linear or nn.Embedding, or name a table so: pos_embedding."
            )
        rate = (outputs if optimizer == "sgd" else 1.0) / inputs
        wanted = small.rms / (inputs if outputs == 1 else math.sqrt(inputs))
        found.append(WidthFactors(wanted / one.rms if one.rms and wanted else 1.0, rate))
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
    its base, cannot be built, or diverges.
    """
    workload, _ = load_workload_dataset(spec.workload, spec.dataset, spec.model, spec.data)
    own = (known_settings(type(workload)) or {}) | spec.model
    models: list[dict[str, Any]] = []
    for times in TIMES:
        wider = {key: _wider(one, own.get(key, one), times) for key, one in spec.mup_base.items()}
        if (model := spec.model | wider) not in models:
            models.append(model)
    tried = []
    for model in models:
        seeds = [{"model": model, "seed": spec.seed + number} for number in range(NUM_SEEDS)]
        tried.append([_try(spec.model_copy(update=one), num_threads) for one in seeds])
    # By position: Keras numbers its layers anew.
    shapes = [np.array([one.shape for one in first.values()]) for first, *_ in tried]
    widths = [float(np.max(one / shapes[0], initial=1.0)) for one in shapes]
    if max(widths) == 1:
        raise UserError(
            "mup_base: no weight of the model is larger than with these settings; name those of "
            "its width, and set them larger in model."
        )
    found = []
    for at, name in enumerate(tried[0][0]):
        values = [[max(list(one.values())[at].size, TINY) for one in changes] for changes in tried]
        power = np.polyfit(np.log2(widths), np.log2(values).mean(axis=1), 1)[0]
        found.append(Growth(name, float(power)))
    return found


def _wider(small: Any, own: Any, times: int) -> Any:
    """Return a setting between that of the base and the model's own."""
    if isinstance(small, list) and isinstance(own, list | tuple) and len(small) == len(own):
        return [_wider(one, its, times) for one, its in zip(small, own, strict=True)]
    if type(small) is type(own) and type(small) in (int, float):
        return min(small * times, own)
    return small if times == 1 else own


class _Change(NamedTuple):
    """How much some steps change a matrix (outputs, inputs), or the outputs."""

    size: float
    shape: tuple[int, int]


TINY = 1e-12
ALONE: dict[str, Any] = {"num_workers": 1, "strategy": "distributed", "gpus_per_worker": 0}
ALONE |= {"sync_batch_norm": False, "precision": "fp32", "compile": "none"}
ALONE |= {"eval_every_samples": None, "checkpoint_every_s": 0.0}
"""What a run on the cores of this process has in place of its own."""
FOR_EVER_S = 1e9


def _try(spec: RunSpec, num_threads: int) -> dict[str, _Change]:
    """Return how much NUM_STEPS steps change a model's outputs and matrices."""
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset, spec.model, spec.data)
    spec = spec.model_copy(update=ALONE)
    epochs = NUM_STEPS * spec.global_batch_size / dataset.num_train_samples
    objective = spec.objective.model_copy(update={"max_train_seconds": FOR_EVER_S})
    spec = spec.model_copy(update={"epochs": epochs, "objective": objective})
    backend = find_backend(spec.framework)
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=num_threads)
    with users_code(f"Workload {workload.name}: it cannot be built with model {spec.model}"):
        trainer = backend.Trainer(spec, workload, dataset, world)
    inputs = dataset.validation.read(np.arange(min(ROWS, len(dataset.validation))))
    before, first = trainer.matrices(), trainer.predict(inputs)
    for _ in run(spec, dataset, trainer, world, Ledger("setup")):
        pass
    after, last = trainer.matrices(), trainer.predict(inputs)
    trainer.close()
    if not all(np.isfinite(one).all() for one in (last, *after.values())):
        raise UserError(
            f"mup_base: with model {spec.model} training diverges within {NUM_STEPS} steps of rate "
            f"{spec.learning_rate:g}; set a smaller learning_rate."
        )
    found = {OUTPUTS: _Change(math.sqrt(np.mean((last - first) ** 2)), (1, 1))}
    for name, one in before.items():
        change = float(np.linalg.norm(after[name] - one, 2))
        found[name] = _Change(change * math.sqrt(one.shape[1] / one.shape[0]), one.shape)
    return found
