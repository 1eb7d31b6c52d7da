"""Settings of the process that a training loop changes are restored for the next trial."""

import gc
import os
import sys
import types
import warnings
import weakref
from typing import Any

import pytest
from local_runs import single_worker
from user_loops import Worker, reporting_loop

from raybench.spec.errors import UserError
from raybench.training import adapter
from raybench.training.adapter import PROCESS_SETTINGS
from raybench.training.base import find_part
from raybench.training.own import Run


def change_torch() -> None:
    import torch

    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.backends.fp32_precision = "tf32"  # the new settings of TF32, then the old ones
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.enable_flash_sdp(False)
    torch.set_grad_enabled(False)
    torch.set_default_device("meta")


def change_tensorflow() -> None:
    import keras
    import tensorflow as tf

    keras.config.set_floatx("float64")
    keras.config.set_epsilon(1e-3)
    keras.config.set_dtype_policy("mixed_float16")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.config.set_soft_device_placement(False)
    tf.config.run_functions_eagerly(True)
    tf.config.optimizer.set_jit("autoclustering")


def test_settings_of_a_framework_are_restored(framework):
    change = {"torch": change_torch, "tensorflow": change_tensorflow}[framework]
    settings = find_part(framework, "world").SETTINGS
    at_start, changed = list[list[Any]](), list[list[Any]]()

    def loop(run: Run) -> None:
        at_start.append([read() for read, _ in settings])
        if framework == "torch":
            import torch

            at_start[-1] += [torch.is_grad_enabled(), torch.get_default_device()]
            at_start[-1] += [torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32]
            at_start[-1] += [torch.backends.cuda.matmul.allow_tf32]
            at_start[-1] += [torch.get_float32_matmul_precision()]
        reporting_loop(0.5)(run)
        if len(at_start) == 1:
            change()
            changed.append([read() for read, _ in settings])

    for _ in range(2):
        worker = Worker(loop, framework=framework, world=single_worker(framework))
        worker.run_to_end()
        worker.trainer.close()
    assert changed[0] != at_start[0][: len(settings)]
    assert at_start[0] == at_start[1]


def test_process_settings_are_restored(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYBENCH_A", "1")
    monkeypatch.setenv("RAYBENCH_B", "1")
    monkeypatch.setattr(sys, "argv", ["raybench", "--lr", "0.5"])
    filters, before = list(warnings.filters), [read() for read, _ in PROCESS_SETTINGS]
    at_start = []

    def loop(run: Run) -> None:
        at_start.append([read() for read, _ in PROCESS_SETTINGS])

        at_start[-1].append(list(warnings.filters))
        reporting_loop(0.5)(run)
        os.chdir(tmp_path)
        os.environ["RAYBENCH_A"] = "2"
        del os.environ["RAYBENCH_B"]
        os.environ["RAYBENCH_C"] = "1"
        sys.path.insert(0, str(tmp_path))
        sys.argv[1:] = ["--lr", "0.1"]
        warnings.simplefilter("error")
        raise ValueError

    for _ in range(2):
        with pytest.raises(UserError):
            Worker(loop).run_to_end()
    # A loop sees no arguments.
    expected = [["train.py"] if value == sys.argv else value for value in before]
    assert at_start[0] == at_start[1] == [*expected, filters]
    assert [read() for read, _ in PROCESS_SETTINGS] == before
    assert (os.environ["RAYBENCH_A"], os.environ["RAYBENCH_B"]) == ("1", "1")


def test_setting_without_a_value_is_restored(monkeypatch):
    owner = types.SimpleNamespace(hook=None)
    monkeypatch.setattr(adapter, "PROCESS_SETTINGS", (adapter.attribute(owner, "hook"),))
    with adapter.settings_restored():
        owner.hook = print
    assert owner.hook is None


def test_reference_cycles_of_a_loop_are_collected_before_the_adapter_ends(monkeypatch):
    references: list[weakref.ref[Any]] = []
    is_alive: list[bool] = []

    class Model:
        def __init__(self) -> None:
            self.trainer = self
            references.append(weakref.ref(self))

    def loop(run: Run) -> None:
        Model()
        reporting_loop(0.5)(run)

    worker = Worker(loop)
    monkeypatch.setattr(
        worker.trainer.run._adapter, "end", lambda: is_alive.append(bool(references[0]()))
    )
    gc.disable()
    worker.run_to_end()
    gc.enable()
    worker.trainer.close()
    assert is_alive == [False]


def test_dispatched_work_of_jax_is_waited_for(monkeypatch):
    """Uses a fake JAX, whose dispatched work is done when its arrays are ready."""
    waited: list[Any] = []

    class Array:
        def __init__(self, name: str, deleted: bool = False) -> None:
            self.name, self.is_deleted = name, lambda: deleted

    arrays = [Array("weights"), Array("donated", deleted=True)]
    jax = types.SimpleNamespace(
        live_arrays=lambda: arrays,
        effects_barrier=lambda: waited.append("effects"),
        block_until_ready=lambda ready: waited.extend(array.name for array in ready),
    )
    monkeypatch.setitem(sys.modules, "jax", jax)
    Worker(reporting_loop(0.5)).run_to_end()
    # At least at the start and the end of training, and before the report.
    assert waited == ["effects", "weights"] * (len(waited) // 2)
    assert len(waited) >= 6
