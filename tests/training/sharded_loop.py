"""Training loop of a small model that is replicated (ddp) or sharded (fsdp) over two workers."""

import functools
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor

from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.training.base import DistributedContext
from raybench.training.own import OwnTrainer, Run

EPOCHS, STEPS, MIDDLE = 4, 3, 1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dense = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + torch.relu(self.dense(self.norm(inputs)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def loop(run: Run, *, strategy: Any, facts: dict[str, Any]) -> None:
    model = Net()
    if run.rank:  # `prepare` gives all workers the weights of rank 0
        torch.nn.init.ones_(model.head.weight)
    net = run.prepare(model, strategy=strategy)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    if (saved := run.resume()) is not None:
        set_state_dict(
            net,
            optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimizer"],
            options=options,
        )
    for epoch in run.epochs():
        with run.training():
            for step in range(STEPS):
                generator = torch.Generator().manual_seed(STEPS * epoch + step)
                inputs = torch.randn(16, 8, generator=generator)
                labels = torch.randint(4, (16,), generator=generator)
                rows = slice(run.rank, None, run.num_workers)
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(inputs[rows]), labels[rows]).backward()
                optimizer.step()
        weights, state = get_state_dict(net, optimizer, options=options)
        run.save({"model": weights, "optimizer": state})
        if run.report(0.5, samples=16 * STEPS):
            break
    local_parameters = [
        parameter.to_local() if isinstance(parameter, DTensor) else parameter
        for parameter in net.parameters()
    ]
    facts["values"] = sum(parameter.numel() for parameter in local_parameters)
    facts["blocks"] = sum(type(module).__name__.startswith("FSDP") for module in net.modules())
    try:
        run._adapter.pack({"model": net})
    except UserError as error:
        facts["refused"] = error.code


def spec_of(num_workers: int) -> RunSpec:
    return RunSpec(
        workload="train.py:train", framework="torch", epochs=EPOCHS, num_workers=num_workers
    )


def trained(
    world: DistributedContext, strategy: str, num_workers: int, state: bytes = b""
) -> tuple[list[bytes], dict[str, Any]]:
    """Run the loop, resumed from `state` if given; return its states and facts about its model."""
    facts = {}
    train = functools.partial(loop, strategy=strategy, facts=facts)
    trainer = OwnTrainer(spec_of(num_workers), train, world, Ledger("setup"))
    if state:
        trainer.restore(state)
    states = [trainer.state() or b"" for _ in trainer.evaluations()]
    trainer.finish()
    return states, facts


def work(world: DistributedContext, folder: Path) -> None:
    """Save the states of both strategies: in the middle, at the end, and of a resumed run."""
    for strategy in ("ddp", "fsdp"):
        states, facts = trained(world, strategy, 2)
        middle = [states[MIDDLE]]
        torch.distributed.broadcast_object_list(middle)
        resumed, _ = trained(world, strategy, 2, middle[0])
        if world.rank == 0:
            (folder / f"{strategy}.json").write_text(json.dumps(facts))
            (folder / f"{strategy}-middle").write_bytes(states[MIDDLE])
            (folder / f"{strategy}-whole").write_bytes(states[EPOCHS - 1])
            (folder / f"{strategy}-resumed").write_bytes(resumed[EPOCHS - MIDDLE - 2])
