"""A character-level language model with a width setting, to tune small and train large.

raybench tune tiny_lm.yaml
"""

from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch import nn

from raybench import Dataset, Split, Workload

LENGTH, CHARACTERS = 64, 128


class Decoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Embedding(LENGTH, width)
        block = nn.TransformerEncoderLayer(
            width, width // 16, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, 2, nn.LayerNorm(width), False)
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(LENGTH, device=text.device)
        earlier = nn.Transformer.generate_square_subsequent_mask(LENGTH, text.device)
        hidden = self.characters(text) + self.positions(places)
        return self.head(self.blocks(hidden, earlier, is_causal=True))  # logits


class TinyLM(Workload):
    name, task = "tiny_lm", "language_modelling"
    input_shape, num_classes = (LENGTH,), CHARACTERS

    def __init__(self, width: int = 32) -> None:
        self.width = width

    def load_dataset(self, spec: Any) -> Dataset:
        """Python's own reference texts, cut into pieces of LENGTH characters."""
        text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore")
        codes = np.frombuffer(text, np.uint8).astype(np.int64)
        starts = np.arange(0, len(codes) - LENGTH, LENGTH)
        pieces = codes[starts[:, None] + np.arange(LENGTH + 1)]
        pieces = np.random.default_rng(spec.split_seed).permutation(pieces)
        parts = np.split(pieces, [-600, -300])  # training, validation, test
        splits = (Split(part[:, :-1], part[:, 1:]) for part in parts)
        return Dataset(self.name, CHARACTERS, *splits, task=self.task)

    def build_torch(self) -> nn.Module:
        return Decoder(self.width)
