"""Warm-up steps are taken on data of their own: none of the training data is seen before the clock
runs, and the first step that counts starts from untouched weights (studies 4 and 5)."""

from local import small_spec
from on_demand_data import Kept, on_demand

from raybench.models.find import load_workload_dataset
from raybench.training.base import find_backend
from raybench.training.steps import training_steps, warm_up_step


def test_the_warm_up_reads_no_sample_that_is_trained_on(framework: str) -> None:
    spec = small_spec(framework, batch_size_per_worker=32)
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
    dataset = on_demand(dataset)
    backend = find_backend(framework)
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
    trainer = backend.Trainer(spec, workload, dataset, world)
    full, smaller = (warm_up_step(spec, dataset, world, num_samples=size) for size in (32, 5))
    trained: list[int] = []
    train = trainer.train
    trainer.train = lambda steps: trained.append(steps[0].indices.size) or train(steps)
    trainer.warm_up(full, smaller)
    assert trained == [32, 32, 5, 5]
    trainer.train = train
    inputs = dataset.train.inputs
    assert isinstance(inputs, Kept)
    assert inputs.asked == []
    step, _ = next(training_steps(spec, dataset, world))
    trainer.train([step])
    assert [list(rows) for rows in inputs.asked] == [list(step.indices[0])]
    trainer.close()
