"""`python -m raybench.diagnose` is `raybench diagnose`."""

import sys

from raybench.commands.diagnose import main

if __name__ == "__main__":
    sys.exit(main())
