"""Trials of a user's model, in a process per framework."""

import importlib.util
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from raybench.models.find import find_workload
from raybench.spec.errors import UserError
from raybench.spec.metric import ACCURACY
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.training import check_model
from raybench.training.check_model import check_models
from raybench.training.machine import GpusSeen
from raybench.training.probe import Probed

MODULE = """
    import os, sys, time
    from raybench import Workload
    from raybench.models.base import LayerWorkload
    from raybench.models.layers import Dense, Flatten

    class Good(Workload):
        name, input_shape, num_classes = "good", (8, 8, 1), 10
        units = 10

        def build_torch(self):
            import torch
            print("building", flush=True)
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, self.units))

        def build_keras(self):
            import keras
            print("building", flush=True)
            layers = [keras.layers.Flatten(), keras.layers.Dense(self.units)]
            return keras.Sequential([keras.Input((8, 8, 1)), *layers])

    class Softmax(Good):
        def build_torch(self):
            import torch
            return torch.nn.Sequential(super().build_torch(), torch.nn.Softmax(1))

        def build_keras(self):
            import keras
            return keras.Sequential([super().build_keras(), keras.layers.Softmax()])

    class Set(Good):
        def __init__(self, units=10):
            self.units = units

    class Raises(Good):
        def build_torch(self):
            return self.nothing

    class Dies(Good):
        def build_torch(self):
            print("last words", file=sys.stderr, flush=True)
            os._exit(3)

    class Killed(Good):
        def build_torch(self):
            os.kill(os.getpid(), 11)

    class Hangs(Good):
        def build_torch(self):
            time.sleep(60)

    class Normalised(Good):
        def build_torch(self):
            import torch
            return torch.nn.Sequential(
                torch.nn.BatchNorm2d(1), torch.nn.Flatten(), torch.nn.Linear(64, self.units)
            )

    class Narrow(Normalised):
        units = 7

    class NeedsGpu(Normalised):
        def build_torch(self):
            import torch

            class OnGpu(torch.nn.Module):
                def __init__(self, inner):
                    super().__init__()
                    self.inner = inner

                def forward(self, images):
                    return self.inner(images.cuda())

            return OnGpu(super().build_torch())

    class BuildsOnGpu(Good):
        def build_torch(self):
            return super().build_torch().cuda()

    class Layers(LayerWorkload):
        name, input_shape, num_classes = "layers", (8, 8, 1), 10
        layers = (Flatten(), Dense(10))
"""
BOTH = ["torch", "tensorflow"]


@pytest.fixture(autouse=True)
def beside_the_user(tmp_path, monkeypatch):
    for framework in BOTH:
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
    (tmp_path / "own_models.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("own_models", None)


def check(name, frameworks=("torch",), **more):
    spec = RunSpec(workload=name, dataset=DatasetSpec(name="digits"), **more)
    return check_models(spec, list(frameworks)).warnings


def refused(name, frameworks=("torch",), **more):
    with pytest.raises(UserError) as caught:
        check(name, frameworks, **more)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.slow
def test_both_frameworks_are_asked_and_their_warnings_come_back():
    first, second = check("own_models:Softmax", BOTH)
    assert "look like probabilities" in first
    assert "look like probabilities" in second


def test_every_value_of_a_setting_is_tried():
    spec = RunSpec(workload="own_models:Set", dataset=DatasetSpec(name="digits"))
    others = [spec.model_copy(update={"model": {"units": one}}) for one in (10, 7)]
    with pytest.raises(UserError, match=r"returns outputs of shape \(8, 7\)"):
        check_models(spec, ["torch"], others=others)
    with pytest.raises(UserError, match=r"model.unit: .* did you mean 'units'"):
        check_models(spec, ["torch"], others=[spec.model_copy(update={"model": {"unit": 1}})])


def test_the_users_file_and_traceback_come_back(tmp_path):
    error = refused("own_models:Raises")
    assert f"build_torch failed ({tmp_path}/own_models.py, line " in str(error)
    assert "AttributeError" in str(error)
    assert "return self.nothing" in error.details


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Dies", "ended with exit code 3"),
        pytest.param("Killed", "ended with SIGSEGV", marks=pytest.mark.all),
    ],
)
def test_a_model_that_ends_the_process(name, words):
    error = refused(f"own_models:{name}")
    assert f"the trial of its model in torch {words}." in str(error)
    assert name != "Dies" or "last words" in error.details


def test_a_model_that_never_answers(monkeypatch):
    monkeypatch.setattr(check_model, "TIMEOUT_S", 1.0)
    assert "took longer than 1 s" in str(refused("own_models:Hangs"))


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without GPUs, like the head of a cluster."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(check_model, "nvml_sees", lambda: GpusSeen(()))


def test_a_machine_without_a_gpu_tries_a_model_for_gpus_on_its_cores(no_gpu):
    spec = RunSpec(
        workload="own_models:Normalised", dataset=DatasetSpec(name="digits"), gpus_per_worker=1
    )
    assert check_models(spec, ["torch"]) == Probed([], batch_statistics=True)
    error = refused("own_models:Narrow", gpus_per_worker=1)
    assert "returns outputs of shape (8, 7)" in str(error)
    assert "AttributeError" in str(refused("own_models:Raises", gpus_per_worker=1))


@pytest.mark.parametrize(("name", "is_seen"), [("NeedsGpu", True), ("BuildsOnGpu", False)])
def test_what_only_a_gpu_can_try_is_said_and_let_through(name, is_seen, no_gpu):
    spec = RunSpec(workload=f"own_models:{name}", dataset=DatasetSpec(name="digits"))
    found = check_models(spec.model_copy(update={"gpus_per_worker": 1}), ["torch"])
    (sentence,) = found.warnings
    assert "was not tried, as this machine has no GPU" in sentence
    assert found.batch_statistics is is_seen
    with pytest.raises(UserError, match=r"failed .*(CUDA|NVIDIA)"):
        check_models(spec, ["torch"])  # whose workers are to have no GPU either


def test_a_model_for_gpus_that_is_too_much_for_cores_is_let_through(no_gpu, monkeypatch):
    (sentence,) = check("own_models:Killed", gpus_per_worker=1)
    assert "without a GPU, ended with SIGSEGV" in sentence
    monkeypatch.setattr(check_model, "TIMEOUT_S", 1.0)
    (sentence,) = check("own_models:Hangs", gpus_per_worker=1)
    assert "took longer than 1 s" in sentence


def test_a_model_beyond_the_memory_is_built_and_not_tried(monkeypatch):
    from raybench.training import probe
    from raybench.training.torch import probe as torch_probe

    monkeypatch.setattr(probe, "available_bytes", lambda: 1000)
    monkeypatch.setattr(torch_probe.torch.cuda, "is_available", lambda: False)
    workload = find_workload("own_models:Normalised", None, {})
    trial = torch_probe.Trial(workload, ACCURACY, gpu=True)
    images, labels = np.zeros((8, 8, 8, 1), np.uint8), np.zeros(8, np.int64)
    (sentence,), has_statistics = trial.run(images, labels)
    assert "little memory" in sentence
    assert has_statistics


@pytest.mark.parametrize("name", ["mnist_small", "own_models:Layers"])
def test_what_is_known_to_be_whole_starts_no_process(name, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    spec = RunSpec(workload=name, dataset=DatasetSpec(image_size=8))
    assert check_models(spec, BOTH) == Probed([])
