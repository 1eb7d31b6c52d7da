"""Make `python -m raybench.init` run the command."""

from raybench.commands.cli import run_module

run_module(__name__, "init")
