"""Recorded step times and other measurements of the steps of a single process."""

import math
import time
from typing import Any, ClassVar

import numpy as np
from local_runs import new_trainer, small_spec, train
from regularised import Regularised
from worker_script import weights_of

from raybench.spec.run import DatasetSpec, RunSpec
from raybench.training.run import Recording, evenness
from raybench.training.samples import make_step

STALL_S = 0.3


class Stalling(Regularised):
    """Workload whose loss sleeps in the calls of `stalls`; `calls` counts them."""

    calls: ClassVar[int] = 0
    stalls: ClassVar[tuple[int, ...]] = ()

    def torch_loss(self, outputs: Any, labels: Any) -> Any:
        from torch.nn import functional

        self._count()
        return functional.cross_entropy(outputs, labels, reduction="none")

    def keras_loss(self, outputs: Any, labels: Any) -> Any:
        import keras
        import tensorflow as tf

        def stall() -> int:
            self._count()
            return 0

        counted = tf.py_function(stall, [], tf.int32)
        with tf.control_dependencies([counted]):
            return keras.losses.sparse_categorical_crossentropy(
                labels, tf.identity(outputs), from_logits=True
            )

    @staticmethod
    def _count() -> None:
        if Stalling.calls in Stalling.stalls:
            time.sleep(STALL_S)
        Stalling.calls += 1


def spec_of(framework: str, **changes: Any) -> RunSpec:
    content = {
        "dataset": DatasetSpec(limit=64),
        "batch_size_per_worker": 8,
        "epochs": 2.0,
        "record_steps": True,
    }
    return small_spec(framework, **(content | changes))


def test_evenness_compares_the_workers_in_each_step():
    nan = math.nan
    assert evenness(np.array([[1.0, 1.0], [1.0, 1.0]])) == 1
    assert evenness(np.array([[1.0, 3.0], [2.0, 3.0], [4.0, 4.0]])) == 0.5
    # A step that one worker did not time is ignored.
    assert evenness(np.array([[1.0, nan], [2.0, 9.0]])) == 0.5
    assert evenness(np.array([[nan], [2.0]])) is None
    assert evenness(np.array([[1.0, 2.0]])) is None


def test_slow_step_changes_the_maximum_only(framework):
    spec = spec_of(framework)
    trainer, dataset, world = new_trainer(spec, workload=Stalling())
    steps = [make_step(spec, np.arange(8), world, 1e-3)] * 40
    Stalling.stalls = ()
    trainer.warm_up(steps[0])
    Stalling.calls, Stalling.stalls = 0, (17,)
    recording = Recording(spec, trainer, world, dataset)
    recording.begin()
    trainer.train(steps)
    step_times = recording.end(steps)["steps"]
    trainer.close()
    assert Stalling.calls == step_times.num == 40
    assert step_times.max_s >= STALL_S
    assert max(step_times.median_s, step_times.p95_s) < step_times.max_s


def test_recording_changes_no_weight(framework):
    Stalling.stalls = ()
    plain, trainer = train(spec_of(framework, record_steps=False), workload=Stalling())
    expected = weights_of(trainer, framework)
    curve, trainer = train(spec_of(framework), workload=Stalling())
    np.testing.assert_equal(weights_of(trainer, framework), expected)
    assert [point.value for point in curve] == [point.value for point in plain]
    assert all(point.steps is None and point.memory_peak_bytes is None for point in plain)
    for point in curve:
        assert point.steps.num == 8
        assert point.memory_peak_bytes
        assert point.memory_peak_bytes > 50e6
        # A single worker exchanges nothing and has no other worker to compare with.
        assert (point.bytes_exchanged_per_step, point.noise_scale) == (0, None)
        assert point.evenness is None
        assert point.gpu_utilization is None
        # Two dense layers: outputs, gradients of weights, gradients of the inputs of the second.
        operations = 4 * (64 * 32 + 32 * 10) + 2 * 32 * 10
        assert point.flops_per_sample == (operations if framework == "torch" else None)
        assert point.tokens_per_sample is None
