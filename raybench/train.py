"""`python -m raybench.train` is `raybench train`."""

from raybench.commands.cli import leave
from raybench.commands.train import main

if __name__ == "__main__":
    leave(main())
