"""Records of runs and their statistics: clock, records, replicates."""
