"""Lightning's Trainer fits the digits of scikit-learn.

python lightning_module.py, or torchrun --nproc-per-node 2 lightning_module.py
"""

import os

import lightning
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

IMAGES, LABELS = map(torch.as_tensor, load_digits(return_X_y=True))
IMAGES = IMAGES.float() / 16


class Digits(lightning.LightningModule):
    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        layers = torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
        self.net, self.learning_rate = torch.nn.Sequential(*layers), learning_rate

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        outputs = self.net(batch[0])
        right = (outputs.argmax(1) == batch[1]).float().mean()
        self.log("val_accuracy", right, sync_dist=True)
        self.log("val_loss", cross_entropy(outputs, batch[1]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    model = Digits(learning_rate=1e-3)
    data = TensorDataset(IMAGES[:1400], LABELS[:1400])
    batches = DataLoader(data, 32, shuffle=True)
    rest = DataLoader(TensorDataset(IMAGES[1400:], LABELS[1400:]), 397)
    workers = {"accelerator": "cpu", "devices": int(os.environ.get("WORLD_SIZE", 1))}
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=5, **workers, **quiet)
    trainer.fit(model, batches, rest)
    if trainer.is_global_zero:
        print({name: float(value) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
