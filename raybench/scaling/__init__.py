"""How a training scales: the throughput of workers and batches, measured and predicted."""
