"""Features of torch only: memory layout, waiting for data on a GPU, replicas, precision, layers."""

import threading
from typing import Any

import pytest
from local_runs import SMALL, first_steps, new_trainer, small_spec, train

from raybench.data.dataset import epoch_order
from raybench.models.base import Workload
from raybench.models.find import load_workload_dataset
from raybench.models.layers import Conv, Dense, Flatten, MaxPool, ReLU
from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from raybench.training.base import Step

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from raybench.training.torch.batches import InputClock  # noqa: E402
from raybench.training.torch.loop import Replica  # noqa: E402
from raybench.training.torch.model import (  # noqa: E402
    build_layers,
    build_model,
    synchronize,
)
from raybench.training.torch.state import Averaging, LossScale  # noqa: E402
from raybench.training.torch.world import join  # noqa: E402
from tests.refusals import refused  # noqa: E402


class Viewing(Workload):
    """Network that needs contiguous outputs of its convolution."""

    name = "viewing"
    input_shape = (28, 28, 1)
    num_classes = 10

    def build_torch(self) -> torch.nn.Module:
        class Flat(torch.nn.Module):
            def forward(self, images: torch.Tensor) -> torch.Tensor:
                return images.view(len(images), -1)

        conv = torch.nn.Conv2d(1, 4, 5, stride=4)
        return torch.nn.Sequential(conv, Flat(), torch.nn.Linear(4 * 6 * 6, 10))


def test_user_model_may_view_outputs_of_its_convolutions():
    (last,), _ = train(small_spec("torch", epochs=1.0), workload=Viewing())
    assert last.value > 0.15


class Stream:
    """Fake device: queued work starts when all earlier work is done."""

    def __init__(self) -> None:
        self.host, self.free = 0.0, 0.0

    def work(self, seconds: float) -> None:
        self.free = max(self.free, self.host) + seconds


def test_gpu_waits_only_without_queued_work(monkeypatch):
    stream = Stream()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, on: Stream) -> None:
            assert on is stream
            self.at = max(stream.free, stream.host)

        def synchronize(self) -> None:
            stream.host = max(stream.host, self.at)

        def elapsed_time(self, other: "Event") -> float:
            return 1000 * (other.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    clock = InputClock(torch.device("cuda", 0))
    stream.work(3.0)  # queued in no time
    with clock.waiting():
        stream.host += 2.0  # while the device computes
    assert clock.seconds() == 0
    stream.work(1.0)
    with clock.waiting():
        stream.host += 5.0  # during one of these seconds the device computes
        stream.work(0.5)  # the copy of the batch
    assert clock.seconds() == pytest.approx(4.5)
    assert clock.seconds() == pytest.approx(4.5)


@pytest.mark.parametrize("gpus", [0, 1])
def test_fewer_gpus_than_replicas_is_refused(gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with refused(ErrorCode.UNSUPPORTED, "2 replicas", gpus):
        join(rank=0, num_workers=1, device="cpu", num_threads=1, num_replicas=2)


def test_replica_keeps_its_precision_in_another_thread():
    """Autocast of torch does not: a new thread starts with the default type."""
    replica = Replica(torch.nn.Linear(2, 2), lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    dtypes = []

    def forward() -> None:
        with torch.autocast("cpu", dtype=torch.float16):  # as in DataParallel
            dtypes.append(replica(torch.ones(1, 2)).dtype)

    thread = threading.Thread(target=forward)
    thread.start()
    thread.join()
    assert dtypes == [torch.bfloat16]


@pytest.mark.parametrize("fused", [True, False])
def test_skipped_first_fp16_step_leaves_no_momentum(fused):
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=0.5, momentum=0.9, fused=fused)
    scale = LossScale(torch.device("cpu"), "fp16")
    weight = scale.scaled(torch.ones(4))
    parameter.grad = weight * torch.inf
    assert bool(scale.step(optimizer, lambda: None)) is False
    assert optimizer.state[parameter].get("momentum_buffer") is None
    parameter.grad = weight / 2
    assert bool(scale.step(optimizer, lambda: None)) is True
    assert parameter.tolist() == [0.5] * 4
    assert scale.num_skipped == 1


def few_steps(spec: RunSpec, workload: Workload | None = None) -> tuple[Any, list[Step]]:
    trainer, dataset, world = new_trainer(spec, workload=workload)
    return trainer, first_steps(spec, dataset, world, 5 * 64)


@pytest.mark.parametrize(
    ("optimizer", "reads_per_step", "settings"),
    [("adamw", 0, {"ema_decay": 0.9, "clip_norm": 1.0}), ("lamb", 1, {})],
)
def test_fp16_step_synchronizes_at_most_once(optimizer, reads_per_step, settings):
    spec = small_spec("torch", workload="mlp", optimizer=optimizer, precision="fp16", **settings)
    trainer, steps = few_steps(spec)
    reads = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            reads.extend([func] if func is torch.ops.aten._local_scalar_dense.default else [])
            return func(*args, **(kwargs or {}))

    trainer.train(steps[:1])
    with Counting():
        trainer.train(steps[1:])
    assert len(reads) == reads_per_step * len(steps[1:]) + 1  # the sum of the losses


def test_skipped_step_is_not_averaged():
    spec, layer = small_spec("torch", ema_decay=0.9), torch.nn.Linear(2, 2)
    with_skips, without_skips = Averaging(spec, layer), Averaging(spec, layer)
    for is_taken in (False, True, False, True):
        torch.nn.init.normal_(layer.weight)
        with_skips.update(torch.tensor(is_taken))
        if is_taken:
            without_skips.update(None)
        with with_skips.in_place():
            averaged = layer.weight.detach().clone()
        with without_skips.in_place():
            torch.testing.assert_close(averaged, layer.weight.detach())
    assert with_skips.state_dict()["num_steps"] == without_skips.state_dict()["num_steps"] == 2


def test_layer_in_fp32_has_fp32_gradients():
    class Float32Linear(torch.nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            with torch.autocast(inputs.device.type, enabled=False):
                return super().forward(inputs.flatten(1).float())

    class Float32Model(Viewing):
        def build_torch(self) -> torch.nn.Module:
            return Float32Linear(28 * 28, 10)

    trainer, steps = few_steps(small_spec("torch", precision="bf16"), Float32Model())
    trainer.train(steps[:1])
    gradient = trainer._model.weight.grad
    assert not torch.equal(gradient, gradient.bfloat16().float())


def precision_settings() -> dict[str, Any]:
    """Return the float32 precision of each part of torch, and the older settings."""
    backends = torch.backends
    parts = {
        "matmul": backends.cuda.matmul,
        "conv": backends.cudnn.conv,
        "rnn": backends.cudnn.rnn,
        "cpu matmul": backends.mkldnn.matmul,
        "cpu conv": backends.mkldnn.conv,
    }
    precisions = {name: part.fp32_precision for name, part in parts.items()}
    older = {"allow": (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32)}
    return precisions | older | {"all": torch.get_float32_matmul_precision()}


SET_BY_USERS = [
    lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "tf32"),
    lambda: setattr(torch.backends.cudnn.rnn, "fp32_precision", "none"),
    lambda: setattr(torch.backends.cudnn, "allow_tf32", True),
    lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    lambda: torch.set_float32_matmul_precision("high"),
    lambda: torch.set_float32_matmul_precision("medium"),
]


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch 2.9")
@pytest.mark.parametrize("change", SET_BY_USERS)
def test_precision_settings_of_a_user_model_are_reset(change):
    class Changing(Viewing):
        def build_torch(self) -> torch.nn.Module:
            change()
            return super().build_torch()

    def settings_after(precision: str) -> dict[str, Any]:
        new_trainer(small_spec("torch", precision=precision), workload=Changing())[0].close()
        return precision_settings()

    exact = dict.fromkeys(("matmul", "conv", "rnn", "cpu matmul", "cpu conv"), "ieee")
    exact |= {"allow": (False, False), "all": "highest"}
    tf32 = dict.fromkeys(("matmul", "conv", "rnn"), "tf32") | {"allow": (True, True)}
    for precision in ("fp32", "tf32", "fp32"):
        changed = {**tf32, "all": "high"} if precision == "tf32" else {}
        assert settings_after(precision) == exact | changed


def test_synchronized_layers_of_timm_keep_activation_and_names():
    timm = pytest.importorskip("timm")
    synchronized, original = (
        timm.layers.BatchNormAct2d(3, act_layer=torch.nn.SiLU) for _ in range(2)
    )
    inputs = torch.randn(4, 3, 5, 5)
    synchronized = synchronize(synchronized)
    assert isinstance(synchronized, torch.nn.SyncBatchNorm)
    assert torch.equal(synchronized(inputs), original(inputs))
    assert synchronized.state_dict().keys() == original.state_dict().keys()


def test_model_does_not_change_its_inputs():
    layers = (ReLU(), Conv(2), ReLU(), MaxPool(), Flatten(), ReLU(), Dense(3), ReLU())
    for model_layers in (layers, (Flatten(), *layers[5:])):
        inputs = torch.randn(2, 1, 6, 6)
        before = inputs.clone()
        with torch.no_grad():
            torch.nn.Sequential(*build_layers(model_layers, (6, 6, 1)))(inputs)
        assert torch.equal(inputs, before)


def test_training_equals_a_plain_torch_loop_bit_by_bit():
    spec = small_spec("torch", dataset=SMALL.model_copy(update={"limit": 256}), epochs=2.0)
    _, trainer = train(spec)
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
    nn = torch.nn
    model = nn.Sequential(  # mnist_small, with layers of torch
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(6272, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    model.load_state_dict(build_model(workload, spec.seed).state_dict())
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=spec.learning_rate, fused=True)
    inputs = torch.from_numpy(dataset.train.inputs).permute(0, 3, 1, 2).float() * (1 / 255)
    labels = torch.from_numpy(dataset.train.labels)
    for epoch in range(2):
        order = torch.from_numpy(epoch_order(256, seed=spec.seed, epoch=epoch))
        for rows in order.split(64):
            optimizer.zero_grad()
            outputs = model(inputs[rows])
            torch.nn.functional.cross_entropy(outputs, labels[rows]).backward()
            optimizer.step()
    trained = trainer._model.state_dict()
    assert all(torch.equal(trained[name], value) for name, value in model.state_dict().items())
