"""The PyTorch backend: the only place that imports torch."""
