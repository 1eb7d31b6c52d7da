"""Frozen backbone: first only the head learns, then the whole model, equally in both frameworks."""

import numpy as np
import pytest
from headed_model import IMAGES, SHAPE, Headed, weights_of
from local_runs import new_trainer, small_spec

from raybench.models.shipped import mnist_small
from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.stats.curve_model import Curve
from raybench.training.base import DistributedContext, Step, find_backend
from raybench.training.run import run
from raybench.training.samples import training_steps
from tests.refusals import refused

HEADED = {"workload": Headed(), "dataset": IMAGES}


def spec_of(framework: str, frozen_epochs: object = 1.0) -> RunSpec:
    """Return a spec of two epochs of three steps."""
    settings = {"batch_size_per_worker": 8, "learning_rate": 1e-2, "weight_decay": 1e-2}
    return small_spec(framework, epochs=2.0, frozen_epochs=frozen_epochs, **settings)


@pytest.fixture(scope="module")
def curves() -> dict[str, Curve]:
    """Loss and weights at each evaluation of a run of each framework, frozen in its first epoch."""
    curves = {}
    for framework in ("torch", "tensorflow"):
        spec = spec_of(framework)
        trainer, _, world = new_trainer(spec, **HEADED)
        curve = [(0.0, weights_of(trainer))]
        for evaluation in run(spec, IMAGES, trainer, world, Ledger("setup")):
            curve.append((evaluation.train_loss, weights_of(trainer)))
        curves[framework] = curve
    return curves


def test_only_the_head_learns_while_the_backbone_is_frozen(curves, framework):
    (_, start), (_, after_frozen_epoch), (_, at_the_end) = curves[framework]
    assert changed(start, after_frozen_epoch) == {"head.weight", "head.bias"}
    assert changed(after_frozen_epoch, at_the_end) == set(start)


def test_frozen_runs_of_both_frameworks_are_equal(curves):
    pairs = zip(curves["torch"], curves["tensorflow"], strict=True)
    for (torch_loss, torch_weights), (keras_loss, keras_weights) in pairs:
        assert torch_loss == pytest.approx(keras_loss, rel=1e-5)
        for name, array in keras_weights.items():
            expected = torch_weights[name]
            np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("after", [pytest.param(1, marks=pytest.mark.all), 3])
def test_resumed_frozen_run_equals_an_uninterrupted_one(framework, after):
    """Resumed within the frozen epoch, and at its end."""
    spec = spec_of(framework)
    whole, _, world = new_trainer(spec, **HEADED)
    whole.train(steps(spec, 0, after, world))
    state = whole.state()
    whole.train(steps(spec, after, 6, world))
    resumed, _, world = new_trainer(spec, **HEADED)
    resumed.restore(state)
    resumed.warm_up(steps(spec, after, after + 1, world)[0])
    resumed.train(steps(spec, after, 6, world))
    for name, expected in weights_of(whole).items():
        np.testing.assert_allclose(weights_of(resumed)[name], expected, rtol=1e-6, err_msg=name)


def test_frozen_epochs_decide_which_steps_are_frozen():
    world = find_backend("torch").World()
    for epochs, frozen in (("all", [True] * 6), (0.5, [True, True] + [False] * 4), (0.0, [])):
        first_steps = steps(spec_of("torch", frozen_epochs=epochs), 0, 6, world)
        assert [step.is_frozen for step in first_steps] == (frozen or [False] * 6)


def test_frozen_epochs_without_a_known_head_are_refused(framework):
    with refused(ErrorCode.INVALID_MODEL, "frozen_epochs", "head (None)"):
        new_trainer(spec_of(framework), workload=mnist_small(SHAPE, 3), dataset=IMAGES)
    workload = Headed()
    workload.head = "haed"
    with refused(ErrorCode.INVALID_MODEL, "frozen_epochs", "head (haed)"):
        new_trainer(spec_of(framework), workload=workload, dataset=IMAGES)


def changed(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    """Return the names of the arrays that differ."""
    return {name for name, array in before.items() if (array != after[name]).any()}


def steps(spec: RunSpec, first: int, last: int, world: DistributedContext) -> list[Step]:
    """Return the training steps from `first` to before `last`."""
    remaining = training_steps(spec, IMAGES, world, 8 * first)
    return [next(remaining)[0] for _ in range(last - first)]
