"""How configurations are proposed, and Optuna is told of them: the only importer of optuna."""
