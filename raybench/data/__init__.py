"""Datasets as numpy arrays, and the order their samples are seen in: no Ray, no framework."""
