"""The search: Optuna proposes, Ray Tune runs trials; the only importer of ray.tune and optuna."""
