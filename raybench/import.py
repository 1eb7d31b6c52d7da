"""`python -m raybench.import` is `raybench import`."""

from raybench.commands.cli import run_module

run_module(__name__, "import")
