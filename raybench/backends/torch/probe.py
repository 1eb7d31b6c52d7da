"""A user's torch model tried on a few samples, before any worker starts. Mirrors tensorflow's."""

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from raybench.backends.probe import (
    Array,
    check_gradients,
    check_outputs,
    check_parameters,
    check_per_sample,
    softmax_warning,
)
from raybench.backends.torch.model import (
    build_model,
    loss_and_correct,
    num_parameters,
    prepare_inputs,
)
from raybench.core.errors import UserError
from raybench.workloads.base import Workload
from raybench.workloads.users_code import users_code


def probe_model(workload: Workload, inputs: Array, labels: Array, *, gpu: bool) -> list[str]:
    """Build the model, take a batch through it and back; warnings, or a UserError.

    With `gpu`, there; where this machine has none, nothing is tried.
    """
    if gpu and not torch.cuda.is_available():
        return []
    device = "cuda" if gpu else "cpu"
    model = _build(workload).to(device)
    if inputs.shape[-1] > 1:
        model = model.to(memory_format=torch.channels_last)  # as in training
    batch = prepare_inputs(torch.from_numpy(inputs).to(device))
    answers = torch.from_numpy(labels).to(device)
    failed = f"Workload {workload.name}: its torch model failed on inputs {tuple(batch.shape)}"
    is_default = workload.torch_loss is None or workload.torch_correct is None
    for module in (model.eval(), model.train()):
        with users_code(failed):
            outputs = module(batch)
        if not isinstance(outputs, torch.Tensor):
            kind = type(outputs).__name__
            raise UserError(
                f"Workload {workload.name}: its model must return a tensor, not {kind}."
            )
        check_outputs(workload, _array(outputs), len(labels), is_default=is_default)
    with users_code(f"Workload {workload.name}: its loss failed in torch"):
        loss, correct = loss_and_correct(workload, outputs, answers)
    check_per_sample(workload, "its torch loss", _array(loss), len(labels))
    check_per_sample(workload, "torch_correct", _array(correct), len(labels))
    if loss.requires_grad:
        with users_code(f"Workload {workload.name}: the way back through its torch model failed"):
            torch.autograd.backward(loss.sum())
    gradients = {
        name: None if parameter.grad is None else _array(parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    warnings = check_gradients(workload, gradients)
    if workload.torch_loss is None:
        warnings += softmax_warning(workload, _array(outputs))
    return warnings


def _build(workload: Workload) -> nn.Module:
    with users_code(f"Workload {workload.name}: build_torch failed"):
        model = build_model(workload, seed=0)
    if not isinstance(model, nn.Module):
        raise UserError(
            f"Workload {workload.name}: build_torch must return a torch.nn.Module, not "
            f"{type(model).__name__}."
        )
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise UserError(
            f"Workload {workload.name}: its torch model has lazy layers; give them their sizes."
        )
    check_parameters(workload, num_parameters(model))
    return model


def _array(tensor: torch.Tensor) -> Array:
    return tensor.detach().float().cpu().numpy()
