"""Make `python -m raybench.train` run the command.

Importing this module does not hide the function `raybench.train`.
"""

from raybench.commands.cli import run_module

run_module(__name__, "train")
