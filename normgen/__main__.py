"""`python -m normgen` is the command line."""

from normgen.cli import main

main()
