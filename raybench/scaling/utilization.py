"""Peak speed of GPUs, and the fraction of it that training uses (MFU)."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from raybench.spec.run import RunSpec

PEAK_TFLOPS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "V100": {"fp32": 15.7, "fp16": 125},
        "T4": {"fp32": 8.1, "fp16": 65},
        "L4": {"fp32": 30.3, "tf32": 60, "fp16": 121, "bf16": 121},
        "L40S": {"fp32": 91.6, "tf32": 183, "fp16": 362, "bf16": 362},
        "A10G": {"fp32": 35, "tf32": 35, "fp16": 70, "bf16": 70},
        "A100": {"fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312},
        "H100": {"fp32": 67, "tf32": 494, "fp16": 989, "bf16": 989},
        "H200": {"fp32": 67, "tf32": 494, "fp16": 989, "bf16": 989},
        "H20": {"fp32": 44, "tf32": 74, "fp16": 148, "bf16": 148},
        "B200": {"fp32": 75, "tf32": 1125, "fp16": 2250, "bf16": 2250},
    }
)
"""Peak of a GPU in TFLOP/s, by Ray's name of the GPU and by `precision`: without sparsity, and of
the SXM version if there are several (NVIDIA's data sheets)."""


def peak_flops(spec: RunSpec, accelerators: str) -> float:
    """Return the peak floating-point operations per second of all GPUs of a run.

    Args:
        spec: The run spec.
        accelerators: Ray's name of the GPU model; empty without GPUs.

    Returns:
        The peak; NaN if it is unknown: without GPUs, for GPUs that are not in PEAK_TFLOPS, and for
        several GPU models.
    """
    peaks = PEAK_TFLOPS.get(accelerators.split("-")[0], {})  # A100 for A100-80G
    return 1e12 * peaks.get(spec.precision, math.nan) * spec.num_workers * spec.gpus_per_worker
