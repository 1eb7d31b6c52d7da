"""A frozen backbone: the head alone learns, then all of it, alike in both frameworks."""

from typing import Any

import numpy as np
import pytest
from headed import PICTURES, SHAPE, Headed, weights_of
from local import new_trainer, small_spec

from raybench.models.shipped import mnist_small
from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.training.base import DistributedContext, Step, find_backend
from raybench.training.run import run
from raybench.training.steps import training_steps
from tests.refusals import refused

HEADED: dict[str, Any] = {"workload": Headed(), "dataset": PICTURES}
Curve = list[tuple[float, dict[str, np.ndarray]]]
"""Training loss and weights of each evaluation."""


def spec_of(framework: str, frozen_epochs: object = 1.0) -> RunSpec:
    """Three steps an epoch."""
    settings = {"batch_size_per_worker": 8, "learning_rate": 1e-2, "weight_decay": 1e-2}
    return small_spec(framework, epochs=2.0, frozen_epochs=frozen_epochs, **settings)


@pytest.fixture(scope="module")
def curves() -> dict[str, Curve]:
    """A run of each framework: frozen for the first of its two epochs."""
    found: dict[str, Curve] = {}
    for framework in ("torch", "tensorflow"):
        spec = spec_of(framework)
        trainer, _, world = new_trainer(spec, **HEADED)
        curve = [(0.0, weights_of(trainer))]
        for evaluation in run(spec, PICTURES, trainer, world, Ledger("setup")):
            curve.append((evaluation.train_loss, weights_of(trainer)))
        found[framework] = curve
    return found


def test_the_head_alone_learns_until_the_backbone_is_let_go(
    curves: dict[str, Curve], framework: str
) -> None:
    (_, start), (_, frozen), (_, whole) = curves[framework]
    assert changed(start, frozen) == {"head.weight", "head.bias"}
    assert changed(frozen, whole) == set(start)


def test_both_frameworks_go_the_same_way(curves: dict[str, Curve]) -> None:
    for (loss, ours), (other, theirs) in zip(curves["torch"], curves["tensorflow"], strict=True):
        assert loss == pytest.approx(other, rel=1e-5)
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("after", [pytest.param(1, marks=pytest.mark.all), 3])
def test_a_continued_run_goes_the_same_way(framework: str, after: int) -> None:
    """Continued within the frozen epoch, and at its end."""
    spec = spec_of(framework)
    whole, _, world = new_trainer(spec, **HEADED)
    whole.train(steps(spec, 0, after, world))
    state = whole.state()
    whole.train(steps(spec, after, 6, world))
    again, _, world = new_trainer(spec, **HEADED)
    again.restore(state)
    again.warm_up(steps(spec, after, after + 1, world)[0])
    again.train(steps(spec, after, 6, world))
    for name, value in weights_of(whole).items():
        np.testing.assert_allclose(weights_of(again)[name], value, rtol=1e-6, err_msg=name)


def test_all_freezes_to_the_end_and_none_says_which_samples() -> None:
    world = find_backend("torch").World()
    for epochs, frozen in (("all", [True] * 6), (0.5, [True, True] + [False] * 4), (0.0, [])):
        found = steps(spec_of("torch", frozen_epochs=epochs), 0, 6, world)
        assert [step.is_frozen for step in found] == (frozen or [False] * 6)


def test_a_model_whose_head_nobody_knows_is_refused(framework: str) -> None:
    with refused(ErrorCode.INVALID_MODEL, "frozen_epochs", "head (None)"):
        new_trainer(spec_of(framework), workload=mnist_small(SHAPE, 3), dataset=PICTURES)
    workload = Headed()
    workload.head = "haed"
    with refused(ErrorCode.INVALID_MODEL, "frozen_epochs", "head (haed)"):
        new_trainer(spec_of(framework), workload=workload, dataset=PICTURES)


def changed(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    return {name for name, one in before.items() if (one != after[name]).any()}


def steps(spec: RunSpec, first: int, last: int, world: DistributedContext) -> list[Step]:
    found = training_steps(spec, PICTURES, world, 8 * first)
    return [next(found)[0] for _ in range(last - first)]
