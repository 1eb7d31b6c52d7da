"""The search: propose, run and stop trials; the only package that imports ray.tune and optuna."""
