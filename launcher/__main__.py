"""Entry point of ``launcher`` and of ``python -m launcher``. Ctrl-C during the imports ends it at once: nothing has begun."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command line and return the exit code. Ctrl-C ends the process without a word until the command has been imported."""
    if waits := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from launcher.cli import main as command

    if waits:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return command.main()


if __name__ == "__main__":
    sys.exit(main())
