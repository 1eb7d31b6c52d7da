"""`python -m raybench.diagnose`; imported, it is the function `raybench.diagnose`."""

import sys

from raybench import api
from raybench.commands.cli import leave
from raybench.commands.diagnose import main

if __name__ == "__main__":
    leave(main())
elif __name__ == "raybench.diagnose":
    sys.modules[__name__] = api.diagnose  # type: ignore[assignment]
