"""timm's models of images."""

import difflib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import timm
from torch import nn

from raybench.backends.torch.named.model import NamedModel, differing
from raybench.core.errors import UserError
from raybench.workloads.named.cache import first_there, missing, torch_folder
from raybench.workloads.named.workload import NamedWorkload

FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of the weights on the Hugging Face hub."""
RGB = 3


def build(workload: NamedWorkload, seed: int) -> NamedModel:
    """Return the model; torch has been seeded. Channels other than 1 and 3 are its own."""
    del seed
    known = timm.list_models()
    plain = workload.model.partition(".")[0]
    if plain not in known:
        close = difflib.get_close_matches(plain, known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else "see timm.list_models()."
        raise UserError(
            f"Workload {workload.name}: timm has no model '{workload.model}' among its "
            f"{len(known)} models; {hint}"
        )
    assert not isinstance(workload.input_shape, dict)
    height, width, channels = workload.input_shape
    if channels == 1:
        channels = RGB
    config = _config(workload)
    given: dict[str, Any] = {"in_chans": channels}
    if config.get("fixed_input_size"):
        given["img_size"] = (height, width)

    def make(num_outputs: int) -> nn.Module:
        return timm.create_model(workload.model, num_classes=num_outputs, **given)

    normalised = {"mean": config["mean"], "std": config["std"]} if channels == RGB else {}
    try:
        head = differing(make, workload.num_classes)
        return NamedModel(make(workload.num_classes), head, **normalised)
    except (AssertionError, ValueError, RuntimeError) as error:
        raise UserError(
            f"Workload {workload.name}: cannot be built for images of {height} x {width} "
            f"({error}); set dataset.image_size: {config['input_size'][-1]}."
        ) from error


def cached(workload: NamedWorkload) -> Path:
    """Return the file of trained weights, as timm or the Hugging Face hub keeps it."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    config = _config(workload)
    hub = config.get("hf_hub_id")
    if not hub:
        url = str(config.get("url") or "")
        if not url:
            raise UserError(f"weights cached: timm has none for {workload.model}; set none.")
        folder, _, file = url.rpartition("/")
        return first_there(workload.name, torch_folder(), (file,), f"{folder}/")
    hub = hub if hub != "timm/" else f"timm/{workload.model}"
    for file in FILES:
        found = try_to_load_from_cache(hub, file)
        if isinstance(found, str):
            return Path(found)
    place = f"{HF_HUB_CACHE}/models--{hub.replace('/', '--')} (hf download {hub} {FILES[0]})"
    raise missing(workload.name, place)


def _config(workload: NamedWorkload) -> dict[str, Any]:
    """Return what timm says of the model's trained weights: size, mean, std, where they are."""
    config = timm.models.get_pretrained_cfg(workload.model)
    if config is None:
        raise UserError(
            f"Workload {workload.name}: timm has no weights of that tag; leave out what follows "
            "the dot."
        )
    content: dict[str, Any] = asdict(config)
    return content
