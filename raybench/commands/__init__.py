"""The commands: arguments, then a call of a package below, then what it says."""
