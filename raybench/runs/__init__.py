"""The commands train, scale, diagnose and compare; options, checks and runs of all commands."""
