"""scikit-learn's `partial_fit`: a linear classifier of digits, class by class in --jobs threads.

python partial_fit.py --alpha 1e-4
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

parser = argparse.ArgumentParser()
parser.add_argument("--alpha", type=float, default=1e-4)
parser.add_argument("--eta0", type=float, default=0.01)
parser.add_argument("--batch", type=int, default=100)
parser.add_argument("--jobs", type=int, default=1)
options = parser.parse_args()

images, labels = load_digits(return_X_y=True)
images = images / 16
rates = {"learning_rate": "constant", "eta0": options.eta0, "alpha": options.alpha}
model = SGDClassifier(loss="log_loss", random_state=0, n_jobs=options.jobs, **rates)
order = np.random.default_rng(0)
for epoch in range(5):
    for rows in np.array_split(order.permutation(1400), 1400 // options.batch):
        model.partial_fit(images[rows], labels[rows], classes=np.arange(10))
    accuracy = model.score(images[1400:], labels[1400:])
    loss = log_loss(labels[1400:], model.predict_proba(images[1400:]))
    print(f"epoch {epoch}: accuracy {accuracy:.4f}, loss {loss}")
