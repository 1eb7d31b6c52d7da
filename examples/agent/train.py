"""The training that the loop edits, by the constants at the top."""

import torch
from sklearn.datasets import load_digits

import raybench

HIDDEN_UNITS = 32
LEARNING_RATE = 1e-3
BATCH_SIZE = 64
OPTIMIZER = torch.optim.Adam

IMAGES, LABELS = map(torch.as_tensor, load_digits(return_X_y=True))
IMAGES = IMAGES.float() / 16


def accuracy_of(model: torch.nn.Module) -> float:
    with torch.no_grad():
        return float((model(IMAGES[1400:]).argmax(1) == LABELS[1400:]).float().mean())


def train(run: raybench.Run) -> None:
    layers = torch.nn.Linear(64, HIDDEN_UNITS), torch.nn.ReLU(), torch.nn.Linear(HIDDEN_UNITS, 10)
    model = run.prepare(torch.nn.Sequential(*layers))
    optimizer = OPTIMIZER(model.parameters(), lr=LEARNING_RATE)
    for _ in run.epochs():
        with run.training():
            for rows in torch.randperm(1400).split(BATCH_SIZE):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(IMAGES[rows]), LABELS[rows]).backward()
                optimizer.step()
        if run.report(accuracy=accuracy_of(model), samples=1400):
            return
