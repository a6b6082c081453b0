"""`python -m tests.mutation`: see command.py. Every judging process imports this file, and needs nothing of it."""

import sys

if __name__ == "__main__":
    from tests.mutation.command import main

    sys.exit(main())
