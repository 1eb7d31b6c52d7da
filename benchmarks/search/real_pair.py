"""Two processes that train together with torch's DistributedDataParallel, without Ray.

Rank 0 is the caller's process; rank 1 waits for configurations. As in Optuna's example for
torch.distributed, all ranks stay alive, rank 0 asks and tells, and decisions are broadcast.
"""

import os
import socket
from collections.abc import Generator
from types import TracebackType
from typing import Any

import real_task
import torch.distributed as dist
import torch.multiprocessing as mp

from raybench.stats.record import Evaluation
from raybench.training.base import find_backend


class Pair:
    """Context manager of both processes; `train` runs a configuration on one or both."""

    def __enter__(self) -> "Pair":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._other = mp.get_context("spawn").Process(target=_second, args=(port,))
        self._other.start()
        _join(0, port)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._other.kill()  # it may wait in an exchange
        else:
            _share(None)
        self._other.join()
        dist.destroy_process_group()

    def train(self, config: real_task.Config, seed: int) -> Generator[Evaluation, None, None]:
        """Yield evaluations; close the generator to stop early."""
        if config["num_workers"] == 1:
            yield from real_task.train(real_task.spec_of(config, seed), _world(0, 1))
            return
        _share((config, seed))
        evaluations = real_task.train(real_task.spec_of(config, seed), _world(0, 2))
        for evaluation in evaluations:
            goes_on = False
            try:
                yield evaluation
                goes_on = True
            finally:
                # Also if the caller closes this generator, so that rank 1 stops here, too.
                _share(goes_on)
                if not goes_on:
                    evaluations.close()


def _second(port: int) -> None:
    _join(1, port)
    while (order := _share()) is not None:
        config, seed = order
        evaluations = real_task.train(real_task.spec_of(config, seed), _world(1, 2))
        for _ in evaluations:
            if not _share():
                evaluations.close()
                break
    dist.destroy_process_group()


def _join(rank: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)


def _world(rank: int, num_workers: int) -> Any:
    return find_backend("torch").join(
        rank=rank, num_workers=num_workers, device="cpu", num_threads=1
    )


def _share(content: Any = None) -> Any:
    """Broadcast rank 0's content."""
    box = [content]
    dist.broadcast_object_list(box, src=0)
    return box[0]
