"""Proposals of configurations and results for Optuna: the only package that imports optuna."""
