"""Workloads (models with their data), described without importing torch or TensorFlow."""
