"""`python -m compactor`: the same as `lsmfs compactor`."""

import sys

from lsmfs.cli import run

sys.exit(run(["compactor", *sys.argv[1:]]))
