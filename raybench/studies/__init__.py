"""Scaling studies: the command's body, the runner, the models fitted to what was measured."""
