"""`python -m raybench.diagnose` is `raybench diagnose`."""

from raybench.commands.cli import leave
from raybench.commands.diagnose import main

if __name__ == "__main__":
    leave(main())
