"""The commands: arguments, then a call of a room below, then what it says."""
