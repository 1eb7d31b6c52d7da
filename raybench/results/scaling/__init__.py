"""A scaling study's results: runs, cells, speed-up curves, and how they are shown."""
