"""Averaged weights, clipped gradients and smoothed labels: both frameworks compared with numpy."""

import numpy as np
from framework_models import assert_all_close, model_module, to_framework, to_numpy
from local_runs import first_steps, new_trainer, small_spec
from worker_script import flat_weights, weights_of

from raybench.models.base import Workload, refuse_label_smoothing
from raybench.models.shipped import shipped_workload
from raybench.spec.errors import ErrorCode
from raybench.spec.metric import ACCURACY
from raybench.spec.run import DatasetSpec, RunSpec
from tests.refusals import refused

ROWS = slice(0, 60)


def spec_of(framework: str, **changes: object) -> RunSpec:
    return small_spec(framework, workload="mlp", dataset=DatasetSpec(limit=300), **changes)


def trainer_of(spec: RunSpec):
    trainer, dataset, world = new_trainer(spec)
    return trainer, first_steps(spec, dataset, world, 4 * spec.global_batch_size)


def test_moving_average_is_evaluated_and_saved(framework):
    spec = spec_of(framework, ema_decay=0.8)
    trainer, steps = trainer_of(spec)
    trainer.warm_up(steps[0])
    weights_by_step = []
    for step in steps:
        trainer.train([step])
        weights_by_step.append(weights_of(trainer, framework))
    shares = 0.8 ** np.arange(len(weights_by_step))[::-1]
    shares /= shares.sum()
    expected = [
        np.tensordot(shares, np.stack(arrays), 1) for arrays in zip(*weights_by_step, strict=True)
    ]
    averaged, saved = trainer.evaluate("validation", ROWS), trainer.save()
    np.testing.assert_equal(weights_of(trainer, framework), weights_by_step[-1])
    plain, _ = trainer_of(spec_of(framework))
    plain.load(saved)
    assert_all_close(weights_of(plain, framework), expected, rtol=1e-5, atol=1e-7)
    assert plain.evaluate("validation", ROWS) == averaged
    trainer.load(saved)
    assert trainer.evaluate("validation", ROWS) == averaged, "loaded weights are evaluated"
    trainer.train(steps[:1])
    assert trainer.evaluate("validation", ROWS) != averaged


def test_gradient_of_a_step_is_clipped(framework):
    """The norm is that of all passes: SGD without momentum at rate 1 moves by the gradient."""
    settings = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 1.0}
    moves = []
    for clipping in ({}, {"clip_norm": 0.01}, {"clip_norm": 1e6}):
        passes = {"accumulate": 2, "batch_size_per_worker": 16}
        trainer, steps = trainer_of(spec_of(framework, **settings, **passes, **clipping))
        before = flat_weights(trainer, framework)
        trainer.train(steps[:1])
        moves.append(flat_weights(trainer, framework) - before)
    unclipped, clipped, barely_clipped = moves
    assert np.linalg.norm(unclipped) > 0.1
    np.testing.assert_allclose(np.linalg.norm(clipped), 0.01, rtol=1e-3)
    np.testing.assert_allclose(clipped, unclipped * 0.01 / np.linalg.norm(unclipped), atol=1e-6)
    np.testing.assert_array_equal(barely_clipped, unclipped)


def test_labels_are_smoothed_in_training_only(framework):
    workload = shipped_workload("mnist_small")
    outputs = np.random.default_rng(0).normal(size=(6, 10)).astype(np.float32)
    labels = np.arange(6)
    tensors = [to_framework(array, framework) for array in (outputs, labels)]
    log_probabilities = outputs - np.log(np.exp(outputs.astype(np.float64)).sum(1, keepdims=True))
    expected = -0.9 * log_probabilities[range(6), labels] - 0.1 * log_probabilities.mean(1)
    losses = model_module(framework).Losses(workload, ACCURACY, smoothing=0.1)
    training_losses = losses.training_losses(*tensors, ())
    evaluation_losses, _ = losses.losses_and_values(*tensors)
    np.testing.assert_allclose(to_numpy(training_losses), expected, rtol=1e-5)
    np.testing.assert_allclose(
        to_numpy(evaluation_losses), -log_probabilities[range(6), labels], rtol=1e-5
    )


def test_label_smoothing_with_a_loss_of_the_user_is_refused(framework):
    class Own(Workload):
        name = "own"
        torch_loss = keras_loss = lambda self, outputs, labels: outputs

    spec = small_spec(framework, label_smoothing=0.1)
    refuse_label_smoothing(spec, shipped_workload("mnist_small"))
    with refused(ErrorCode.CONFLICT, "label_smoothing", "own"):
        refuse_label_smoothing(spec, Own())
    Own.torch_loss = Own.keras_loss = None
    Own.task = "regression"
    with refused(ErrorCode.CONFLICT, "label_smoothing", "own"):
        refuse_label_smoothing(spec, Own())
