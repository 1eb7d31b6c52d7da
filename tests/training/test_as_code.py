"""The code of `raybench report --as` takes the steps that raybench takes: both train here."""

from typing import Any

import numpy as np
import pytest
from local import FOR_EVER, FRAMEWORKS, new_trainer

from raybench.data.inputs import Array
from raybench.report.as_code import code_of
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.spec.schedule import build_schedule
from raybench.training.base import Step, find_part
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
    ("lion", DECAYED | {"schedule": "linear"}),
    ("nadamw", DECAYED | {"schedule": "polynomial"}),
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
        "objective": FOR_EVER,
        "framework": framework,
        "optimizer": optimizer,
        "learning_rate": {"lars": 5.0, "sgd": 0.05}.get(optimizer, 3e-3),
        "epochs": 2.0,
        "batch_size_per_worker": 16,
    }
    return RunSpec(**(content | changes))


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


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("optimizer", "changes"), CASES, ids=[name for name, _ in CASES])
def test_both_take_the_same_steps(framework: str, optimizer: str, changes: dict[str, Any]) -> None:
    spec = spec_of(framework, optimizer, **changes)
    trainer, dataset, world = new_trainer(spec)
    parts = IN[framework]
    model, average = parts.copied(trainer._model), spec.ema_decay is not None  # type: ignore[attr-defined]
    samples = dataset.num_train_samples
    steps, _ = take_until(training_steps(spec, dataset, world), int(spec.epochs * samples))
    assert len(steps) >= 6

    def read(indices: Array, weights: Array) -> tuple[Any, Any]:
        rows = indices[weights > 0]
        return parts.tensors(dataset.train.read(rows), dataset.train.labels[rows])

    code: dict[str, Any] = {}
    exec(compile(code_of(spec, KINDS[framework]), "code", "exec"), code)  # type: ignore[arg-type]
    means = code["train"](model, Loader(steps, samples, read), samples, parts.losses)
    trainer.train(steps)
    expected, found = parts.weights(trainer._model), parts.weights(model)  # type: ignore[attr-defined]
    first = parts.weights(parts.copied(new_trainer(spec)[0]._model))  # type: ignore[attr-defined]
    for one, other, begun in zip(expected, found, first, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=5e-5)
        assert np.abs(one - begun).max() > 1e-4, "nothing was learnt"
    assert bool(means) is average
    if average:
        with trainer._averaging.in_place(trainer._optimizer):  # type: ignore[attr-defined]
            averages = parts.weights(trainer._model)  # type: ignore[attr-defined]
        for one, mean in zip(averages, means, strict=True):
            np.testing.assert_allclose(np.asarray(mean), one, rtol=1e-4, atol=2e-5)


class InTorch:
    """What of a model is torch's."""

    @staticmethod
    def copied(model: Any) -> Any:
        import copy

        return copy.deepcopy(model)

    @staticmethod
    def tensors(inputs: Any, labels: Array) -> tuple[Any, Any]:
        import torch

        prepared = find_part("torch", "model").prepare_inputs(torch.from_numpy(inputs))
        return prepared, torch.from_numpy(labels)

    @staticmethod
    def losses(outputs: Any, labels: Any) -> Any:
        import torch

        return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")

    @staticmethod
    def weights(model: Any) -> list[Array]:
        return [one.detach().numpy().copy() for one in model.parameters()]


class InKeras:
    """What of a model is Keras's."""

    @staticmethod
    def copied(model: Any) -> Any:
        import keras

        other = keras.models.clone_model(model)
        other.set_weights(model.get_weights())
        return other

    @staticmethod
    def tensors(inputs: Any, labels: Array) -> tuple[Any, Any]:
        import tensorflow as tf

        prepared = find_part("tensorflow", "model").prepare_inputs(tf.convert_to_tensor(inputs))
        return prepared, labels

    @staticmethod
    def losses(outputs: Any, labels: Any) -> Any:
        import tensorflow as tf

        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)

    @staticmethod
    def weights(model: Any) -> list[Array]:
        return [one.numpy() for one in model.trainable_variables]


IN = {"torch": InTorch, "tensorflow": InKeras}
RATES = [
    {},
    {"schedule": "cosine", "final_rate": 0.2, "warmup_epochs": 1.5},
    {
        "schedule": "linear",
        "warmup_samples": 100,
        "num_workers": 4,
        "learning_rate_scaling": "sqrt",
    },
    {"schedule": "polynomial", "decay_power": 1.5, "final_rate": 0.1},
    {"schedule": "step", "step_at": [0.25, 0.5], "step_factor": 0.3},
    {"schedule": "one_cycle", "final_rate": 0.01},
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
    assert "Not in this code: label_smoothing 0.1, augment flip." in text
    assert "64 samples, in each of 2 processes" in text
    assert "raybench" not in text.partition('"""\n')[2]
