"""The command line and its commands: each takes its options and prints its result."""
