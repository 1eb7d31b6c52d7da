"""Torch models: construction, inputs, losses, weights, layers; and batch normalization over all
workers. Mirrors tensorflow/model.py.

The layers of a workload are modules in their fastest form:

| layer              | fast form                                     | result                     |
|--------------------|-----------------------------------------------|----------------------------|
| ReLU               | in place, where its input is not used again   | the same bits              |
| ReLU, then MaxPool | swapped, so that ReLU gets fewer values       | the same bits              |
| DepthwiseConv      | on a CPU, several convolutions with one       | the same sums in another   |
|                    | filter per channel instead of one with many   | order                      |

A fast form has the same parameters as torch's own module, with the same names, in the same order.
"""

import io
import itertools
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from raybench.data.dataset import IGNORED, Array, Batch, InputShape, each, parts
from raybench.models import layers as description
from raybench.models.base import LayerWorkload, Workload
from raybench.models.layers import Layer, Shape, initial_weights, output_shapes
from raybench.models.named import NamedWorkload
from raybench.training.base import BaseLosses
from raybench.training.torch.named import build_named

Inputs = torch.Tensor | dict[str, torch.Tensor]
"""Inputs of a batch: a tensor, or several tensors by name."""
MODEL_TYPE = nn.Module
"""Base class of all models."""


def build_model(workload: Workload, seed: int) -> nn.Module:
    """Build the model of a workload on the CPU, and seed all random numbers.

    The model takes images of shape (N, C, H, W), see `prepare_inputs`.

    Args:
        workload: Workload that builds the model.
        seed: Seed for the weights and for all later random numbers.

    Raises:
        UserError: The workload has no method `build_torch`.
    """
    set_random_seed(seed)
    if isinstance(workload, NamedWorkload):
        return build_named(workload, seed)
    if not isinstance(workload, LayerWorkload):
        model = workload.build_torch()
        if isinstance(model, nn.Module):  # `check_model` refuses anything else
            _copy_shared_buffers(model)
        return model
    model = nn.Sequential(*build_layers(workload.layers, workload.input_shape), Float32())
    weights = initial_weights(workload.layers, workload.input_shape, seed)
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(weight))
    return model


def set_random_seed(seed: int) -> None:
    """Seed Python, numpy and torch, as `keras.utils.set_random_seed` does for Keras."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (a user's model may draw from it)
    torch.manual_seed(seed)


def _copy_shared_buffers(model: nn.Module) -> None:
    """Copy each buffer of a model whose elements may share memory, as after `expand` or `unfold`.

    Such buffers cannot be written to when a state is loaded or averaged over workers.
    """
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.layout == torch.strided and not buffer.is_contiguous():
                setattr(module, name, buffer.contiguous())


class Float32(nn.Module):
    """Last layer of a model: converts the logits to float32, also under autocast.

    This takes no time if they are float32 already.
    """

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return `outputs` as float32."""
        return outputs.float()


def num_parameters(model: nn.Module) -> int:
    """Return the number of trainable parameters of a model."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def num_parameters_of(workload: Workload) -> int:
    """Return the number of trainable parameters of a workload's model, without allocating memory
    for them."""
    with torch.device("meta"):
        return num_parameters(build_model(workload, seed=0))


def batch_statistics(model: nn.Module) -> bool:
    """Return whether any layer normalizes over the batch of one worker.

    If so, training depends on the batch size per worker, not only on the global batch size.
    `SyncBatchNorm` does not count, because it uses the samples of all workers.
    """
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return any(isinstance(module, kinds) for module in model.modules())


def has_channels(shape: InputShape) -> bool:
    """Return whether inputs of this shape include images with several channels."""
    return any(len(image) == 3 and image[-1] > 1 for image in parts(shape))


def prepare_inputs(inputs: Inputs, *, channels_last: bool = False) -> Inputs:
    """Convert inputs of a dataset to inputs of the model.

    uint8 becomes float32 in [0, 1], other integers become int64, and images (N, H, W, C) become
    (N, C, H, W). A dict is converted entry by entry.

    Args:
        inputs: Inputs of the samples.
        channels_last: Whether images with one channel get the channels-last memory format. Images
            with several channels always have it, because their axes are permuted without a copy.
    """
    return each(inputs, partial(_prepare_tensor, channels_last=channels_last))


def _prepare_tensor(inputs: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """Convert one tensor; see `prepare_inputs`."""
    if inputs.dtype == torch.uint8:
        inputs = inputs.float().mul_(1 / 255)
    elif not inputs.is_floating_point():
        return inputs.long()
    if inputs.ndim != 4:
        return inputs
    count, height, width, channels = inputs.shape
    # With one channel, both memory formats are the same. After `reshape`, torch does not treat the
    # tensor as channels last, a format that the outputs of convolutions would inherit.
    if channels == 1 and not channels_last:
        return inputs.reshape(count, 1, height, width)
    return inputs.permute(0, 3, 1, 2)


def predict(model: nn.Module, inputs: Batch) -> Array:
    """Return the float32 outputs of a model in evaluation mode for input arrays of a dataset."""
    device = next(iter(model.parameters()), torch.empty(0)).device
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            tensors: Inputs = each(inputs, lambda array: torch.tensor(array, device=device))
            outputs: torch.Tensor = model(prepare_inputs(tensors))
            return outputs.float().cpu().numpy()
    finally:
        model.train(was_training)


def training_outputs(
    model: nn.Module, inputs: Batch, labels: Array, gpu: int | None
) -> tuple[Tensor, Tensor]:
    """Return the outputs of a model in training mode for input arrays, and labels as a tensor.

    The model is moved to the GPU with the index `gpu` among the visible ones, or to the CPU if
    `gpu` is None.
    """
    device = "cpu" if gpu is None else f"cuda:{gpu}"
    batch: Inputs = each(inputs, lambda array: torch.tensor(array, device=device))
    outputs: Tensor = model.to(device).train()(prepare_inputs(batch))
    return outputs, torch.tensor(labels, device=device)


def to_array(tensor: Tensor) -> Array:
    """Return a tensor as a float32 array."""
    return tensor.detach().float().cpu().numpy()


def save_weights(model: nn.Module) -> bytes:
    """Return the state dict of a model, serialized with `torch.save`."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.getvalue()


def load_weights(model: nn.Module, weights: bytes) -> None:
    """Load weights that `save_weights` has returned into a model, on the model's device."""
    model.load_state_dict(torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True))


Mixed = tuple[Tensor, Tensor, Tensor]
"""With mixup: the labels of the second sample of each mixed pair, and two weights of shape (N,):
one for the loss with the first sample's labels, one for the loss with the second sample's."""


class Losses(BaseLosses):
    """Loss and metric of a run in torch; see `BaseLosses`."""

    PREFIX = "torch"

    def _floats(self, values: Tensor) -> Tensor:
        return values.float()

    def _mean(self, values: Tensor) -> Tensor:
        return values if values.ndim == 1 else values.mean(dim=1)

    def _mean_of_counted(self, values: Tensor, labels: Tensor) -> Tensor:
        counted = labels != IGNORED
        return (values * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1)

    def _errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.float().reshape(labels.shape) - labels.float()

    def _cross_entropy(self, outputs: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        if labels.ndim == 1:
            return functional.cross_entropy(
                outputs.float(), labels, reduction="none", label_smoothing=smoothing
            )
        losses = functional.cross_entropy(
            outputs.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORED,
            reduction="none",
            label_smoothing=smoothing,
        )
        return losses.reshape(labels.shape)

    def _hits(self, outputs: Tensor, labels: Tensor, most: int) -> Tensor:
        if most == 1:
            return outputs.argmax(dim=-1) == labels
        best = outputs.topk(min(most, outputs.shape[-1]), dim=-1).indices
        return (best == labels.unsqueeze(-1)).any(dim=-1)


_KEEP_NO_OUTPUT = (nn.Conv2d, nn.MaxPool2d, nn.Linear, nn.GroupNorm, nn.LayerNorm)
"""Modules whose backward pass does not read their outputs, so that a ReLU after them may work in
place."""
NORM_EPSILON = 1e-5
"""Epsilon that normalization layers add to the variance."""


def build_layers(layers: Sequence[Layer], input_shape: Shape) -> list[nn.Module]:
    """Build a torch module from each description of a layer.

    `input_shape` is the shape of one sample: (H, W, C) for images, although the modules take images
    of shape (N, C, H, W).
    """
    befores = [input_shape, *output_shapes(layers, input_shape)]
    pairs = zip(layers, befores, strict=False)
    modules = [_MODULES[type(layer)](layer, before) for layer, before in pairs]
    for index in range(1, len(modules)):
        module, before = modules[index], modules[index - 1]
        # Both orders give the same outputs and gradients: among equal values, the first one counts
        # as the maximum, and where all values are 0, ReLU passes no gradient.
        if isinstance(module, nn.MaxPool2d) and isinstance(before, nn.ReLU):
            modules[index - 1 : index + 1] = [module, before]
    for before, module in itertools.pairwise(modules):
        if isinstance(module, nn.ReLU):
            # ReLU's input is not read again, neither forward nor backward.
            module.inplace = isinstance(before, _KEEP_NO_OUTPUT)
    return modules


class DepthwiseConv2d(nn.Conv2d):
    """A depthwise convolution with `multiplier` filters per input channel.

    On a CPU, it runs as `multiplier` convolutions with one filter per channel, since oneDNN has
    fast kernels only for these. One convolution with several filters per channel would take two to
    four times as long.
    """

    def __init__(self, channels: int, multiplier: int, kernel: int, padding: str) -> None:
        super().__init__(channels, channels * multiplier, kernel, padding=padding, groups=channels)
        self._multiplier = multiplier

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs of shape (N, channels * multiplier, H, W), in which the outputs of a
        channel's filters are adjacent."""
        if self._multiplier == 1 or inputs.device.type != "cpu":
            return super().forward(inputs)
        outputs = [
            functional.conv2d(
                inputs,
                self.weight[position :: self._multiplier],
                None if self.bias is None else self.bias[position :: self._multiplier],
                padding=self.padding,
                groups=self.groups,
            )
            for position in range(self._multiplier)
        ]
        if not outputs[0].is_contiguous(memory_format=torch.channels_last):
            return torch.stack(outputs, dim=2).flatten(1, 2)
        side_by_side = torch.stack([output.permute(0, 2, 3, 1) for output in outputs], dim=4)
        return side_by_side.flatten(3, 4).permute(0, 3, 1, 2)


class TorchPositions(nn.Module):
    """Adds a learned vector to each position of a sequence."""

    def __init__(self, tokens: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(tokens, size))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs of shape (N, tokens, size) plus the vectors, in the same shape."""
        return inputs + self.weight


class TorchGlobalAveragePool(nn.Module):
    """Mean over the pixels of an image or the tokens of a sequence."""

    def __init__(self, *, is_image: bool) -> None:
        super().__init__()
        self._axes = (2, 3) if is_image else (1,)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (N, channels) for inputs (N, channels, H, W) or (N, tokens, channels)."""
        return inputs.mean(self._axes)


class TorchCausalAttention(nn.Module):
    """Causal self-attention: each token attends to itself and to earlier tokens."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.joined = nn.Linear(size, 3 * size)
        self.last = nn.Linear(size, size)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs in the shape of the inputs, (N, tokens, size)."""
        count, tokens, size = inputs.shape
        joined = self.joined(inputs).view(count, tokens, 3, self._heads, size // self._heads)
        queries, keys, values = joined.permute(2, 0, 3, 1, 4)
        means = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        outputs: torch.Tensor = self.last(means.transpose(1, 2).reshape(count, tokens, size))
        return outputs


class TorchResidual(nn.Module):
    """Residual connection: adds the input of some layers to their output."""

    def __init__(self, layers: Sequence[Layer], before: Shape) -> None:
        super().__init__()
        self.layers = nn.Sequential(*build_layers(layers, before))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the sum, in the shape of the inputs."""
        outputs: torch.Tensor = self.layers(inputs)
        return inputs + outputs


_MODULES: dict[type[Any], Callable[[Any, Shape], nn.Module]] = {
    description.Conv: lambda layer, before: nn.Conv2d(
        before[-1], layer.filters, layer.kernel, padding=layer.padding
    ),
    description.DepthwiseConv: lambda layer, before: DepthwiseConv2d(
        before[-1], layer.multiplier, layer.kernel, layer.padding
    ),
    description.MaxPool: lambda layer, before: nn.MaxPool2d(layer.size),
    description.ReLU: lambda layer, before: nn.ReLU(),
    description.Flatten: lambda layer, before: nn.Flatten(),
    description.Dense: lambda layer, before: nn.Linear(before[-1], layer.units),
    description.Dropout: lambda layer, before: nn.Dropout(layer.rate),
    description.GELU: lambda layer, before: nn.GELU(),
    description.GroupNorm: lambda layer, before: nn.GroupNorm(
        layer.groups, before[-1], NORM_EPSILON
    ),
    description.LayerNorm: lambda layer, before: nn.LayerNorm(before[-1], NORM_EPSILON),
    description.GlobalAveragePool: lambda layer, before: TorchGlobalAveragePool(
        is_image=len(before) == 3
    ),
    description.Embedding: lambda layer, before: nn.Embedding(layer.vocabulary, layer.size),
    description.MeanEmbedding: lambda layer, before: nn.EmbeddingBag(
        layer.vocabulary, layer.size, mode="mean", padding_idx=0
    ),
    description.Positions: lambda layer, before: TorchPositions(*before),
    description.CausalAttention: lambda layer, before: TorchCausalAttention(
        before[-1], layer.heads
    ),
    description.Residual: lambda layer, before: TorchResidual(layer.layers, before),
}
"""Functions that build a torch module from the description of a layer and the layer's input shape,
keyed by class of the description."""


STATISTICS = ("running_mean", "running_var")
"""Names of the buffers with the running statistics of batch normalization."""


@torch.no_grad()
def average_statistics(model: nn.Module) -> None:
    """Make the buffers of a model equal on all ranks. Collective: all ranks must call it.

    The running means and variances of batch normalization are averaged over the ranks; other
    buffers, such as a codebook or a queue, are copied from rank 0. Training does not read the
    running statistics, so this is needed only before the model is evaluated or saved. DDP would
    broadcast all buffers from rank 0 at every step.
    """
    buffers = dict(model.named_buffers())
    for name, other in buffers.items():
        if not name.endswith((*STATISTICS, "num_batches_tracked")):
            # Sent as bytes, because Gloo does not support all types.
            sent = other.contiguous().reshape(-1).view(torch.uint8)
            dist.broadcast(sent, 0)
            other.copy_(sent.view(other.dtype).view_as(other))
    statistics = [buffer for name, buffer in buffers.items() if name.endswith(STATISTICS)]
    if not statistics:
        return
    together = torch.cat([buffer.flatten() for buffer in statistics])
    dist.all_reduce(together)
    together /= dist.get_world_size()
    means = torch.split_with_sizes(together, [buffer.numel() for buffer in statistics])
    for buffer, mean in zip(statistics, means, strict=True):
        buffer.copy_(mean.view_as(buffer))


def synchronize(model: nn.Module) -> nn.Module:
    """Return the model with every batch normalization layer converted to SyncBatchNorm.

    SyncBatchNorm needs GPUs. Parameters keep their names. If a batch normalization layer of timm
    includes an activation, the converted layer includes it, too.
    """
    timm = sys.modules.get("timm.layers")  # imported if a model uses it
    convert: Any = (timm or nn.SyncBatchNorm).convert_sync_batchnorm
    return convert(model)  # type: ignore[no-any-return]
