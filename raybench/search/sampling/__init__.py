"""Propose configurations with Optuna, and report results to it.

Only this package imports `optuna`.
"""
