"""`normgen` on the simulated device of `fake_worker`: python -m tests.tuning.fake_tune tune --shape ..."""

from normgen.cli import main as cli
from tests.suites.fake_worker import take_over

if __name__ == "__main__":
    take_over()
    cli.main()
