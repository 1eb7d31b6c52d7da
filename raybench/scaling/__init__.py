"""How training scales with worker count and batch size: measured and predicted throughput."""
