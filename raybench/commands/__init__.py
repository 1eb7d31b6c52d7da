"""The command line, and the commands that need no search or run of their own."""
