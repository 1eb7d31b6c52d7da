"""Complex weights in torch are trained like pairs of real numbers."""

from typing import Any

import numpy as np
import pytest
from framework_models import assert_all_close
from local_runs import first_steps, new_trainer, small_spec

from raybench.data.dataset import Dataset, Split
from raybench.models.base import Workload
from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from tests.refusals import refused

torch = pytest.importorskip("torch")
nn = torch.nn
DRAWN = np.random.default_rng(0)
SIGNAL = DRAWN.normal(size=(96, 16)).astype(np.float32)
SMOOTH = np.fft.irfft(np.fft.rfft(SIGNAL) * np.exp(-np.arange(9) / 2), 16).astype(np.float32)
PARTS = zip(np.split(SIGNAL, 3), np.split(SMOOTH, 3), strict=True)
DATA = Dataset("smooth", None, *(Split(*both) for both in PARTS), task="regression")


class Spectral(Workload):
    """Model with a filter in the frequency domain: complex, or as pairs of real numbers."""

    name, task, input_shape, num_classes = "spectral", "regression", (16,), 16

    def __init__(self, is_complex: bool) -> None:
        self._is_complex = is_complex

    def build_torch(self) -> Any:
        first = torch.view_as_real(0.1 * torch.randn((1, 9), dtype=torch.complex64))
        is_complex = self._is_complex

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
                self.filter = nn.Parameter(
                    torch.view_as_complex(first.clone()) if is_complex else first.clone()
                )

            def forward(self, inputs: Any) -> Any:
                weights = self.filter if is_complex else torch.view_as_complex(self.filter)
                hidden = self.first(inputs)
                return self.last(torch.fft.irfft(torch.fft.rfft(hidden) * weights, 16))

        return Model()


def spec_of(optimizer: str, **changes: Any) -> RunSpec:
    settings = {"optimizer": optimizer, "learning_rate": 0.01, "batch_size_per_worker": 16}
    return small_spec("torch", **(settings | {"weight_decay": 0.1} | changes))


def trained(is_complex: bool, spec: RunSpec) -> list[np.ndarray]:
    """Return the evaluated weights as real numbers, after three epochs."""
    trainer, _, world = new_trainer(spec, workload=Spectral(is_complex), dataset=DATA)
    steps = first_steps(spec, DATA, world, 96)
    trainer.warm_up(steps[0])
    trainer.train(steps[:3])
    trainer.restore(trainer.state())
    trainer.train(steps[3:])
    assert np.isfinite(trainer.evaluate("validation", slice(0, 8)).loss)
    model = trainer._model
    with trainer._averaging.in_place():
        weights = [parameter.detach().clone() for parameter in model.parameters()]
    trainer.close()
    return [
        (torch.view_as_real(weight) if weight.is_complex() else weight).numpy()
        for weight in weights
    ]


@pytest.mark.parametrize("optimizer", ["adamw", "radam", "sgd"])
def test_complex_weights_are_trained_like_pairs_of_real_numbers(optimizer):
    """Gradients are clipped and weights averaged."""
    spec = spec_of(optimizer, clip_norm=0.05, ema_decay=0.9)
    assert_all_close(trained(True, spec), trained(False, spec), atol=1e-6)


@pytest.mark.parametrize("changes", [{"optimizer": "lamb"}, {"precision": "fp16"}])
def test_complex_weights_are_refused_where_unsupported(changes):
    spec, workload = spec_of(**({"optimizer": "sgd"} | changes)), Spectral(True)
    with refused(ErrorCode.CONFLICT, *changes.values()):
        new_trainer(spec, workload=workload, dataset=DATA)
