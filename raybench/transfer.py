"""`python -m raybench.transfer` is `raybench transfer`."""

from raybench.commands.cli import run_module

run_module(__name__, "transfer")
