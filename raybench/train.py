"""`python -m raybench.train` is `raybench train`."""

import sys

from raybench.commands.train import main

if __name__ == "__main__":
    sys.exit(main())
