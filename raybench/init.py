"""`python -m raybench.init` is `raybench init`."""

import sys

from raybench.commands.init import main

if __name__ == "__main__":
    sys.exit(main())
