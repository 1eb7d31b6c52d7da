"""Scaling of training with worker count, batch size and model size, measured and predicted."""
