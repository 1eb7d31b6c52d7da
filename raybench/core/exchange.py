"""What workers exchange."""

from raybench.core.spec import RunSpec

BYTES_OF = {"none": 4, "fp16": 2, "bf16": 2}
"""Of one gradient on its way, by `gradient_compression`: weights, and so gradients, are float32
whatever the precision."""


def bytes_exchanged(spec: RunSpec, num_parameters: int) -> int:
    """Return what a worker gives to the exchange of one optimizer step, in bytes.

    A replica of a `single_process` gives as much, to others in its process. What nn.DataParallel
    copies beside it (weights and samples to every GPU, outputs back) is not in it.
    """
    if spec.num_workers == 1 or not spec.exchange_gradients:
        return 0
    return BYTES_OF[spec.gradient_compression] * num_parameters
