"""Proposals of configurations, and what Optuna is told: the only importer of optuna."""
