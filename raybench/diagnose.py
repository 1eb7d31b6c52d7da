"""Make `python -m raybench.diagnose` run the command.

Importing this module does not hide the function `raybench.diagnose`.
"""

from raybench.commands.cli import run_module

run_module(__name__, "diagnose")
