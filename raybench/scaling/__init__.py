"""Scaling of training with workers and batch sizes: throughput, measured and predicted."""
