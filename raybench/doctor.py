"""`python -m raybench.doctor` is `raybench doctor`."""

from raybench.commands.cli import leave
from raybench.commands.doctor import main

if __name__ == "__main__":
    leave(main())
