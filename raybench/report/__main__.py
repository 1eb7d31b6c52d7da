"""`python -m raybench.report` is `raybench.report`."""

import sys

from raybench.commands.report import main

if __name__ == "__main__":
    sys.exit(main())
