"""Makes `python -m raybench.data` the same as `raybench data`."""

from raybench.commands.cli import run_module

run_module(__name__, "data")
