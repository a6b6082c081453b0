"""Kernels of contractions: a block owns a tile of the result, a thread a smaller one of that in registers."""
