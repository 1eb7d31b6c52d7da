"""The distribution strategy of a TensorFlow worker, and the exchange of gradients with the other
workers. Mirrors torch/world.py."""

import contextlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import metadata

import numpy as np
import tensorflow as tf

from raybench.spec.run import RunSpec
from raybench.training.base import DistributedContext
from raybench.training.machine import GpusSeen, require_gpus, require_replicas
from raybench.training.tensorflow.internals import unregister_new_gradient_functions


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
        """Traced: return a context in which operations run on the device with this process's data.

        This is the device of the first replica; the other replicas copy their batches from there.
        """
        if len(self._devices) == 1:
            return contextlib.nullcontext()
        device: AbstractContextManager[object] = tf.device(self._devices[0])
        return device

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return the values of every rank (float64), by rank. Collective, so also a barrier."""
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
        """Traced: return the sum of a tensor over all workers."""
        total = self.strategy.run(_all_reduce, args=(rows,))
        return self.strategy.experimental_local_results(total)[0]


def _all_reduce(rows: tf.Tensor) -> tf.Tensor:
    """Traced, in replica context: return the sum of a tensor over all workers."""
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
    """Return the options for the communication between processes: NCCL for GPUs, for which AUTO
    would use RING over gRPC."""
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


WIRE = {"none": None, "fp16": tf.float16, "bf16": tf.bfloat16}
"""Type to which gradients are converted for the exchange, by `gradient_compression`; None to leave
them unchanged."""
MIB = 2**20


class Exchange:
    """Sums gradients over the workers; its methods are traced, in replica context."""

    def __init__(self, spec: RunSpec) -> None:
        between_processes = spec.num_workers > spec.replicas_per_process
        self.measures = between_processes and spec.exchange_gradients and spec.record_steps
        """Whether `squares` measures norms, which it does only between processes, and only if the
        run records steps."""
        self._num_workers, self._is_on = spec.num_workers, spec.exchange_gradients
        self._wire = WIRE[spec.gradient_compression]
        self.options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=round(spec.bucket_mb * MIB)
        )
        """Options of the all-reduces, in addition to those of the strategy (`communication`)."""

    def __call__(self, parts: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sum of the gradients of all workers.

        If the run does not exchange gradients (`exchange_gradients`), return this worker's
        gradients times the number of workers.
        """
        if not self._is_on:
            return [tf.convert_to_tensor(part) * self._num_workers for part in parts]
        sent = [tf.cast(part, self._wire) for part in parts] if self._wire else parts
        context = tf.distribute.get_replica_context()
        with unregister_new_gradient_functions():
            received = context.all_reduce(tf.distribute.ReduceOp.SUM, sent, self.options)
        if not self._wire:
            return received
        return [tf.cast(whole, part.dtype) for whole, part in zip(received, parts, strict=True)]

    def squares(self, parts: list[tf.Tensor], wholes: list[tf.Tensor]) -> tf.Tensor:
        """Return the squared norms of the gradients sent and received, shape (2,), float64; zeros
        if they are not measured.

        Args:
            parts: Gradients of this worker.
            wholes: Sums of the gradients of all workers.
        """
        if not self.measures:
            return tf.zeros(2, tf.float64)
        return tf.stack([_square(parts), _square(wholes)])


def _square(gradients: list[tf.Tensor]) -> tf.Tensor:
    """Return the squared norm of all gradients together, float64."""
    halves = [tf.nn.l2_loss(tf.convert_to_tensor(gradient)) for gradient in gradients]
    return 2 * tf.reduce_sum(tf.cast(tf.stack(halves), tf.float64))
