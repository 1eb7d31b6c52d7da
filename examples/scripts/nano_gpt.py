"""A loop over steps like nanoGPT's: settings are globals that `--name=value` overrides.

python nano_gpt.py --learning_rate=3e-3, or torchrun --nproc-per-node 2 nano_gpt.py
"""

import os
import sys
import time
from ast import literal_eval

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

batch_size = 16  # per process
block_size = 16
n_embd = 32
learning_rate = 3e-3
max_iters = 100
eval_interval = 20
seed = 0
for word in sys.argv[1:]:
    key, _, value = word.removeprefix("--").partition("=")
    globals()[key] = literal_eval(value)

ddp = int(os.environ.get("RANK", -1)) != -1
rank = int(os.environ["RANK"]) if ddp else 0
if ddp:
    init_process_group("gloo")
torch.manual_seed(seed + rank)  # other batches on each process
text = "".join(f"{number} squared is {number * number}. " for number in range(1000))
letters = sorted(set(text))
data = torch.tensor([letters.index(letter) for letter in text])
train_data, val_data = data[:-4000], data[-4000:]


class GPT(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(len(letters), n_embd)
        self.position = torch.nn.Parameter(torch.zeros(block_size, n_embd))
        self.block = torch.nn.TransformerEncoderLayer(n_embd, 2, 2 * n_embd, 0.0, batch_first=True)
        self.head = torch.nn.Linear(n_embd, len(letters))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(block_size)
        hidden = self.block(self.embedding(x) + self.position, src_mask=mask, is_causal=True)
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), y.flatten())


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(train_data) - block_size - 1, (batch_size,))
    rows = torch.stack([train_data[start : start + block_size + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def estimate_loss() -> float:
    rows = val_data[: len(val_data) // (block_size + 1) * (block_size + 1)].view(-1, block_size + 1)
    return float(raw_model(rows[:, :-1], rows[:, 1:]))


raw_model = GPT()
model = DistributedDataParallel(raw_model) if ddp else raw_model
optimizer = torch.optim.AdamW(raw_model.parameters(), lr=learning_rate)
t0 = time.perf_counter()
for iter_num in range(1, max_iters + 1):
    x, y = get_batch()
    optimizer.zero_grad(set_to_none=True)
    loss = model(x, y)
    loss.backward()
    optimizer.step()
    if iter_num % eval_interval == 0 and rank == 0:
        dt, val_loss = time.perf_counter() - t0, estimate_loss()
        print(f"step {iter_num}: train loss {loss.item():.4f}, val loss {val_loss}, time {dt:.6f}")
        t0 = time.perf_counter()
if ddp:
    destroy_process_group()
