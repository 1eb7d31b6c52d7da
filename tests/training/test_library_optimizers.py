"""Optimizers of libraries, such as `torch:SGD`: invalid options and weight decay.

`test_checkpoints` and `test_worker_equality` train with them.
"""

from typing import Any

import numpy as np
import pytest
from local_runs import new_trainer, small_spec

from raybench.spec.errors import ErrorCode
from raybench.training.base import find_part
from raybench.training.steps import take_until, training_steps
from tests.refusals import refused

LIBRARIES = {"torch": "torch", "tensorflow": "keras"}
OWN_OPTIMIZER = """
import torch

class Plain(torch.optim.Optimizer):
    def __init__(self, params, lr, *, strength):
        super().__init__(params, {"lr": lr, "strength": strength})

    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(parameter.grad, alpha=group["lr"] * group["strength"])
"""


def train_one_step(framework: str, name: str, **changes: Any) -> None:
    spec = small_spec(framework, optimizer=f"{LIBRARIES[framework]}:{name}", **changes)
    trainer, dataset, world = new_trainer(spec)
    trainer.train(take_until(training_steps(spec, dataset, world), 1)[0])
    trainer.close()


@pytest.mark.parametrize(
    ("name", "options", "code", "names"),
    [
        ("SGDD", {}, ErrorCode.UNKNOWN_NAME, ["SGDD", "'SGD'"]),
        ("nowhere_at_all.Lion", {}, ErrorCode.USER_CODE, ["nowhere_at_all"]),
        ("SGD", {"momentun": 0.9}, ErrorCode.UNKNOWN_KEY, ["optimizer_options.momentun"]),
        ("SGD", {"momentum": -0.5}, ErrorCode.INVALID_VALUE, ["SGD", "momentum=-0.5"]),
    ],
)
def test_invalid_optimizer_or_option_is_refused(
    framework: str, name: str, options: dict[str, Any], code: ErrorCode, names: list[str]
) -> None:
    with refused(code, *names):
        train_one_step(framework, name, optimizer_options=options)


def test_weight_decay_for_a_class_without_it_is_refused() -> None:
    pytest.importorskip("torch")
    with refused(ErrorCode.INVALID_VALUE, "torch:SparseAdam", "weight_decay"):
        train_one_step("torch", "SparseAdam", weight_decay=0.1)


def test_optimizer_class_in_the_current_folder_is_found(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "plain_steps.py").write_text(OWN_OPTIMIZER)
    monkeypatch.chdir(tmp_path)
    train_one_step("torch", "plain_steps.Plain", optimizer_options={"strength": 0.5})
    with refused(ErrorCode.MISSING, "optimizer_options.strength"):
        train_one_step("torch", "plain_steps.Plain")


def test_weight_decay_excludes_biases(framework: str) -> None:
    """With a gradient of 0, a step is the weight decay only."""
    optim, settings = find_part(framework, "optim"), {"learning_rate": 0.1, "weight_decay": 0.1}
    if framework == "torch":
        import torch

        model = torch.nn.Linear(3, 2)
        before = [parameter.detach().numpy().copy() for parameter in model.parameters()]
        optimizer = optim.build_optimizer("torch:AdamW", model, **settings)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        weight, bias = (parameter.detach().numpy() for parameter in model.parameters())
    else:
        import keras

        dense = keras.layers.Dense(2, bias_initializer="ones")
        model = keras.Sequential([keras.Input((3,)), dense])
        before = model.get_weights()
        optimizer = optim.build_optimizer("keras:AdamW", model, **settings)
        optimizer.build(model.trainable_variables)
        optimizer.apply([np.zeros_like(array) for array in before], model.trainable_variables)
        weight, bias = model.get_weights()
        default_optimizer = optim.build_optimizer("keras:AdamW", model, learning_rate=0.1)
        assert default_optimizer.weight_decay is None, "Keras's own default is 0.004"
    np.testing.assert_allclose(weight, before[0] * (1 - 0.1 * 0.1), rtol=1e-6)
    np.testing.assert_array_equal(bias, before[1])
