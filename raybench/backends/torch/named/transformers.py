"""transformers' models of texts, from a configuration: classification and language modelling."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from raybench.backends.torch.named.model import NamedModel
from raybench.core.errors import UserError
from raybench.workloads.named.cache import missing
from raybench.workloads.named.workload import NamedWorkload

PADDING = 0
"""Token id that fills up a text, where the configuration names none."""
FILES = ("model.safetensors", "pytorch_model.bin")


class TextModel(nn.Module):
    """A transformer that takes token ids (N, tokens), or a dict of its arguments by name."""

    def __init__(self, net: nn.Module, padding: int | None) -> None:
        super().__init__()
        self.model = net
        self._padding = padding

    @property
    def base_model_prefix(self) -> str:
        """Of the names of the weights without the head."""
        return f"model.{self.model.base_model_prefix}"

    def forward(self, inputs: torch.Tensor | Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return logits (N, outputs), of a language model (N, tokens, outputs)."""
        given = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
        if self._padding is not None:
            given.setdefault("attention_mask", (given["input_ids"] != self._padding).long())
        outputs: torch.Tensor = self.model(**given).logits
        return outputs


def build(workload: NamedWorkload, seed: int) -> NamedModel:
    """Return the model; torch has been seeded."""
    del seed
    config, is_own = _config(workload)
    _fit(config, workload, is_own=is_own)
    models_language = workload.task == "language_modelling"
    auto: Any = AutoModelForCausalLM if models_language else AutoModelForSequenceClassification
    try:
        net = auto.from_config(config)
    except ValueError as error:
        kind = "language modelling" if models_language else "classification of texts"
        raise UserError(
            f"Workload {workload.name}: transformers has no {config.model_type} for {kind}; "
            "take another model.",
            details=str(error),
        ) from None
    padding = None if models_language else config.pad_token_id
    base = f"{net.base_model_prefix}."
    head = [name for name, _ in net.named_parameters() if not name.startswith(base)]
    return NamedModel(TextModel(net, padding), tuple(f"model.{name}" for name in head))


def cached(workload: NamedWorkload) -> Path:
    """Return the file of trained weights beside the configuration."""
    from huggingface_hub import try_to_load_from_cache

    folder = Path(workload.model).expanduser()
    for file in FILES:
        found = try_to_load_from_cache(workload.model, file) if not folder.is_dir() else None
        path = folder / file if folder.is_dir() else Path(found) if isinstance(found, str) else None
        if path is not None and path.is_file():
            return path
    place = folder / FILES[0] if folder.is_dir() else f"(hf download {workload.model} {FILES[0]})"
    raise missing(workload.name, str(place))


def _config(workload: NamedWorkload) -> tuple[Any, bool]:
    """Return the configuration, and whether it is the user's own: from a folder or the cache."""
    name = workload.model
    if name in CONFIG_MAPPING:
        return AutoConfig.for_model(name), False
    try:
        return AutoConfig.from_pretrained(name, local_files_only=True), True
    except (OSError, ValueError) as error:
        close = difflib.get_close_matches(name, list(CONFIG_MAPPING), n=1)
        hint = f"did you mean '{close[0]}'?" if close else "a type is such as distilbert or gpt2."
        raise UserError(
            f"Workload {workload.name}: '{name}' is no type of model that transformers "
            f"{transformers.__version__} knows, no folder with a config.json, and not in the "
            f"Hugging Face cache (nothing is fetched from the net); {hint}",
            details=str(error),
        ) from None


def _fit(config: Any, workload: NamedWorkload, *, is_own: bool) -> None:
    """Make the configuration fit the data: outputs, vocabulary, tokens of a sample."""
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
            f"Workload {workload.name}: its vocabulary is of {config.vocab_size} tokens, the "
            f"dataset has {vocabulary}; set dataset.vocabulary_size: {config.vocab_size}."
        )
    if not is_own or config.pad_token_id is None:
        config.pad_token_id = PADDING
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and num_tokens > longest:
        if is_own:
            raise UserError(
                f"Workload {workload.name}: takes at most {longest} tokens, the dataset has "
                f"{num_tokens} a sample; set dataset.sequence_length: {longest}."
            )
        config.max_position_embeddings = num_tokens
    if models_language and hasattr(config, "is_decoder"):
        config.is_decoder = True  # else such as BERT would see the token that it is to predict
