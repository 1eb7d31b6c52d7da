"""The process of a TensorFlow worker: its distribution strategy, devices and arithmetic, and what a
user's training loop needs from them. Mirrors torch/world.py."""

import contextlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from raybench.training.adapter import LoopAdapter, Setting
from raybench.training.base import DistributedContext
from raybench.training.machine import GpusSeen, Memory, require_gpus, require_replicas


class World(DistributedContext):
    """The group of workers as seen by this process; see `DistributedContext`.

    `strategy` is the distribution strategy over all workers, or over the replicas in this process.
    """

    def __init__(
        self, *, rank: int = 0, num_workers: int = 1, strategy: tf.distribute.Strategy | None = None
    ) -> None:
        self.rank, self.num_workers = rank, num_workers
        self.strategy = strategy or tf.distribute.get_strategy()
        gpus = tf.config.get_visible_devices("GPU")
        self.gpus = tuple(range(len(gpus)))
        details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
        self.device = str(details.get("device_name", "gpu")) if gpus else "cpu"
        self._devices = self.strategy.extended.worker_devices
        rows = tf.TensorSpec([num_workers, None], tf.float64)
        self._sum_over_workers = tf.function(self._reduce_rows, [rows])

    def data_device(self) -> AbstractContextManager[object]:
        """Return a context in which operations run on the device with this process's data.

        This is the device of the first replica; the other replicas copy their batches from there.
        Runs inside a `tf.function`.
        """
        if len(self._devices) == 1:
            return contextlib.nullcontext()
        device: AbstractContextManager[object] = tf.device(self._devices[0])
        return device

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return the values of all ranks as float64: one row per rank, in rank order. Collective,
        so also a barrier."""
        if self.num_workers == 1:
            return [values]
        # `strategy.gather` traces a function at every call, which takes 50 ms. The function here is
        # traced once and takes 1 ms. It sums matrices, in which each rank has filled its row.
        rows = np.zeros((self.num_workers, len(values)))
        rows[self.rank] = values
        return self._sum_over_workers(tf.constant(rows)).numpy().tolist()

    def _adder(self, num_values: int) -> Callable[[], float]:
        values = tf.zeros([1, num_values])
        add_up = tf.function(self._reduce_rows, [tf.TensorSpec(values.shape)])
        add_up(values)  # trace the function before it is timed
        return lambda: float(add_up(values)[0, 0])

    @property
    def through(self) -> str:
        """Library that runs the all-reduces: `ring` or `nccl`."""
        return "nccl" if self.device != "cpu" else "ring"

    def _reduce_rows(self, rows: tf.Tensor) -> tf.Tensor:
        """Return the sum of a tensor over all workers; runs inside a `tf.function`."""
        total = self.strategy.run(_all_reduce, args=(rows,))
        return self.strategy.experimental_local_results(total)[0]


def _all_reduce(rows: tf.Tensor) -> tf.Tensor:
    """Return the sum of a tensor over all workers; runs on each replica, inside a `tf.function`."""
    # The reduction needs a tensor with a device, which an argument of a traced function lacks.
    here = tf.identity(rows)
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)


def join(
    *,
    rank: int,
    num_workers: int,
    device: str,
    num_threads: int,
    num_replicas: int = 1,
    num_gpus: int = 0,
) -> World:
    """Set up TensorFlow in this process. Ray Train has already set TF_CONFIG.

    Arguments and errors are those of `join` in torch/world.py.
    """
    del device  # TensorFlow uses all visible devices
    _set_visible_gpus(num_gpus)
    if num_workers == 1:  # a cluster of one worker would open a port that nothing uses
        os.environ.pop("TF_CONFIG", None)
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)
    if num_replicas > 1:
        strategy = tf.distribute.MirroredStrategy(_devices(num_replicas))
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=communication(has_gpus=num_gpus > 0)
        )
    return World(rank=rank, num_workers=num_workers, strategy=strategy)


def communication(*, has_gpus: bool) -> tf.distribute.experimental.CommunicationOptions:
    """Return the options for the communication between processes. For GPUs these name NCCL, because
    AUTO would use RING over gRPC."""
    implementations = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.experimental.CommunicationOptions(
        implementation=implementations.NCCL if has_gpus else implementations.AUTO
    )


def _set_visible_gpus(num_gpus: int) -> None:
    """Make `num_gpus` GPUs visible to TensorFlow; call before TensorFlow is used.

    If more GPUs were visible, a strategy would create a replica on each of them, and all of these
    replicas would train on the same samples. GPU memory is allocated only when it is needed,
    because workers may share a GPU.

    Raises:
        UserError: TensorFlow sees fewer than `num_gpus` GPUs.
    """
    gpus = tf.config.list_physical_devices("GPU")
    require_gpus("tensorflow", num_gpus, len(gpus))
    tf.config.set_visible_devices(gpus[:num_gpus], "GPU")
    for gpu in gpus[:num_gpus]:
        tf.config.experimental.set_memory_growth(gpu, True)


def _devices(number: int) -> list[str]:
    """Return the names of the devices for `number` replicas in this process.

    These are the visible GPUs or, without GPUs, logical devices of the CPU. Call it before
    TensorFlow is used, because logical devices cannot be created later.
    """
    gpus = len(tf.config.get_visible_devices("GPU"))
    if gpus:
        require_replicas(number, gpus)
        return [f"GPU:{index}" for index in range(number)]
    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = tf.config.get_logical_device_configuration(cpu) or []
    if len(parts) < number:
        each = [tf.config.LogicalDeviceConfiguration() for _ in range(number)]
        tf.config.set_logical_device_configuration(cpu, each)
    return [f"CPU:{index}" for index in range(number)]


def set_arithmetic(precision: str) -> None:
    """Set the float32 arithmetic of this process on GPUs, overriding earlier runs and user code.

    Benchmarking of convolutions need not be set, since TensorFlow does it by default.
    """
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")


def gpus_seen() -> GpusSeen:
    """Return the GPUs that TensorFlow sees; call in a separate process, because TensorFlow
    initializes them."""
    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    built = tf.sysconfig.get_build_info()
    versions = {name: str(built.get(f"{name}_version", "")) for name in ("cuda", "cudnn")}
    versions["tensorflow"] = str(tf.__version__)
    # NCCL itself reports no version before its first use, so the version is that of its package.
    for package in ("nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.setdefault("nccl", metadata.version(package))
    return GpusSeen(
        names=tuple(str(gpu.get("device_name", "GPU")) for gpu in details),
        versions={name: version for name, version in versions.items() if version},
    )


class GpuMemory(Memory):
    """Measures the memory of a worker's GPUs; the peak is that of the fullest GPU."""

    def __init__(self, num_gpus: int) -> None:
        # A worker sees only its own GPUs: one, or one per replica in its process.
        self._gpus = [f"GPU:{index}" for index in range(num_gpus)]
        super().__init__()

    def peak(self) -> int:
        """Return the peak memory in bytes since this object was created."""
        memory = [tf.config.experimental.get_memory_info(gpu) for gpu in self._gpus]
        return max(int(gpu_memory["peak"]) for gpu_memory in memory)

    def _reset(self) -> None:
        for gpu in self._gpus:
            tf.config.experimental.reset_memory_stats(gpu)


SETTINGS: tuple[Setting, ...] = (
    (keras.config.floatx, keras.config.set_floatx),
    (keras.config.epsilon, keras.config.set_epsilon),
    (keras.config.image_data_format, keras.config.set_image_data_format),
    (lambda: keras.config.dtype_policy().name, keras.config.set_dtype_policy),
    (
        tf.config.experimental.tensor_float_32_execution_enabled,
        tf.config.experimental.enable_tensor_float_32_execution,
    ),
    (tf.config.get_soft_device_placement, tf.config.set_soft_device_placement),
    (tf.config.functions_run_eagerly, tf.config.run_functions_eagerly),
    (tf.config.optimizer.get_jit, tf.config.optimizer.set_jit),
)
"""Getters and setters of global settings of TensorFlow and Keras that one run could leave changed
for the next. Deterministic operations (`enable_op_determinism`) are not included, because they
cannot be switched off."""


class Adapter(LoopAdapter):
    """Functions of TensorFlow that a user's loop needs; see `LoopAdapter`.

    With several workers, the loop must build its model in the scope of `Run.strategy`.
    """

    _world: World

    def begin(self, seed: int) -> None:
        """Seed Python, numpy and TensorFlow; called in the loop's thread."""
        keras.utils.set_random_seed(seed)

    def synchronize(self) -> None:
        """Wait until the devices have finished their work."""
        if self._world.gpus:
            tf.test.experimental.sync_devices()

    def memory(self) -> Memory:
        """Return a `Memory` that measures this worker's peak memory from now on."""
        return GpuMemory(len(self._world.gpus)) if self._world.gpus else Memory()

    def end(self) -> None:
        """Release models and traced functions."""
        keras.backend.clear_session()

    def pack(self, state: Any) -> tuple[str, bytes]:
        """Convert a state that the user saves to bytes; see `LoopAdapter.pack`. The state is plain
        data and arrays, or a model, whose weights are saved."""
        return super().pack(state.get_weights() if isinstance(state, keras.Model) else state)
