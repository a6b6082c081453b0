"""`python -m normgen` is the command line."""

from normgen.cli.main import main

main()
