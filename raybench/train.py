"""`python -m raybench.train`; imported, it is the function `raybench.train`."""

from raybench.commands.cli import run_module

run_module(__name__, "train")
