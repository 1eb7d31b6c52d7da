"""Data that were read and decoded once, kept as arrays of this machine that every process maps."""
