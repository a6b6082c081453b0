"""`normgen` on the simulated device of `fake_worker`: python -m tests.tuning.fake_tune tune --shape ..."""

import sys

if __name__ == "__main__":
    try:
        from normgen.cli import main as cli

        cli.imported("tests.suites.fake_worker").take_over()
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()
