"""Figures of a study: one function each, from its results to a matplotlib Figure."""
