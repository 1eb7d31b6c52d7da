"""`python -m raybench.transfer` is `raybench transfer`."""

from raybench.commands.cli import leave
from raybench.commands.transfer import main

if __name__ == "__main__":
    leave(main())
