"""`python -m raybench.init` is `raybench init`."""

from raybench.commands.cli import run_module

run_module(__name__, "init")
