"""Torch models chosen by name from torchvision, timm or transformers, and their initial weights.

Networks that exist in both frameworks (`models.named.NETWORKS`) are torchvision's, with the same
initial weights as in Keras. Libraries are imported only when they are used, because an import takes
seconds, and a library may not be installed. Mirrors tensorflow/named.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from raybench.models.base import Workload
from raybench.models.named import (
    MEAN,
    NETWORKS,
    STD,
    NamedWorkload,
    initial_arrays,
    missing,
    new_head,
    unfit_images,
    unknown_model,
    weights_file,
    weights_mismatch_error,
)
from raybench.models.user_code import check_settings
from raybench.spec.errors import ErrorCode, UserError, did_you_mean

Tensors = dict[str, Tensor]
"""Tensors by name."""
PREFIX = "net."
"""Prefix that `NamedModel` adds to the names of a library's weights."""
FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of weight files on the Hugging Face hub, the preferred one first."""
RGB = 3
"""Number of channels of a color image."""
PADDING = 0
"""Token id of padding, used if the model's configuration names none."""


class NamedModel(nn.Module):
    """Wraps a library's model so that it takes pixels in [0, 1] and returns float32 outputs.

    Pixels are normalized as the library's pretrained weights require, even if these are not loaded.
    The channel of images with a single channel is repeated three times.
    """

    def __init__(
        self,
        net: nn.Module,
        head: tuple[str, ...],
        *,
        mean: tuple[float, ...] = (),
        std: tuple[float, ...] = (),
    ) -> None:
        super().__init__()
        self.net = net
        self.head = tuple(f"{PREFIX}{name}" for name in head)
        """Names of the parameters that belong to the head."""
        self._is_normalized, self._channels = bool(mean), len(mean)
        if mean:
            spread = torch.tensor(std).reshape(1, -1, 1, 1)
            shift = -torch.tensor(mean).reshape(1, -1, 1, 1) / spread
            self.register_buffer("_scale", 1 / spread, persistent=False)
            self.register_buffer("_shift", shift, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs of shape (N, outputs), float32."""
        if self._is_normalized:
            if inputs.shape[1] != self._channels:
                inputs = inputs.expand(-1, self._channels, -1, -1)
            inputs = torch.addcmul(self._shift, inputs, self._scale)  # type: ignore[arg-type]
        outputs: torch.Tensor = self.net(inputs)
        return outputs.float()


def head_parameters(build: Callable[[int], nn.Module], num_outputs: int) -> tuple[str, ...]:
    """Return the names of the head's parameters, which are those whose shapes depend on the number
    of outputs.

    Args:
        build: Function that builds the model with a given number of outputs; it is called on the
            meta device, where no memory is allocated.
        num_outputs: Number of outputs of the model.
    """
    with torch.device("meta"):
        shapes = {
            name: parameter.shape for name, parameter in build(num_outputs).named_parameters()
        }
        other_shapes = {
            name: parameter.shape for name, parameter in build(num_outputs + 1).named_parameters()
        }
    return tuple(name for name, shape in shapes.items() if other_shapes.get(name) != shape)


def build_torchvision(workload: NamedWorkload) -> NamedModel:
    """Build a torchvision model. The caller must have seeded torch."""
    import torchvision

    name = workload.model
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise unknown_model(workload, known)

    def make(num_outputs: int) -> nn.Module:
        with workload.constructed():
            model: nn.Module = torchvision.models.get_model(
                name, weights=None, num_classes=num_outputs, **workload.settings
            )
        return model

    mean, std = MEAN, STD
    versions = torchvision.models.get_model_weights(name)
    if len(versions):
        preset = versions.DEFAULT.transforms()
        mean, std = tuple(preset.mean), tuple(preset.std)
    return _build_image_model(workload, make, 224, mean=mean, std=std)


def cached_torchvision(workload: NamedWorkload) -> Path:
    """Return the path of pretrained weights in torchvision's cache, preferably the default ones;
    raise UserError if there are none."""
    import torchvision

    versions = torchvision.models.get_model_weights(workload.model)
    urls: list[str] = [
        version.url for version in ([versions.DEFAULT, *versions] if len(versions) else [])
    ]
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    for url in urls:
        if (file := folder / url.rpartition("/")[2]).is_file():
            return file
    raise missing(workload.name, f"{folder}{f', from {urls[0]}' if urls else ''}")


def build_timm(workload: NamedWorkload) -> NamedModel:
    """Build a timm model, for images with any number of channels. The caller must have seeded
    torch."""
    import timm

    known = timm.list_models()
    if workload.model.partition(".")[0] not in known:
        raise unknown_model(workload, known)
    assert not isinstance(workload.input_shape, dict)
    height, width, channels = workload.input_shape
    if channels == 1:
        channels = RGB
    config = _timm_config(workload)
    image_settings: dict[str, Any] = {"in_chans": channels}
    if config.get("fixed_input_size"):
        image_settings["img_size"] = (height, width)

    def make(num_outputs: int) -> nn.Module:
        with workload.constructed():
            return timm.create_model(
                workload.model, num_classes=num_outputs, **image_settings, **workload.settings
            )

    normalized = {"mean": config["mean"], "std": config["std"]} if channels == RGB else {}
    return _build_image_model(workload, make, config["input_size"][-1], **normalized)


def cached_timm(workload: NamedWorkload) -> Path:
    """Return the path of timm's pretrained weights in the Hugging Face cache; raise UserError if
    there are none."""
    name = _timm_config(workload)["hf_hub_id"] or f"timm/{workload.model}"
    return _find_in_hub_cache(workload, name)


def _timm_config(workload: NamedWorkload) -> dict[str, Any]:
    """Return timm's configuration for a model's pretrained weights, which contains the image size,
    the mean and standard deviation of the pixels, and the location of the file."""
    import timm

    config = timm.models.get_pretrained_cfg(workload.model)
    if config is None:
        raise UserError(
            f"Workload {workload.name}: timm has no weights with that tag; omit it.",
            ErrorCode.UNKNOWN_NAME,
        )
    content: dict[str, Any] = asdict(config)
    return content


def _build_image_model(
    workload: NamedWorkload,
    make: Callable[[int], nn.Module],
    recommended_size: int,
    **normalized: tuple[float, ...],
) -> NamedModel:
    """Build an image model.

    Args:
        workload: Workload of the model.
        make: Function that builds the library's model with a given number of outputs.
        recommended_size: Number of pixels per side for which the model was made; the error
            recommends it.
        **normalized: `mean` and `std` of the pixels; omit both to leave pixels as they are.

    Raises:
        UserError: The images do not fit the model.
    """
    try:
        head = head_parameters(make, workload.num_classes)
        return NamedModel(make(workload.num_classes), head, **normalized)
    except (AssertionError, ValueError, RuntimeError) as error:
        raise unfit_images(workload, error, recommended_size) from error


def _find_in_hub_cache(workload: NamedWorkload, name: str) -> Path:
    """Return the path of the weights that the Hugging Face cache has of the repository `name`;
    raise UserError if it has none."""
    from huggingface_hub import try_to_load_from_cache

    for file in FILES:
        if isinstance(path := try_to_load_from_cache(name, file), str):
            return Path(path)
    raise missing(workload.name, f"the Hugging Face cache (hf download {name} {FILES[0]})")


class TextModel(nn.Module):
    """A transformer whose input is either token ids (N, tokens), or a dict of the transformer's
    keyword arguments."""

    def __init__(self, net: nn.Module, padding: int | None) -> None:
        super().__init__()
        self.model = net
        self._padding = padding

    @property
    def base_model_prefix(self) -> str:
        """Prefix of the names of all weights except those of the head."""
        return f"model.{self.model.base_model_prefix}"

    def forward(self, inputs: torch.Tensor | Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return logits (N, outputs), or (N, tokens, outputs) for a language model."""
        arguments = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
        if self._padding is not None:
            arguments.setdefault("attention_mask", (arguments["input_ids"] != self._padding).long())
        outputs: torch.Tensor = self.model(**arguments).logits
        return outputs


def build_transformers(workload: NamedWorkload) -> NamedModel:
    """Build a model of transformers from its configuration, for text classification or language
    modeling."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    config, is_own = _text_config(workload)
    check_settings(config.to_dict(), workload.settings, f"workload {workload.name}")
    config.update(dict(workload.settings))
    _adapt_config(config, workload, is_own=is_own)
    models_language = workload.task == "language_modelling"
    auto: Any = AutoModelForCausalLM if models_language else AutoModelForSequenceClassification
    try:
        net = auto.from_config(config)
    except ValueError as error:
        kind = "language modeling" if models_language else "classification of texts"
        raise UserError(
            f"Workload {workload.name}: transformers has no {config.model_type} for {kind}; "
            "choose another model.",
            ErrorCode.UNSUPPORTED,
            details=str(error),
        ) from None
    padding = None if models_language else config.pad_token_id
    base = f"{net.base_model_prefix}."
    head = [name for name, _ in net.named_parameters() if not name.startswith(base)]
    return NamedModel(TextModel(net, padding), tuple(f"model.{name}" for name in head))


def cached_transformers(workload: NamedWorkload) -> Path:
    """Return the path of pretrained weights in the workload's folder or in the Hugging Face cache;
    raise UserError if there are none."""
    folder = Path(workload.model).expanduser()
    if not folder.is_dir():
        return _find_in_hub_cache(workload, workload.model)
    for file in FILES:
        if (folder / file).is_file():
            return folder / file
    raise missing(workload.name, str(folder / FILES[0]))


def _text_config(workload: NamedWorkload) -> tuple[Any, bool]:
    """Return the configuration of a text model, and whether the configuration is the user's own.

    A configuration from a folder or from the Hugging Face cache is the user's own. The default
    configuration of a model type, such as `distilbert`, is not.
    """
    import transformers
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    name = workload.model
    if name in CONFIG_MAPPING:
        return AutoConfig.for_model(name), False
    try:
        return AutoConfig.from_pretrained(name, local_files_only=True), True
    except (OSError, ValueError) as error:
        hint = did_you_mean(name, CONFIG_MAPPING, "examples are distilbert and gpt2.")
        raise UserError(
            f"Workload {workload.name}: '{name}' is neither a model type of transformers "
            f"{transformers.__version__}, nor a folder with a config.json, nor in the Hugging Face "
            f"cache (raybench downloads nothing); {hint}",
            ErrorCode.UNKNOWN_NAME,
            details=str(error),
        ) from None


def _adapt_config(config: Any, workload: NamedWorkload, *, is_own: bool) -> None:
    """Set outputs, vocabulary and sequence length of a configuration to those of the data.

    If the configuration is the user's own (`is_own`, see `_text_config`), its sequence length is
    kept and, except for language modeling, also its vocabulary.

    Raises:
        UserError: The data do not fit the user's configuration.
    """
    config.num_labels = workload.num_classes
    config.use_cache = False
    shape = workload.input_shape
    num_tokens = shape["input_ids"][0] if isinstance(shape, dict) else shape[0]
    models_language = workload.task == "language_modelling"
    vocabulary = workload.num_classes if models_language else workload.vocabulary_size
    if not is_own or models_language:
        config.vocab_size = vocabulary or config.vocab_size
    elif vocabulary is not None and vocabulary > config.vocab_size:
        raise UserError(
            f"Workload {workload.name}: its vocabulary has {config.vocab_size} tokens, the "
            f"dataset {vocabulary}; set dataset.vocabulary_size: {config.vocab_size}.",
            ErrorCode.INVALID_MODEL,
        )
    if not is_own or config.pad_token_id is None:
        config.pad_token_id = PADDING
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and num_tokens > longest:
        if is_own:
            raise UserError(
                f"Workload {workload.name}: takes at most {longest} tokens, the dataset has "
                f"{num_tokens} per sample; set dataset.sequence_length: {longest}.",
                ErrorCode.INVALID_MODEL,
            )
        config.max_position_embeddings = num_tokens
    if models_language and hasattr(config, "is_decoder"):
        config.is_decoder = True  # otherwise BERT, for example, would see the token to predict


BUILD = {"torchvision": build_torchvision, "timm": build_timm, "transformers": build_transformers}
"""Functions that build a model, keyed by library."""
CACHED = {
    "torchvision": cached_torchvision,
    "timm": cached_timm,
    "transformers": cached_transformers,
    "both": cached_torchvision,
}
"""Functions that return the path of a model's pretrained weights, keyed by library. The key `both`
is for the networks that exist in both frameworks."""


def build_named(workload: NamedWorkload, seed: int) -> NamedModel:
    """Build a model that is chosen by name, on the CPU. The caller must have seeded torch.

    Args:
        workload: Workload with the name of the model.
        seed: Seed for the initial weights of networks that exist in both frameworks.

    Raises:
        UserError: There is no model with this name.
    """
    if workload.library == "both":
        return _build_network(workload, seed)
    return BUILD[workload.library](workload)


def start_from(model: nn.Module, workload: Workload, weights: str) -> list[str]:
    """Load the weights that a run spec names into a new model.

    `weights` is `none` to keep the initial weights, `cached` for a library's pretrained weights, or
    the path of a file.

    Returns:
        A list with a warning if the head keeps its random weights, because its number of outputs
        differs from that of the file; otherwise an empty list.

    Raises:
        UserError: The weights are missing or belong to another model.
    """
    path = weights_file(workload, weights, "torch")
    if weights == "cached" and isinstance(workload, NamedWorkload):
        path = CACHED[workload.library](workload)
    return [] if path is None else load_tensors(model, read_tensors(path), str(path))


def _build_network(workload: NamedWorkload, seed: int) -> NamedModel:
    """Build a torchvision model with the same initial weights as in Keras."""
    from torchvision.models import get_model

    network = NETWORKS[workload.model]()
    with torch.device("meta"):  # skips torchvision's own initialization
        net = get_model(workload.model, weights=None, num_classes=workload.num_classes)
    net = net.to_empty(device="cpu")
    arrays = initial_arrays(network, workload.num_classes, seed)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    for name, tensor in net.state_dict().items():
        tensor.copy_(tensors[name] if name in tensors else torch.zeros_like(tensor))
    head = (f"{network.head}.weight", f"{network.head}.bias")
    return NamedModel(net, head, mean=MEAN, std=STD)


def read_tensors(path: Path) -> Tensors:
    """Read a file of weights; return its tensors by name. No code in the file is executed.

    Raises:
        UserError: The file contains no weights.
    """
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise _not_weights_error(path, error) from None
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, LookupError, TypeError, ValueError) as error:
        raise _not_weights_error(path, error) from None
    for key in ("state_dict", "model_state_dict", "model"):  # common wrappers
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    named = content.items() if isinstance(content, dict) else ()
    if tensors := {name: value for name, value in named if isinstance(value, Tensor)}:
        return tensors
    raise _not_weights_error(path, ValueError("no tensors by name"))


def _not_weights_error(path: Path, error: Exception) -> UserError:
    """Return the error for a file that contains no weights."""
    return UserError(
        f"weights {path}: not a file of weights (a state dict written by torch.save as .pth or "
        f".pt, or .safetensors), and no code in it was run ({type(error).__name__}).",
        ErrorCode.INVALID_WEIGHTS,
        details=str(error),
    )


@torch.no_grad()
def load_tensors(model: nn.Module, tensors: Tensors, source: str) -> list[str]:
    """Load tensors into a model.

    Args:
        model: The model.
        tensors: Tensors by name. Names may begin with DDP's prefix `module.`, and may lack the
            prefixes of `NamedModel` and of a transformer's base model.
        source: Description of where the tensors come from, for messages.

    Returns:
        A list with a warning if the head keeps its random weights; otherwise an empty list.

    Raises:
        UserError: A tensor outside the head is missing or has a different shape.
    """
    tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    head = set(model.head) if isinstance(model, NamedModel) else set()
    net = model.net if isinstance(model, NamedModel) else model
    prefix = getattr(net, "base_model_prefix", "")  # such as `distilbert` in transformers
    base = f"{prefix}." if prefix else ""
    loaded = set[int]()
    random_names: list[str] = []
    absent: list[tuple[str, Tensor]] = []
    for name, target in model.state_dict().items():
        tensor = _find(name, tensors, base)
        if tensor is not None and tensor.shape == target.shape:
            target.copy_(tensor)
            loaded.add(target.data_ptr())
        elif name in head:
            random_names.append(name.removeprefix(PREFIX))
        elif tensor is not None:
            shapes = f"{tuple(tensor.shape)} there, {tuple(target.shape)} here"
            raise weights_mismatch_error(source, name.removeprefix(PREFIX), shapes)
        # A single integer is a counter of batch normalization and may be missing.
        elif target.numel() > 1 or target.is_floating_point():
            absent.append((name, target))
    for name, target in absent:
        if target.data_ptr() not in loaded:  # otherwise tied to a tensor that was loaded
            raise weights_mismatch_error(source, name.removeprefix(PREFIX), "none there")
    return new_head(source, *random_names) if random_names else []


def _find(name: str, tensors: Tensors, base: str) -> Tensor | None:
    """Return the tensor for the model weight `name`, or None.

    The tensor may be stored under the weight's name without prefixes. `base` is the prefix of a
    transformer's base model, such as `distilbert.`; it is empty for other models.
    """
    bare = name.removeprefix(PREFIX)
    for candidate in (name, bare, bare.removeprefix(base)):
        if candidate in tensors:
            return tensors[candidate]
    return None
