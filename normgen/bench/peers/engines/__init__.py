"""Kernels of inference engines."""
