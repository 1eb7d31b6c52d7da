"""The PyTorch backend, the only package that imports torch."""
