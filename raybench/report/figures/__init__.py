"""Figures of searches and scaling studies."""
