"""`python -m raybench.tune` is `raybench tune`."""

from raybench.commands.cli import leave
from raybench.commands.tune import main

if __name__ == "__main__":
    leave(main())
