"""`python -m tests.fuzz`: see command.py."""

import sys

if __name__ == "__main__":
    from tests.fuzz.command import main

    sys.exit(main())
