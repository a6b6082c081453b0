"""Mutation testing: are wrong kernels and wrong lines of the package found? `python -m tests.mutation`."""
