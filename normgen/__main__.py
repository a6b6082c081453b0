"""`python -m normgen` is the command line."""

import sys

try:
    from normgen.cli.main import main
except KeyboardInterrupt:  # Ctrl-C while Python loads the modules
    sys.exit(130)

main()
