"""The run loop with real models of both frameworks, in one process without Ray."""

import functools
import math
import time
from typing import Any

import numpy as np
import pytest
from local_runs import UNLIMITED, first_steps, new_trainer, small_spec, train
from task_data import LazyArray, on_demand
from worker_script import flat_weights

from raybench.models.find import load_workload_dataset
from raybench.spec.run import DatasetSpec
from raybench.stats.clock import WORKER_PHASES, Ledger
from raybench.stats.record import Evaluation
from raybench.training.base import BaseTrainer, find_part
from raybench.training.samples import warm_up_step

MLP: dict[str, Any] = {
    "workload": "mlp",
    "dataset": DatasetSpec(limit=300, validation_size=60),
}


@functools.cache
def default_run(framework: str) -> tuple[list[Evaluation], BaseTrainer]:
    """Return curve and trainer of a run of `small_spec`, trained once."""
    return train(small_spec(framework))


def test_curve_of_a_run(framework):
    curve, trainer = default_run(framework)
    assert [point.samples for point in curve] == [300, 600, 900]
    assert [point.epoch for point in curve] == [1.0, 2.0, 3.0]
    assert [point.stop for point in curve] == [None, None, "epochs"]
    assert curve[-1].train_loss < curve[0].train_loss
    assert curve[-1].value > 0.5
    assert curve[-1].value_error is None, "the error of an accuracy is binomial"
    assert trainer.num_parameters == 402_442
    seconds = [point.train_s for point in curve]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


def test_value_error_of_a_loss_is_the_standard_error(framework):
    objective = UNLIMITED.model_copy(update={"metric": "loss", "direction": "min"})
    spec = small_spec(framework, objective=objective, epochs=1.0, **MLP)
    curve, trainer = train(spec)
    num_rows = len(load_workload_dataset(spec.workload, spec.dataset)[1].validation)
    rows = [trainer.evaluate("validation", slice(n, n + 1)).value for n in range(num_rows)]
    assert curve[-1].value == pytest.approx(np.mean(rows), rel=1e-4)
    assert curve[-1].value_error == pytest.approx(np.std(rows) / len(rows) ** 0.5, rel=1e-3)


def test_runs_of_equal_specs_are_equal(framework):
    """No state remains from an earlier run or from the warm-up."""
    first, other, second = (
        train(small_spec(framework, optimizer=name, seed=seed, epochs=1.0, **MLP))[0]
        for name, seed in (("adam", 0), ("sgd", 5), ("adam", 0))
    )
    assert first[0].train_loss == pytest.approx(second[0].train_loss, abs=1e-6)
    assert first[0].value == second[0].value
    assert abs(first[0].train_loss - other[0].train_loss) > 1e-4


def test_ledger_phases_sum_to_the_wall_time_of_a_run(framework):
    moments = [time.perf_counter()]
    ledger = Ledger("setup")
    moments.append(time.perf_counter())
    curve, _ = train(small_spec(framework, **MLP), ledger)
    moments.append(time.perf_counter())
    total = sum(ledger.seconds(phase) for phase in WORKER_PHASES)
    moments.append(time.perf_counter())
    assert moments[2] - moments[1] <= total <= moments[3] - moments[0]
    last = curve[-1].ledger
    assert last["train"] == pytest.approx(curve[-1].train_s)
    assert 0 < last["input"] < last["train"]
    assert last["compile"] > 0
    assert last["eval"] > 0


@pytest.mark.parametrize(
    ("framework", "precision"), [("torch", "fp32"), ("torch", "fp16"), ("tensorflow", "fp16")]
)
def test_nan_fails_the_run(framework, precision):
    diverging = {"optimizer": "sgd", "learning_rate": 1e20, "precision": precision}
    spec = small_spec(framework, **diverging, epochs=50.0, **MLP)
    curve, _ = train(spec)
    assert curve[-1].failure == "nan"
    assert not math.isfinite(curve[-1].train_loss)
    assert len(curve) < 50


def test_last_update_that_breaks_the_weights_fails_the_run(framework):
    spec = small_spec(framework, optimizer="adam", learning_rate=1e38, epochs=0.01, **MLP)
    (only,), _ = train(spec)
    assert math.isfinite(only.train_loss), "it was computed before the update"
    assert (only.failure, only.stop) == ("nan", None)


def test_half_precision_learns(framework):
    curve, _ = train(small_spec(framework, precision="bf16"))
    assert curve[-1].value > 0.5
    assert curve[0].train_loss != default_run(framework)[0][0].train_loss, "differs from fp32"


def test_fp16_step_with_overflowing_gradients_is_skipped(framework):
    settings = {"weight_decay": 0.1, "ema_decay": 0.9, "clip_norm": 1.0, "epochs": 1.0}
    spec = small_spec(framework, precision="fp16", **settings)
    trainer, dataset, world = new_trainer(spec)
    trainer.warm_up(warm_up_step(spec, dataset, world))
    steps = first_steps(spec, dataset, world, 600)
    assert trainer.skipped_steps() == 0  # the warm-up does not count
    before, is_taken_by_step = flat_weights(trainer, framework), []
    for step in steps[:8]:
        trainer.train([step])
        after = flat_weights(trainer, framework)
        is_taken_by_step.append((after != before).any())
        before = after
    # The first loss scale is too large for this network, but a half, a quarter, ... of it is not.
    assert 1 <= is_taken_by_step.count(False) <= 4
    assert trainer.skipped_steps() == is_taken_by_step.count(False)
    fp32_trainer, _, _ = new_trainer(spec.model_copy(update={"precision": "fp32"}))
    fp32_trainer.train(
        [step for step, is_taken in zip(steps, is_taken_by_step, strict=False) if is_taken]
    )
    np.testing.assert_allclose(before, flat_weights(fp32_trainer, framework), atol=0.02)
    curve, run_trainer = train(spec)
    assert curve[-1].skipped_steps == run_trainer.skipped_steps() >= trainer.skipped_steps()


def test_infinite_gradient_makes_all_clipped_gradients_nan():
    """As in tf.clip_by_global_norm, so that the frameworks agree."""
    torch = pytest.importorskip("torch")
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    for parameter, gradient in zip(parameters, (math.inf, 1.0), strict=True):
        parameter.grad = torch.tensor([gradient])
    find_part("torch", "optim").clip_gradients(parameters, max_norm=1.0)
    assert all(math.isnan(parameter.grad.item()) for parameter in parameters)


@pytest.mark.parametrize(
    ("framework", "augment"), [("torch", []), ("torch", ["flip"]), ("tensorflow", ["flip"])]
)
def test_warm_up_reads_no_training_sample(framework, augment):
    spec = small_spec(framework, batch_size_per_worker=32, augment=augment, **MLP)
    dataset = on_demand(load_workload_dataset(spec.workload, spec.dataset)[1])
    trainer, _, world = new_trainer(spec, dataset=dataset)
    full, smaller = (warm_up_step(spec, dataset, world, num_samples=size) for size in (32, 5))
    trained: list[int] = []
    train = trainer.train
    trainer.train = lambda steps: trained.append(steps[0].indices.size) or train(steps)
    trainer.warm_up(full, smaller)
    assert trained == [32, 32, 5, 5]
    trainer.train = train
    inputs = dataset.train.inputs
    assert isinstance(inputs, LazyArray)
    assert inputs.requests == []
    (step,) = first_steps(spec, dataset, world, 1)
    trainer.train([step])
    assert [list(rows) for rows in inputs.requests] == [list(step.indices[0])]
    trainer.close()
