"""`normgen` on the simulated device of `fake_worker`: python -m tests.tuning.fake_tune tune --shape ..."""

from normgen import cli
from tests.tuning.fake_worker import take_over

if __name__ == "__main__":
    take_over()
    cli.main()
