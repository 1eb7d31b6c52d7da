"""What the labels' own mean is worth as the answer: what a metric of numbers is compared with."""

import math

import numpy as np

from raybench.core.metric import Metric
from raybench.data.dataset import Dataset, Split


def mean_of_mean(metric: Metric, dataset: Dataset, split: Split) -> float:
    """Return the mean of what `metric` averages, if each answer were the mean of the labels.

    That is of the labels of this split, each output's own; NaN of metrics that need it not.
    """
    if metric.per_sample not in ("squared_error", "absolute_error"):
        return math.nan
    labels = split.labels.astype(np.float64)
    scale = 1.0 if dataset.label_scale is None else dataset.label_scale
    errors = (labels - labels.mean(axis=0)) * scale
    return float(np.mean(errors**2 if metric.per_sample == "squared_error" else np.abs(errors)))
