"""The tests mirror the package; this file keeps tests/cuda from standing in for the `cuda` package."""
