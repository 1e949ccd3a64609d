"""`python -m lsmfs`: the command line."""

from lsmfs.cli import main

main()
