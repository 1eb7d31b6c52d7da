"""Process settings that a loop changes are restored for the next trial."""

import gc
import os
import sys
import types
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
from local import alone
from own_loops import Worker, reporting

from raybench.spec.errors import UserError
from raybench.training.adapter import PROCESS_SETTINGS, _read
from raybench.training.base import find_part
from raybench.training.own import Run


def change_torch() -> None:
    import torch

    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.backends.fp32_precision = "tf32"  # new switches of TF32, and old ones
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


def test_settings_of_a_framework_are_those_of_the_run_before(framework: str) -> None:
    change = {"torch": change_torch, "tensorflow": change_tensorflow}[framework]
    settings = find_part(framework, "own").SETTINGS
    seen, changed = list[list[Any]](), list[list[Any]]()

    def loop(run: Run) -> None:
        seen.append([_read(one) for one in settings])
        if framework == "torch":
            import torch

            seen[-1] += [torch.is_grad_enabled(), torch.get_default_device()]
            seen[-1] += [torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32]
            seen[-1] += [torch.backends.cuda.matmul.allow_tf32]
            seen[-1] += [torch.get_float32_matmul_precision()]
        reporting(0.5)(run)
        if len(seen) == 1:
            change()
            changed.append([_read(one) for one in settings])

    for _ in range(2):
        worker = Worker(loop, framework=framework, world=alone(framework))
        worker.to_the_end()
        worker.trainer.close()
    assert changed[0] != seen[0][: len(settings)]
    assert seen[0] == seen[1]


def test_the_process_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYBENCH_A", "1")
    monkeypatch.setenv("RAYBENCH_B", "1")
    monkeypatch.setattr(sys, "argv", ["train.py"])  # as a loop finds it
    filters, before = list(warnings.filters), [_read(one) for one in PROCESS_SETTINGS]
    seen = []

    def loop(run: Run) -> None:
        seen.append([_read(one) for one in PROCESS_SETTINGS])
        seen[-1].append(list(warnings.filters))
        reporting(0.5)(run)
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
            Worker(loop).to_the_end()
    assert seen[0] == seen[1] == [*before, filters]
    assert [_read(one) for one in PROCESS_SETTINGS] == before
    assert (os.environ["RAYBENCH_A"], os.environ["RAYBENCH_B"]) == ("1", "1")


def test_what_a_loop_leaves_in_circles_is_collected_before_a_cache_is_emptied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    class Model:
        def __init__(self) -> None:
            self.trainer = self
            left.append(weakref.ref(self))

    def loop(run: Run) -> None:
        Model()
        reporting(0.5)(run)

    worker = Worker(loop)
    monkeypatch.setattr(worker.trainer.run._adapter, "end", lambda: alive.append(bool(left[0]())))
    gc.disable()
    worker.to_the_end()
    gc.enable()
    worker.trainer.close()
    assert alive == [False]


def test_a_loop_of_jax_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JAX is fake; its dispatched work is done when the arrays are ready."""
    waited: list[Any] = []

    class Array:
        def __init__(self, name: str, deleted: bool = False) -> None:
            self.name, self.is_deleted = name, lambda: deleted

    arrays = [Array("weights"), Array("given away", deleted=True)]
    jax = types.SimpleNamespace(
        live_arrays=lambda: arrays,
        effects_barrier=lambda: waited.append("effects"),
        block_until_ready=lambda ready: waited.extend(one.name for one in ready),
    )
    monkeypatch.setitem(sys.modules, "jax", jax)
    Worker(reporting(0.5)).to_the_end()
    # At least where training begins, where it ends, and before the report.
    assert waited == ["effects", "weights"] * (len(waited) // 2)
    assert len(waited) >= 6
