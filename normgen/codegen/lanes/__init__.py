"""Kernels of rows that lie side by side, as the columns of a matrix do."""
