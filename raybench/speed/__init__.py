"""What runs how fast, and where: step times, the space taken apart, placements."""
