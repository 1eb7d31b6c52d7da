"""Hyperparameter search: propose, run and stop trials.

Only this package imports `ray.tune` and `optuna`.
"""
