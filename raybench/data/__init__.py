"""Datasets as NumPy arrays, and the order of their samples. Needs neither Ray nor a framework."""
