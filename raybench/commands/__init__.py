"""Commands: each takes its options, calls a package below and prints the result."""
