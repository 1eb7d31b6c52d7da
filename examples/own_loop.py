"""Your own training loop, as in the README: raybench calls only the last function.

raybench tune own_loop.yaml --train own_loop.py:train
"""

from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits

import raybench

IMAGES, LABELS = map(torch.as_tensor, load_digits(return_X_y=True))
IMAGES = IMAGES.float() / 16


def build(hidden_units: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(64, hidden_units), torch.nn.ReLU(), torch.nn.Linear(hidden_units, 10)
    )


def batches(size: int, rank: int, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    order = torch.randperm(1400)[rank::number]  # equal on all workers, which have the same seed
    for rows in order.split(size):
        yield IMAGES[rows], LABELS[rows]


def accuracy_of(model: torch.nn.Module) -> float:
    with torch.no_grad():
        return float((model(IMAGES[1400:]).argmax(1) == LABELS[1400:]).float().mean())


def train(run: raybench.Run) -> None:
    model = run.prepare(build(run.model["hidden_units"]))  # device, DistributedDataParallel
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.learning_rate)
    for _ in run.epochs():
        with run.training():  # what is on the clock
            for images, labels in batches(run.batch_size_per_worker, run.rank, run.num_workers):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        if run.report(accuracy=accuracy_of(model), samples=1400):  # trained since the last report
            return  # the search says: stop here
