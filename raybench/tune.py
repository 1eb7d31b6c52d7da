"""Make `python -m raybench.tune` run the command.

Importing this module does not hide the function `raybench.tune`.
"""

from raybench.commands.cli import run_module

run_module(__name__, "tune")
