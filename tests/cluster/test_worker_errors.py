"""What a worker calls the errors of a run."""

import pytest

from raybench.cluster import worker


class AcceleratorError(RuntimeError):
    """torch's."""


class DistBackendError(RuntimeError):
    """torch's."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        AcceleratorError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        DistBackendError("NCCL error\nLast error:\nCuda failure 2 'out of memory'"),
        RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    ],
)
def test_a_lack_of_memory_is_known_by_whoever_says_it(error: Exception) -> None:
    assert worker._report(error).failure == "oom"


@pytest.mark.parametrize(
    "error",
    [
        AcceleratorError("CUDA error: device-side assert triggered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
        ValueError("shapes do not fit"),
    ],
)
def test_other_errors_are_not_taken_for_it(error: Exception) -> None:
    assert worker._report(error).failure == "error"
