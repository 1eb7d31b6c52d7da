"""Check of a torch model on a few samples. Mirrors tensorflow/model_check.py."""

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from raybench.data.inputs import Batch, each
from raybench.training.model_check import Array, BaseModelCheck
from raybench.training.torch import model as torch_model
from raybench.training.torch.model import Inputs, has_channels, prepare_inputs
from raybench.training.torch.optim import as_real


class ModelCheck(BaseModelCheck):
    """Check of a model in torch."""

    framework = model_words = "torch"
    module, builder = torch_model, "build_torch"
    model_type, type_words = nn.Module, "torch.nn.Module"

    def _check_model(self, model: nn.Module) -> None:
        if any(is_lazy(parameter) for parameter in model.parameters()):
            raise self._error("its torch model has lazy layers; give them their sizes.")

    def _tensors(
        self, model: nn.Module, inputs: Batch, labels: Array
    ) -> tuple[nn.Module, Inputs, Tensor]:
        device = "cpu" if self._gpu is None else f"cuda:{self._gpu}"
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
        """Return the gradient of every trainable parameter by name; None for those without one."""
        if losses.requires_grad:
            torch.autograd.backward(losses.sum())
        return {
            name: None if parameter.grad is None else self._array(parameter.grad)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }

    def _array(self, tensor: Tensor) -> Array:
        return as_real(tensor.detach()).float().cpu().numpy()
