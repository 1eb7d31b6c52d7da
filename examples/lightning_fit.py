"""A LightningModule under raybench.

raybench tune own_loop.yaml --train lightning_fit.py:train
"""

import lightning
import torch
from own_loop import IMAGES, LABELS, build
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import raybench
from raybench import integrations


class Digits(lightning.LightningModule):
    def __init__(self, run: raybench.Run) -> None:
        super().__init__()
        self.net, self.rate = build(run.model["hidden_units"]), run.learning_rate

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        outputs = self.net(batch[0])
        self.log("val_loss", cross_entropy(outputs, batch[1]))
        self.log("val_accuracy", (outputs.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.rate)


def train(run: raybench.Run) -> None:
    first = TensorDataset(IMAGES[:1400], LABELS[:1400])
    rest = TensorDataset(IMAGES[1400:], LABELS[1400:])
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    callback = integrations.Lightning(run)
    trainer = lightning.Trainer(max_epochs=int(run.spec.epochs), **callback.options, **quiet)
    batches = DataLoader(first, run.batch_size_per_worker, shuffle=True)
    trainer.fit(Digits(run), batches, DataLoader(rest, 397), ckpt_path=callback.checkpoint)
