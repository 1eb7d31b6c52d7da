"""A user's own training loops, for tests with Ray."""

import os
import signal
import sys
import threading
import time

import raybench


def train(run: raybench.Run) -> None:
    """Train a PyTorch model on digits, on any number of workers."""
    import torch
    from sklearn.datasets import load_digits

    images, labels = map(torch.as_tensor, load_digits(return_X_y=True))
    images, hidden = images.float() / 16, run.model["hidden_units"]
    layers = torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
    model = run.prepare(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=run.learning_rate)
    if (state := run.resume()) is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for _ in run.epochs():
        with run.training():
            for rows in torch.randperm(1400)[run.rank :: run.num_workers].split(64):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
                loss.backward()
                optimizer.step()
        print("trained")
        right = (model(images[1400:]).argmax(1) == labels[1400:]).float().mean()
        run.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        if run.report(accuracy=float(right), samples=1400, test=float(right)):
            return


def plain(run: raybench.Run) -> None:
    """Train without a framework; fail if one was imported."""
    if imported := {"torch", "tensorflow"} & sys.modules.keys():
        raise RuntimeError(f"{imported} is imported")
    for epoch in run.epochs():
        with run.training():
            time.sleep(0.01 * run.model["slowness"])
        print("a line")
        if run.report(accuracy=1 - 0.5 ** (epoch + 1), samples=10):
            return


def faulty(run: raybench.Run) -> None:
    """Fail in the way that the settings of the model name."""
    os.write(2, b"last words\n")
    fault = run.model["fault"]
    if fault == "raises":
        raise ValueError("no luck")
    if fault == "hangs":
        with run.training():
            time.sleep(0.01)
        run.report(accuracy=0.5, samples=10)
        threading.Event().wait()


def parting(run: raybench.Run) -> None:
    """Train a PyTorch model on two workers, one of which exits."""
    import torch

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as loops for preemptible machines do
    model = run.prepare(torch.nn.Linear(4, 1))
    for epoch in run.epochs():
        with run.training():
            model(torch.ones(2, 4)).sum().backward()
        if run.report(accuracy=0.5, samples=8):
            return
        if (run.rank, epoch) == (1, 1):
            sys.exit()
