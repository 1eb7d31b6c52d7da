"""Datasets as NumPy arrays, and the order of their samples; imports neither Ray nor a framework."""
