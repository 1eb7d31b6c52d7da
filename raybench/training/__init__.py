"""The training loops: a framework lives in its own folder here and nowhere else."""
