"""`python -m raybench.data` is `raybench data`."""

from raybench.commands.cli import run_module

run_module(__name__, "data")
