"""`python -m raybench.tune`; imported, it is the function `raybench.tune`."""

import sys

from raybench import api
from raybench.commands.cli import leave
from raybench.commands.tune import main

if __name__ == "__main__":
    leave(main())
elif __name__ == "raybench.tune":
    sys.modules[__name__] = api.tune  # type: ignore[assignment]
