"""Data parallelism changes who computes, not what: 2 workers x B is 1 worker x 2B."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from group import run_two
from local import FRAMEWORKS, alone
from one_worker import outcome
from optim_reference import IN_GROUPS, TOLERANCE, Reference, gradients, initial_weights, rates

from raybench.cluster.protocol import fault_of
from raybench.spec.errors import StudyError
from raybench.spec.run import DatasetSpec, RunSpec

SCRIPT = Path(__file__).with_name("one_worker.py")
CASES = [("sgd", 1), ("lamb", 2)]
LIBRARYS = {"torch": ("torch:NAdam", 1), "tensorflow": ("keras:Nadam", 1)}
MORE = {
    "sgd": {"clip_norm": 0.5, "ema_decay": 0.9, "label_smoothing": 0.1},
    "torch:NAdam": {"optimizer_options": {"betas": [0.8, 0.99], "eps": 1e-3}, "weight_decay": 0.01},
    "keras:Nadam": {"optimizer_options": {"beta_1": 0.8, "epsilon": 1e-3}, "weight_decay": 0.01},
}
# 303 samples: the last global batch of an epoch is partial and does not split evenly.
DATASET = DatasetSpec(image_size=28, limit=303)


def spec_of(framework: str, optimizer: str, accumulate: int, num_workers: int) -> RunSpec:
    return RunSpec(
        framework=framework,
        num_workers=num_workers,
        batch_size_per_worker=32 // num_workers,
        accumulate=accumulate,
        optimizer=optimizer,
        learning_rate=0.01,
        dataset=DATASET,
        **MORE.get(optimizer, {}),
    )


def two_workers(framework: str, folder: Path) -> Path:
    """Train every case in one group of two processes; return the folder of what they saved."""
    specs = [spec_of(framework, *case, num_workers=2) for case in [*CASES, LIBRARYS[framework]]]
    arguments = json.dumps([spec.document() for spec in specs])
    run_two([str(SCRIPT), arguments], folder)
    return folder


def one_worker(spec: RunSpec) -> dict[str, np.ndarray]:
    return outcome(spec, alone(spec.framework))


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.all)])
def test_two_workers_equal_one_with_twice_the_batch(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    two_workers(framework, tmp_path)
    for index, case in enumerate([*CASES, LIBRARYS[framework]]):
        one = one_worker(spec_of(framework, *case, num_workers=1))
        two, other = (dict(np.load(tmp_path / f"{index}-{rank}.npz")) for rank in range(2))
        for name in two:
            np.testing.assert_array_equal(two[name], other[name])
        assert one["steps"] == two["steps"]
        # Float32 sums in another order, through 3 epochs of an adaptive optimizer.
        np.testing.assert_allclose(one["sums"][:2], two["sums"][:2], rtol=1e-4)
        assert one["sums"][3] == two["sums"][3] == 360  # every validation sample, once
        assert abs(one["sums"][2] - two["sums"][2]) <= 1
        arrays = [name for name in one if name.startswith("weights")]
        assert len(arrays) == 6
        for name in arrays:
            np.testing.assert_allclose(one[name], two[name], atol=2e-5, rtol=1e-3)
    if framework == "tensorflow":
        check_the_paper(tmp_path)


DIFFERING = """
import sys
from pathlib import Path
from group_worker import join, leave
from test_probe import WideByRank
from raybench.training.base import find_backend
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec
class Own(WideByRank):
    rank = int(sys.argv[2])
framework, rank, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
world = join(framework, rank, sys.argv[4:])
spec = RunSpec(framework=framework, num_workers=2)
try:
    find_backend(framework).Trainer(spec, Own(), None, world)
except UserError as error:
    (folder / f"said-{rank}").write_text(str(error))
leave(framework, rank, folder)
"""


@pytest.mark.slow
@pytest.mark.all
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_workers_that_build_different_models_say_so_on_every_rank(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SCRIPT.parent), *filter(None, sys.path)]))
    run_two(["-c", DIFFERING, framework], tmp_path)
    one, other = ((tmp_path / f"said-{rank}").read_text() for rank in range(2))
    assert one == other
    fault = fault_of(f"UserError: {one}")
    assert isinstance(fault, StudyError)
    assert str(fault).startswith("Workers build different models: ")


def check_the_paper(folder: Path) -> None:
    """Every Keras optimizer ends where its paper does, on both workers, in tf.function."""
    for rank in range(2):
        weights = np.load(folder / f"paper-{rank}.npz")
        for name in IN_GROUPS:
            reference = Reference(name, initial_weights(), weight_decay=0.05, outputs_last=True)
            for grads, rate in zip(gradients(), rates(name), strict=True):
                expected = reference.step(grads, rate)
            for index, values in enumerate(expected):
                np.testing.assert_allclose(weights[f"{name}{index}"], values, **TOLERANCE)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_accumulation_equals_one_large_batch(framework: str) -> None:
    def spec(accumulate: int) -> RunSpec:
        return RunSpec(
            framework=framework,
            batch_size_per_worker=48 // accumulate,
            accumulate=accumulate,
            optimizer="sgd",
            learning_rate=0.01,
            dataset=DATASET,
        )

    whole, parts = one_worker(spec(1)), one_worker(spec(3))
    assert whole["steps"] == parts["steps"]
    np.testing.assert_allclose(whole["sums"], parts["sums"], rtol=1e-4, atol=1)
    np.testing.assert_allclose(whole["weights0"], parts["weights0"], atol=2e-5, rtol=1e-3)
