"""``python -m launcher``: the command, where its script is not on the PATH."""

from __future__ import annotations

import sys

from launcher.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
