"""A script that prints JSON lines and does not import raybench: scikit-learn's `partial_fit`.

`train_s` is the training time since the previous line.

raybench tune own_loop.yaml --set "space.model={hidden_units: [32, 64]}" \
    --command "python own_command.py --rate {learning_rate} --hidden {model.hidden_units} \
    --batch {batch_size_per_worker} --seed {seed}"
"""

import argparse
import json
import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.001)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--seed", type=int, default=0)
given = parser.parse_args()

images, labels = load_digits(return_X_y=True)
model = MLPClassifier(
    given.hidden, learning_rate_init=given.rate, batch_size=given.batch, random_state=given.seed
)
for _ in range(100):
    began = time.perf_counter()
    model.partial_fit(images[:1400] / 16, labels[:1400], classes=np.arange(10))
    train_s = time.perf_counter() - began
    accuracy = model.score(images[1400:] / 16, labels[1400:])
    print(json.dumps({"accuracy": accuracy, "samples": 1400, "train_s": train_s}), flush=True)
