"""Arrays that TensorFlow uses in place, arrays that it copies, and free GPU memory."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from raybench.data.dataset import Dataset, Split
from raybench.spec.run import RunSpec
from tests.training.fake_gpus import FakeNvml

tf = pytest.importorskip("tensorflow")


@pytest.mark.parametrize("offset", [0, 1, 16])
def test_tensors_of_arrays_of_any_alignment_are_usable(offset):
    """A kernel aborts the process on a tensor in memory aligned to less than 64 bytes."""
    from raybench.training.tensorflow.batches import to_tensor
    from raybench.training.tensorflow.loop import join

    join(rank=0, num_workers=1, device="cpu", num_threads=1)  # before TensorFlow's first use
    memory = np.zeros(4096 + 128 + offset, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    array = memory[start : start + 4096].reshape(64, 64)
    array[:] = np.arange(64)
    tensor = to_tensor(array)

    @tf.function
    def total(values: tf.Tensor) -> tf.Tensor:
        batch = tf.cast(tf.gather(values, [1, 3, 5]), tf.float32)
        return tf.reduce_sum(tf.linalg.matmul(batch, batch, transpose_b=True))

    assert float(total(tensor)) == 9 * float((np.arange(64.0) ** 2).sum())
    assert np.array_equal(tensor.numpy(), array)


@pytest.mark.parametrize(
    ("task", "share", "gib"), [("", 1, 77), ("/job:worker/replica:0/task:1", 0.5, 37)]
)
def test_free_gpu_memory_includes_unused_memory_of_tensorflow(task, share, gib, monkeypatch):
    from raybench.training.tensorflow import batches

    def used(name: str) -> dict[str, int]:
        assert name == "GPU:0"  # TensorFlow refuses a name that contains the task
        return {"current": 3 * 2**30, "peak": 70 * 2**30}

    gpu = SimpleNamespace(name=f"{task}/device:GPU:0")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [gpu])
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", used)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert batches.free_bytes(share) == gib * 2**30
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-unknown")
    assert batches.free_bytes(share) == 0  # unknown is not unlimited


def test_bytes_without_a_gpu_kernel_stay_in_host_memory(monkeypatch):
    from raybench.training.tensorflow import batches

    pixels = tf.TensorSpec([None, 4, 4], tf.uint8)
    graph = tf.function(batches.gathered).get_concrete_function(
        pixels, tf.TensorSpec([None], tf.int64)
    )
    gathers = [op for op in graph.graph.get_operations() if op.type == "GatherV2"]
    assert [op.get_attr("Tparams") for op in gathers] == [batches.WORDS[4]]
    monkeypatch.setattr(batches, "has_gpus", lambda: True)
    monkeypatch.setattr(batches, "free_bytes", lambda share: 2**20)
    odd, even = (
        Split(np.zeros((4, *shape), np.uint8), np.zeros(4, np.int64))
        for shape in [(5, 3, 1), (4, 3, 1)]
    )
    data = Dataset("bytes", 2, train=odd, validation=even, test=even)
    by_split = batches.batches_of(RunSpec(), data)
    assert isinstance(by_split["train"], batches.OnDemandBatches)
    assert isinstance(by_split["test"], batches.InMemoryBatches)
