"""A script with argparse, like the reference scripts of torchvision, for digits of scikit-learn.

python classification.py --lr 0.1, or torchrun --nproc-per-node 2 classification.py --lr 0.1
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset


def get_args_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Classification training")
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("-b", "--batch-size", default=32, type=int, help="per process")
    parser.add_argument("--epochs", default=5, type=int)
    parser.add_argument("--hidden-units", default=64, type=int)
    parser.add_argument("--batch-norm", action="store_true")
    return parser


def init_distributed_mode(args: argparse.Namespace) -> None:
    args.distributed = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if args.distributed:
        dist.init_process_group("gloo")


def train_one_epoch(model, optimizer, loader) -> None:
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


def evaluate(model, images, labels) -> tuple[float, float]:
    model.eval()
    with torch.inference_mode():
        outputs = model(images)
    right = (outputs.argmax(1) == labels).float().mean()
    return float(right), float(cross_entropy(outputs, labels))


def main(args: argparse.Namespace) -> None:
    init_distributed_mode(args)
    torch.manual_seed(0)
    images, labels = map(torch.as_tensor, load_digits(return_X_y=True))
    images = images.float() / 16
    data = TensorDataset(images[:1400], labels[:1400])
    sampler = DistributedSampler(data) if args.distributed else RandomSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler)
    layers = [torch.nn.Linear(64, args.hidden_units), torch.nn.ReLU()]
    if args.batch_norm:
        layers.insert(1, torch.nn.BatchNorm1d(args.hidden_units))
    model = model_without_ddp = torch.nn.Sequential(*layers, torch.nn.Linear(args.hidden_units, 10))
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        if args.distributed:
            sampler.set_epoch(epoch)
        start = time.perf_counter()
        train_one_epoch(model, optimizer, loader)
        seconds = time.perf_counter() - start
        accuracy, loss = evaluate(model_without_ddp, images[1400:], labels[1400:])
        if not args.distributed or dist.get_rank() == 0:
            print(f"Epoch: [{epoch}]  Acc@1 {accuracy:.4f}  loss {loss}  Total time {seconds:.6f}")
    if args.distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(get_args_parser().parse_args())
