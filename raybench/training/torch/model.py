"""Torch models: construction, inputs, losses, weights. Mirrors tensorflow/model.py."""

import io
import random
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from raybench.data.dataset import IGNORED
from raybench.data.inputs import Array, Batch, InputShape, each, parts
from raybench.models.base import LayerWorkload, Workload
from raybench.models.layers import initial_weights
from raybench.models.named import NamedWorkload
from raybench.training.losses import BaseLosses
from raybench.training.torch.layers import build_layers
from raybench.training.torch.named import build_named

Inputs = torch.Tensor | dict[str, torch.Tensor]
MODEL_TYPE = nn.Module
"""Class of all models."""


def build_model(workload: Workload, seed: int) -> nn.Module:
    """Build a model on the CPU; `seed` fixes its weights and all later random numbers.

    The model takes images (N, C, H, W), see `prepare_inputs`. Raises UserError for a workload
    without `build_torch`.
    """
    set_random_seed(seed)
    if isinstance(workload, NamedWorkload):
        return build_named(workload, seed)
    if not isinstance(workload, LayerWorkload):
        model = workload.build_torch()
        if isinstance(model, nn.Module):  # `check_model` refuses anything else
            _own_memory(model)
        return model
    model = nn.Sequential(*build_layers(workload.layers, workload.input_shape), Float32())
    weights = initial_weights(workload.layers, workload.input_shape, seed)
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(weight))
    return model


def set_random_seed(seed: int) -> None:
    """Seed Python, numpy and torch, like `keras.utils.set_random_seed`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (a user's model may draw from it)
    torch.manual_seed(seed)


def _own_memory(model: nn.Module) -> None:
    """Copy buffers whose elements may share memory (`expand`, `unfold`), as these could not be
    written to when a state is loaded or averaged over workers."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.layout == torch.strided and not buffer.is_contiguous():
                setattr(module, name, buffer.contiguous())


class Float32(nn.Module):
    """Last layer of a model: makes the logits float32, under autocast too; free if they are."""

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return `outputs` as float32."""
        return outputs.float()


def num_parameters(model: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def num_parameters_of(workload: Workload) -> int:
    """Return the number of trainable parameters of a workload's model, without allocating them."""
    with torch.device("meta"):
        return num_parameters(build_model(workload, seed=0))


def batch_statistics(model: nn.Module) -> bool:
    """Return whether a layer normalizes over the batch of one worker.

    Then training depends on the batch per worker, not only on the global batch. `SyncBatchNorm`
    uses the samples of all workers and does not count.
    """
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return any(isinstance(module, kinds) for module in model.modules())


def has_channels(shape: InputShape) -> bool:
    """Return whether inputs of this shape include images with several channels."""
    return any(len(image) == 3 and image[-1] > 1 for image in parts(shape))


def prepare_inputs(inputs: Inputs, *, channels_last: bool = False) -> Inputs:
    """Convert inputs for the model: uint8 to float32 in [0, 1], images (N, H, W, C) to (N, C, H,
    W), integers to int64. A dict is converted entry by entry.

    The permutation is a view, so images with several channels are in the channels_last memory
    format, images with one channel only if `channels_last` is set.
    """
    return each(inputs, partial(_prepared, channels_last=channels_last))


def _prepared(inputs: torch.Tensor, channels_last: bool) -> torch.Tensor:
    if inputs.dtype == torch.uint8:
        inputs = inputs.float().mul_(1 / 255)
    elif not inputs.is_floating_point():
        return inputs.long()
    if inputs.ndim != 4:
        return inputs
    count, height, width, channels = inputs.shape
    # With one channel both memory formats are the same; `reshape` keeps torch from treating the
    # tensor as channels last, which convolutions would propagate.
    if channels == 1 and not channels_last:
        return inputs.reshape(count, 1, height, width)
    return inputs.permute(0, 3, 1, 2)


def predict(model: nn.Module, inputs: Batch) -> Array:
    """Return the outputs of a model in evaluation mode for input arrays of a dataset."""
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
    """Return the outputs of a model in training mode for arrays of a dataset, and the labels as a
    tensor; both on the GPU of this index, or on the CPU."""
    device = "cpu" if gpu is None else f"cuda:{gpu}"
    batch: Inputs = each(inputs, lambda array: torch.tensor(array, device=device))
    outputs: Tensor = model.to(device).train()(prepare_inputs(batch))
    return outputs, torch.tensor(labels, device=device)


def to_array(tensor: Tensor) -> Array:
    """Return the numbers of a tensor as float32."""
    return tensor.detach().float().cpu().numpy()


def save_weights(model: nn.Module) -> bytes:
    """Return the state dict as `torch.save` writes it."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.getvalue()


def load_weights(model: nn.Module, weights: bytes) -> None:
    """Load weights that `save_weights` returned, onto the device of the model."""
    model.load_state_dict(torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True))


Mixed = tuple[Tensor, Tensor, Tensor]
"""With mixup: labels of the second sample in each mix, and weights (N,) of the losses computed with
the labels of the first and of the second sample."""


class Losses(BaseLosses):
    """Loss and metric of a run in torch."""

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
