"""`python -m raybench.data` is `raybench data`."""

import sys

from raybench.commands.data import main

if __name__ == "__main__":
    sys.exit(main())
