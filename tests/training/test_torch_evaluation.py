"""The order in which torch's convolutions see images of one channel in evaluations."""

import numpy as np
import pytest
from local import small_spec

from raybench.models.base import Workload
from raybench.models.find import find_workload, load_workload_dataset
from raybench.stats.clock import Ledger
from raybench.training.base import find_backend
from raybench.training.run import run
from raybench.training.steps import take_until, training_steps

torch = pytest.importorskip("torch")


class Viewing(Workload):
    """A user's network that needs what its convolution returns to be contiguous."""

    name = "viewing"
    input_shape = (28, 28, 1)
    num_classes = 10

    def build_torch(self) -> torch.nn.Module:
        class Flat(torch.nn.Module):
            def forward(self, images: torch.Tensor) -> torch.Tensor:
                return images.view(len(images), -1)

        conv = torch.nn.Conv2d(1, 4, 5, stride=4)
        return torch.nn.Sequential(conv, Flat(), torch.nn.Linear(4 * 6 * 6, 10))


def test_channels_last_changes_the_order_and_not_the_logits() -> None:
    from raybench.training.torch.model import build_model, prepare_inputs

    model = build_model(find_workload("mnist_small"), 0).eval()
    images = torch.from_numpy(
        np.random.default_rng(5).integers(0, 256, (8, 28, 28, 1), dtype=np.uint8)
    )
    usual, last = (prepare_inputs(images, channels_last=one) for one in (False, True))
    assert model[0](usual).is_contiguous()
    assert model[0](last).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(last), model(usual))


def test_a_users_model_may_view_what_its_convolutions_return() -> None:
    spec = small_spec("torch", epochs=1.0)
    _, dataset = load_workload_dataset(spec.workload, spec.dataset)
    backend = find_backend("torch")
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
    trainer = backend.Trainer(spec, Viewing(), dataset, world)
    (last,) = run(spec, dataset, trainer, world, Ledger("setup"))
    assert last.value > 0.15


def test_rows_and_weights_of_an_interval_reach_the_device_at_once() -> None:
    from raybench.training.torch.parts import InMemoryPart

    spec = small_spec("torch", batch_size_per_worker=8, accumulate=3)
    dataset = load_workload_dataset(spec.workload, spec.dataset)[1]
    world = find_backend("torch").join(rank=0, num_workers=1, device="cpu", num_threads=1)
    steps = take_until(training_steps(spec, dataset, world), 400)[0]
    part = InMemoryPart(torch.arange(len(dataset.train)), torch.from_numpy(dataset.train.labels))
    batches = list(part.batches(steps))
    passes = [rows for step in steps for rows in step.indices]
    for batch, rows in zip(batches, passes, strict=True):
        np.testing.assert_array_equal(batch.inputs, rows)
        np.testing.assert_array_equal(batch.labels, dataset.train.labels[rows])
    for batch, weights in zip(batches, [one for s in steps for one in s.weights], strict=True):
        np.testing.assert_array_equal(batch.weights, weights)
    assert len({batch.weights.untyped_storage().data_ptr() for batch in batches}) == 1
