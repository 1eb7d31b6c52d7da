"""`compile` in both frameworks: equal weights, and no compilation on the training clock."""

import os
import shutil
from typing import Any

import pytest
from framework_models import assert_all_close
from local_runs import first_steps, new_trainer, small_spec, train
from worker_script import weights_of

from raybench.spec.run import DatasetSpec
from raybench.stats.clock import Ledger
from raybench.training.run import run
from raybench.training.samples import warm_up_step

has_compiler = shutil.which(os.environ.get("CXX", "g++").split()[0]) is not None


@pytest.mark.all
@pytest.mark.skipif(not has_compiler, reason="torch compiles for CPUs with a C++ compiler")
def test_compiled_torch_run_has_the_weights_of_a_plain_one():
    """For TensorFlow, `test_keras_losses` compares a compiled run with `model.fit`."""
    pytest.importorskip("torch")
    # Batches of 64 and a last one of 44; the inputs are bytes that the model converts.
    settings = {"optimizer": "sgd", "learning_rate": 0.1, "accumulate": 2, "epochs": 1.0}
    spec = small_spec("torch", workload="mlp", dataset=DatasetSpec(limit=300), **settings)
    _, plain_trainer = train(spec)
    _, compiled_trainer = train(spec.model_copy(update={"compile": "default"}))
    compiled_weights = weights_of(compiled_trainer, "torch")
    assert_all_close(compiled_weights, weights_of(plain_trainer, "torch"), atol=1e-5)
    compiled_trainer.close()


@pytest.mark.parametrize(
    "changes",
    [{"augment": ["flip", "mixup"]}, {"accumulate": 2, "precision": "bf16"}],
    ids=["mixed", "passes"],
)
def test_steps_use_what_the_warm_up_compiled(monkeypatch, changes):
    torch = pytest.importorskip("torch")
    original, modes = torch.compile, []

    def compile_without_backend(model: Any, *, mode: str, **options: Any) -> Any:
        modes.append(mode)
        return original(model, backend="eager", **options)

    # Dynamo, which decides about recompilation, runs before the slow backend.
    monkeypatch.setattr(torch, "compile", compile_without_backend)
    spec = small_spec("torch", compile="default", **changes)
    for _ in range(2):
        trainer, dataset, world = new_trainer(spec)
        trainer.warm_up(warm_up_step(spec, dataset, world))
        with torch.compiler.set_stance("fail_on_recompile"):
            trainer.train(first_steps(spec, dataset, world, 600))
        trainer.close()
    assert modes == ["default"] * 2


def test_xla_gets_full_batches_only():
    tensorflow = pytest.importorskip("tensorflow")
    spec = small_spec("tensorflow", compile="xla", epochs=1.0)
    trainer, dataset, world = new_trainer(spec)
    compiled, sizes = trainer._compiled, set()

    def record_size(inputs: Any, labels: Any, *others: Any) -> Any:
        sizes.add(len(labels))
        return compiled.python_function(inputs, labels, *others)

    trainer._compiled = record_size
    tensorflow.config.run_functions_eagerly(True)
    try:
        curve = list(run(spec, dataset, trainer, world, Ledger("setup")))
    finally:
        tensorflow.config.run_functions_eagerly(False)
    assert (curve[-1].samples, sizes) == (300, {64})
