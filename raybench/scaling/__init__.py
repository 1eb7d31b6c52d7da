"""Scaling of a training: the throughput of workers and batches, measured and predicted."""
