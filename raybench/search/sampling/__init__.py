"""Propose configurations and report results by Optuna; the only package that imports optuna."""
