"""Trial of a torch model on a few samples, and checks of its start, before any worker starts.
Mirrors tensorflow/probe.py."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from raybench.data.inputs import Batch, each
from raybench.models.base import Workload
from raybench.models.named import NamedWorkload
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import RunSpec
from raybench.training.probe import Array, BaseTrial
from raybench.training.torch import model as torch_model
from raybench.training.torch.layers import synchronize
from raybench.training.torch.model import Inputs, has_channels, prepare_inputs
from raybench.training.torch.optim import as_real, refuse_complex


class Trial(BaseTrial):
    """Trial of a model in torch."""

    framework = model_words = "torch"
    module, builder = torch_model, "build_torch"
    model_type, type_words = nn.Module, "torch.nn.Module"

    def _has_gpu(self) -> bool:
        return torch.cuda.is_available()

    def _check_model(self, model: nn.Module) -> None:
        if any(is_lazy(parameter) for parameter in model.parameters()):
            raise self._error("its torch model has lazy layers; give them their sizes.")

    def _tensors(
        self, model: nn.Module, inputs: Batch, labels: Array
    ) -> tuple[nn.Module, Inputs, Tensor]:
        device = "cuda" if self._gpu else "cpu"
        model = model.to(device)
        if has_channels(each(inputs, lambda one: tuple(one.shape[1:]))):
            model = model.to(memory_format=torch.channels_last)
        batch = prepare_inputs(each(inputs, lambda one: torch.from_numpy(one).to(device)))
        return model, batch, torch.from_numpy(labels).to(device)

    def _forward(self, model: nn.Module, batch: Inputs, training: bool) -> object:
        with torch.set_grad_enabled(training):
            return model.train(training)(batch)

    def _refused_kind(self, outputs: object) -> str | None:
        if not isinstance(outputs, Tensor):
            return type(outputs).__name__
        return None if outputs.is_floating_point() else str(outputs.dtype)

    def _gradients(
        self, model: nn.Module, batch: Inputs, answers: Tensor, losses: Tensor
    ) -> dict[str, Array | None]:
        """Return the gradient of every trainable parameter, or None."""
        if losses.requires_grad:
            torch.autograd.backward(losses.sum())
        return {
            name: None if parameter.grad is None else self._array(parameter.grad)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }

    def _array(self, tensor: Tensor) -> Array:
        return as_real(tensor.detach()).float().cpu().numpy()


def check_built(model: nn.Module, workload: Workload, spec: RunSpec) -> list[str]:
    """Raise UserError if the image size, batch normalization or complex weights are not supported;
    returns no warnings."""
    if isinstance(workload, NamedWorkload):
        _check_size(model, workload)
    if spec.sync_batch_norm:
        synchronize(model)
    refuse_complex(model, spec)
    return []


def _check_size(model: nn.Module, workload: NamedWorkload) -> None:
    """Raise UserError for images too small for the network."""
    shape = workload.input_shape
    if isinstance(shape, dict) or len(shape) != 3:
        return
    height, width, channels = shape
    shadow = copy.deepcopy(model).to("meta").eval()
    error = _forward(shadow, channels, height, width)
    if error is None:
        return
    raise UserError(
        f"Workload {workload.name}: cannot take images of {height} x {width} ({error}); set a "
        "larger dataset.image_size.",
        ErrorCode.INVALID_MODEL,
    )


def _forward(model: nn.Module, channels: int, height: int, width: int) -> Exception | None:
    """Return the error of a forward pass on the meta device, or None."""
    try:
        with torch.no_grad():
            model(torch.empty(2, channels, height, width, device="meta"))
    except (RuntimeError, ValueError, AssertionError) as error:
        return error
    return None
