"""`compile` in both frameworks: the same run, and nothing of it on the training clock."""

import os
import shutil
from typing import Any

import numpy as np
import pytest
from local import new_trainer, small_spec, train
from one_worker import weights_of

from raybench.spec.run import DatasetSpec
from raybench.stats.clock import Ledger
from raybench.training.run import run
from raybench.training.steps import take_until, training_steps, warm_up_step

has_compiler = shutil.which(os.environ.get("CXX", "g++").split()[0]) is not None


@pytest.mark.all
@pytest.mark.skipif(not has_compiler, reason="torch compiles for CPUs with a C++ compiler")
def test_weights_compiled_by_torch_are_those_without() -> None:
    """For TensorFlow, `test_keras_losses` compares a compiled run with `model.fit`."""
    pytest.importorskip("torch")
    # Batches of 64 and an epoch's last of 44; bytes that become floats inside.
    settings = {"optimizer": "sgd", "learning_rate": 0.1, "accumulate": 2, "epochs": 1.0}
    plain = small_spec("torch", workload="mlp", dataset=DatasetSpec(limit=300), **settings)
    _, one = train(plain)
    _, other = train(plain.model_copy(update={"compile": "default"}))
    for ours, theirs in zip(weights_of(one, "torch"), weights_of(other, "torch"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    other.close()


@pytest.mark.parametrize(
    "changes",
    [{"augment": ["flip", "mixup"]}, {"accumulate": 2, "precision": "bf16"}],
    ids=["mixed", "passes"],
)
def test_what_the_warm_up_compiles_serves_all_steps(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    real, modes = torch.compile, list[str]()

    def compile_in_no_time(one: Any, *, mode: str, **given: Any) -> Any:
        modes.append(mode)
        return real(one, backend="eager", **given)

    # What would compile anew is found out before the part that takes long.
    monkeypatch.setattr(torch, "compile", compile_in_no_time)
    spec = small_spec("torch", compile="default", **changes)
    for _ in range(2):
        trainer, dataset, world = new_trainer(spec)
        trainer.warm_up(warm_up_step(spec, dataset, world))
        with torch.compiler.set_stance("fail_on_recompile"):
            trainer.train(take_until(training_steps(spec, dataset, world), 600)[0])
        trainer.close()
    assert modes == ["default"] * 2


def test_xla_is_given_full_batches_alone() -> None:
    tensorflow = pytest.importorskip("tensorflow")
    spec = small_spec("tensorflow", compile="xla", epochs=1.0)
    trainer, dataset, world = new_trainer(spec)
    real, sizes = trainer._compiled, set[int]()

    def seen(inputs: Any, labels: Any, *others: Any) -> Any:
        sizes.add(len(labels))
        return real.python_function(inputs, labels, *others)

    trainer._compiled = seen
    tensorflow.config.run_functions_eagerly(True)
    try:
        curve = list(run(spec, dataset, trainer, world, Ledger("setup")))
    finally:
        tensorflow.config.run_functions_eagerly(False)
    assert (curve[-1].samples, sizes) == (300, {64})
