"""A Hydra application: `optimizer.lr=0.1 batch_size=64` override its configuration.

python hydra_app.py optimizer.lr=0.1, or torchrun --nproc-per-node 2 hydra_app.py
"""

import logging
import os
import time
from dataclasses import dataclass, field

import hydra
import torch
from hydra.core.config_store import ConfigStore
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

log = logging.getLogger(__name__)


@dataclass
class Optimizer:
    lr: float = 1e-3


@dataclass
class Config:
    optimizer: Optimizer = field(default_factory=Optimizer)
    batch_size: int = 32
    hidden_units: int = 64
    epochs: int = 5
    seed: int = 0


ConfigStore.instance().store(name="config", node=Config)


@hydra.main(version_base=None, config_name="config")
def main(config: Config) -> None:
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.manual_seed(config.seed)
    images, labels = map(torch.as_tensor, load_digits(return_X_y=True))
    images = images.float() / 16
    hidden = torch.nn.Linear(64, config.hidden_units)
    raw = torch.nn.Sequential(hidden, torch.nn.ReLU(), torch.nn.Linear(config.hidden_units, 10))
    model = raw
    if size > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(raw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optimizer.lr)
    for epoch in range(config.epochs):
        start = time.perf_counter()
        for rows in torch.randperm(1400)[rank::size].split(config.batch_size):
            optimizer.zero_grad()
            cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
        seconds = time.perf_counter() - start
        with torch.no_grad():
            outputs = raw(images[1400:])
        right = (outputs.argmax(1) == labels[1400:]).float().mean()
        loss = cross_entropy(outputs, labels[1400:])
        if rank == 0:
            log.info("epoch %d accuracy %.4f loss %s in %.6f s", epoch, right, loss.item(), seconds)
    if size > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
