"""Torch models: construction, inputs, losses, weights. Mirrors tensorflow/model.py."""

import io
import random
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from raybench.data.dataset import IGNORED, Array, Batch, InputShape, each, parts
from raybench.models.base import LayerWorkload, Workload
from raybench.models.layers import initial_weights
from raybench.models.named import NamedWorkload
from raybench.training.losses import BaseLosses
from raybench.training.torch.layers import build_layers
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
    """Return the outputs of a model in evaluation mode for input arrays of a dataset; float32."""
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
    """Return the outputs of a model in training mode, and the labels as a tensor.

    Args:
        model: The model, which is moved to the device.
        inputs: Input arrays of a dataset.
        labels: Labels of the samples.
        gpu: GPU to use, as an index among the visible ones; None for the CPU.
    """
    device = "cpu" if gpu is None else f"cuda:{gpu}"
    batch: Inputs = each(inputs, lambda array: torch.tensor(array, device=device))
    outputs: Tensor = model.to(device).train()(prepare_inputs(batch))
    return outputs, torch.tensor(labels, device=device)


def to_array(tensor: Tensor) -> Array:
    """Return a tensor as a float32 array."""
    return tensor.detach().float().cpu().numpy()


def save_weights(model: nn.Module) -> bytes:
    """Return the state dict of a model as a file of `torch.save`."""
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
