"""Make `python -m raybench.scale` run the command.

Importing this module does not hide the function `raybench.scale`.
"""

from raybench.commands.cli import run_module

run_module(__name__, "scale")
