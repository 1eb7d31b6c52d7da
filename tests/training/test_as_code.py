"""The code of `raybench report --as` takes the steps that raybench takes: both train here."""

from typing import Any

import numpy as np
import pytest
from framework_models import backend, to_framework
from local import new_trainer, small_spec
from one_worker import model_weights, weights_of

from raybench.data.inputs import Array
from raybench.models.find import load_workload_dataset
from raybench.report.as_code import code_of
from raybench.spec.errors import UserError
from raybench.spec.metric import ACCURACY
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.spec.schedule import build_schedule
from raybench.training.base import Step
from raybench.training.steps import take_until, training_steps

KINDS = {"torch": "torch", "tensorflow": "keras"}
CLASSES = {"torch": ("torch:RMSprop", {"alpha": 0.9}), "tensorflow": ("keras:Nadam", {})}
DECAYED = {"weight_decay": 0.05, "clip_norm": 0.7}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("adam", {}),
    ("sgd", {"nesterov": True, "schedule": "cosine", "warmup_epochs": 0.5, "momentum": 0.8}),
    ("adamw", DECAYED | {"accumulate": 2, "ema_decay": 0.9}),
    ("lamb", DECAYED | {"schedule": "one_cycle", "final_rate": 0.1}),
    ("lars", DECAYED | {"schedule": "step", "warmup_samples": 30}),
    ("radam", DECAYED | {"epochs": 3.0}),
    ("librarys", DECAYED | {"schedule": "ramp_decay"}),
]


def spec_of(framework: str, optimizer: str, **changes: Any) -> RunSpec:
    """Two epochs of 90 digits in passes of 16, in 12 steps."""
    if optimizer == "librarys":
        optimizer, changes["optimizer_options"] = CLASSES[framework]
    content: dict[str, Any] = {
        "workload": "mlp",
        "dataset": DatasetSpec(limit=90),
        "optimizer": optimizer,
        "learning_rate": {"lars": 5.0, "sgd": 0.05}.get(optimizer, 3e-3),
        "epochs": 2.0,
        "batch_size_per_worker": 16,
    }
    return small_spec(framework, **(content | changes))


class Loader:
    """The passes of an epoch after the other, as the trainer has had them."""

    def __init__(self, steps: list[Step], samples_per_epoch: int, read: Any) -> None:
        ends = np.cumsum([one.num_samples for one in steps])
        epochs = (ends - 1) // samples_per_epoch
        self._epochs = [
            [
                read(*one)
                for step, epoch in zip(steps, epochs, strict=True)
                for one in zip(step.indices, step.weights, strict=True)
                if epoch == number
            ]
            for number in range(epochs[-1] + 1)
        ]

    def __len__(self) -> int:
        return len(self._epochs[0])

    def __iter__(self) -> Any:
        return iter(self._epochs.pop(0)) if len(self._epochs) > 1 else iter(self._epochs[0])


@pytest.mark.parametrize(("optimizer", "changes"), CASES, ids=[name for name, _ in CASES])
def test_both_take_the_same_steps(framework: str, optimizer: str, changes: dict[str, Any]) -> None:
    spec = spec_of(framework, optimizer, **changes)
    trainer, dataset, world = new_trainer(spec)
    module, (workload, _) = backend(framework), load_workload_dataset(spec.workload, spec.dataset)
    model, first = module.build_model(workload, spec.seed), weights_of(trainer, framework)
    samples = dataset.num_train_samples
    steps, _ = take_until(training_steps(spec, dataset, world), int(spec.epochs * samples))
    assert len(steps) >= 6

    def read(indices: Array, weights: Array) -> tuple[Any, Any]:
        rows = indices[weights > 0]
        inputs, labels = dataset.train.read(rows), dataset.train.labels[rows]
        prepared = module.prepare_inputs(to_framework(inputs, framework))
        return prepared, to_framework(labels, framework)

    code: dict[str, Any] = {}
    exec(compile(code_of(spec, KINDS[framework]), "code", "exec"), code)  # type: ignore[arg-type]
    losses = module.Losses(workload, ACCURACY).losses
    means = code["train"](model, Loader(steps, samples, read), samples, losses)
    trainer.train(steps)
    expected, found = weights_of(trainer, framework), model_weights(model, framework)
    for one, other, begun in zip(expected, found, first, strict=True):
        # Adaptive steps divide by a gradient's own size: where it is near 0, rounding decides.
        assert np.isclose(other, one, rtol=1e-4, atol=5e-5).mean() > 0.9999
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=5e-4)
        assert np.abs(one - begun).max() > 1e-4, "nothing was learnt"
    assert bool(means) is (spec.ema_decay is not None)
    if means:
        with trainer._averaging.in_place(trainer._optimizer):  # type: ignore[attr-defined]
            averages = weights_of(trainer, framework)
        for one, mean in zip(averages, means, strict=True):
            np.testing.assert_allclose(np.asarray(mean), one, rtol=1e-4, atol=2e-5)


RATES = [
    {},
    {"schedule": "cosine", "final_rate": 0.2, "warmup_epochs": 1.5},
    {
        "schedule": "linear",
        "warmup_samples": 100,
        "num_workers": 4,
        "learning_rate_scaling": "sqrt",
    },
    {"schedule": "step", "step_at": [0.25, 0.5], "step_factor": 0.3},
    {"schedule": "ramp_decay", "learning_rate_scaling": "linear", "num_workers": 2},
]


@pytest.mark.parametrize("changes", RATES, ids=lambda one: one.get("schedule", "constant"))
def test_rates_are_those_of_the_schedule(changes: dict[str, Any]) -> None:
    spec = RunSpec(optimizer="lamb", epochs=9.0, **changes)
    code = code_of(spec, "torch").partition("\nnorm, sign")[0].replace("import torch\n", "")
    found: dict[str, Any] = {}
    exec(code, found)
    schedule = build_schedule(spec, 150)
    for samples in range(0, 1400, 7):
        assert found["learning_rate"](samples, 150) == pytest.approx(schedule(samples), rel=1e-12)


def test_what_is_not_printed_is_said() -> None:
    with pytest.raises(UserError, match="the steps of muon are not printed; torch"):
        code_of(RunSpec(optimizer="muon"), "torch")
    with pytest.raises(UserError, match="torch:SGD is of torch; ask for the code of that"):
        code_of(RunSpec(optimizer="torch:SGD"), "keras")
    text = code_of(RunSpec(label_smoothing=0.1, augment=["flip"], num_workers=2), "torch")
    assert "Not in this code: label_smoothing 0.1, augment [flip]." in text
    assert "64 samples, in each of 2 processes" in text
    assert "raybench" not in text.partition('"""\n')[2]
