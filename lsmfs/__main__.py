"""The program: `lsmfs`, or `python -m lsmfs`. The command line is imported while Ctrl-C already has an answer.

That import takes half a second, and a KeyboardInterrupt within it would be a traceback, or something worse out of a
library that was half loaded. Nothing has begun by then, so the process can end on the spot.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130  # 128 + SIGINT, as in `lsmfs.cli.exits`, which is not imported yet


def main() -> None:
    """The entry point of the program."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background jobs ignore it
    if is_usual:
        signal.signal(signal.SIGINT, _end)
    from lsmfs.cli import run

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run())


def _end(number: int, frame: FrameType | None) -> None:
    os.write(sys.stderr.fileno(), b"error: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
