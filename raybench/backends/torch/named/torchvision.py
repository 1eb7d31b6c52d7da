"""torchvision's models of images."""

import difflib
from pathlib import Path
from typing import Any

import torchvision
from torch import nn

from raybench.backends.torch.named.model import NamedModel, differing
from raybench.core.errors import UserError
from raybench.workloads.named.cache import TORCH_URL, first_there, torch_folder
from raybench.workloads.named.networks import MEAN, STD
from raybench.workloads.named.workload import NamedWorkload

SIZED = ("vit_", "maxvit_")
"""Beginnings of the names of models that are made for one size of images."""
WITH_AUXILIARY = ("googlenet", "inception_v3")
"""Models with more heads in training, which are left out."""


def build(workload: NamedWorkload, seed: int) -> NamedModel:
    """Return the model; torch has been seeded."""
    del seed
    name = workload.model
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise unknown(workload, known)
    assert not isinstance(workload.input_shape, dict)
    height, width, _ = workload.input_shape
    given: dict[str, Any] = {}
    if name in WITH_AUXILIARY:
        given = {"aux_logits": False, "init_weights": True}
    if name.startswith(SIZED):
        if height != width:
            raise UserError(f"Workload {workload.name}: takes square images alone.")
        is_maxvit = name.startswith("maxvit_")
        given = {"input_size": (height, width)} if is_maxvit else {"image_size": height}

    def make(num_outputs: int) -> nn.Module:
        model: nn.Module = torchvision.models.get_model(
            name, weights=None, num_classes=num_outputs, **given
        )
        return model

    mean, std = _normalisation(name)
    try:
        head = differing(make, workload.num_classes)
        return NamedModel(make(workload.num_classes), head, mean=mean, std=std)
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"Workload {workload.name}: cannot be built for images of {height} x {width} "
            f"({error}); set dataset.image_size: 224."
        ) from error


def cached(workload: NamedWorkload) -> Path:
    """Return the file of trained weights, of the newest ones that this machine has."""
    versions = torchvision.models.get_model_weights(workload.model)
    first = [versions.DEFAULT] if len(versions) else []
    files = [one.url.rpartition("/")[2] for one in (*first, *versions)]
    if not files:
        raise UserError(f"weights cached: torchvision has none for {workload.model}; set none.")
    return first_there(workload.name, torch_folder(), tuple(files), TORCH_URL)


def unknown(workload: NamedWorkload, known: list[str]) -> UserError:
    """Return the error of a name that the library has not."""
    close = difflib.get_close_matches(workload.model, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else "see the library's list of models."
    return UserError(
        f"Workload {workload.name}: {workload.library} has no model '{workload.model}' among its "
        f"{len(known)} models; {hint}"
    )


def _normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std that the model's trained weights expect."""
    versions = torchvision.models.get_model_weights(name)
    if not len(versions):
        return MEAN, STD
    preset = versions.DEFAULT.transforms()
    return tuple(preset.mean), tuple(preset.std)
