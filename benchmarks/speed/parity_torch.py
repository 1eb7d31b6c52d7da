"""parity.py's plain script for torch: distributed data parallel as in its documentation.

    torchrun --standalone --nproc-per-node 2 benchmarks/speed/parity_torch.py FOLDER PORT

It uses nothing of raybench: arrays, initial weights and settings come from files in FOLDER. The
data are in memory as float32, batches are taken by index, the optimizer is torch's fused Adam, and
the layout is the faster one (channels last). One worker uses no DDP, which would only slow it down.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from parity_channel import serve
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def mnist_small() -> nn.Module:
    """Return the network of raybench's workload of that name."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(6272, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def mnist_large() -> nn.Module:
    """Return the network of raybench's workload of that name."""
    return nn.Sequential(
        *(nn.Conv2d(1, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(128, 256, 3, padding=1, groups=128), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(256, 512, 3, padding=1, groups=256), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(4608, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()),
        nn.Linear(512, 10),
    )


MODELS = {"mnist_small": mnist_small, "mnist_large": mnist_large}


class PlainLoop:
    """A training, one epoch per call."""

    def __init__(
        self,
        folder: Path,
        *,
        rank: int = 0,
        num_workers: int = 1,
        channels_last: bool = True,
        device: str = "cpu",
    ) -> None:
        self._rank, self._num_workers = rank, num_workers
        self._settings = json.loads((folder / "settings.json").read_text())
        arrays = np.load(folder / "data.npz")
        pixels = torch.from_numpy(arrays["inputs"]).permute(0, 3, 1, 2)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self._inputs = pixels.float().mul_(1 / 255)
        if not channels_last:
            # With one channel, both layouts are the same, and torch goes by the strides.
            self._inputs = self._inputs.reshape(pixels.shape)
        self._inputs = self._inputs.to(device)
        self._labels = torch.from_numpy(arrays["labels"]).to(device)
        self.model = MODELS[self._settings["workload"]]()
        initial = np.load(folder / "initial.npz")
        with torch.no_grad():
            for parameter, name in zip(self.model.parameters(), initial.files, strict=True):
                parameter.copy_(torch.from_numpy(initial[name]))
        self.model = self.model.to(device, memory_format=layout)
        self._parallel: nn.Module = self.model
        if num_workers > 1:
            self._parallel = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self._optimizer = torch.optim.Adam(
            self.model.parameters(), lr=self._settings["learning_rate"], fused=True
        )

    def train(self, epoch: int) -> float:
        """Train one epoch; return its seconds."""
        if self._num_workers > 1:
            dist.barrier()
        started = time.perf_counter()
        num_samples = len(self._labels) * self._settings["repeat"]
        generator = np.random.default_rng([1, epoch, self._settings["seed"]])
        order = torch.from_numpy(generator.permutation(num_samples)) % len(self._labels)
        order = order.to(self._labels.device)
        size = self._settings["batch_size_per_worker"]
        total = torch.zeros((), device=self._labels.device)
        for batch in order.split(size * self._num_workers):
            rows = batch[self._rank * size : (self._rank + 1) * size]
            self._optimizer.zero_grad()
            outputs = self._parallel(self._inputs[rows])
            loss = functional.cross_entropy(outputs, self._labels[rows])
            loss.backward()
            self._optimizer.step()
            total += loss.detach()
        float(total)
        if self._num_workers > 1:
            dist.barrier()
        return time.perf_counter() - started

    def save(self, folder: Path) -> Path:
        """Write the weights; return their file."""
        torch.save(self.model.state_dict(), folder / "weights.pt")
        return folder / "weights.pt"


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder, port, rank = Path(sys.argv[1]), int(sys.argv[2]), dist.get_rank()
    loop = PlainLoop(folder, rank=rank, num_workers=dist.get_world_size())
    serve(port, rank, loop.train)
    if rank == 0:
        loop.save(folder)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo may abort the process while it is torn down


if __name__ == "__main__":
    main()
