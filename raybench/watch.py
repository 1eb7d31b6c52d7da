"""`python -m raybench.watch` is `raybench watch`."""

from raybench.commands.cli import run_module

run_module(__name__, "watch")
