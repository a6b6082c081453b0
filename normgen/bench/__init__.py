"""`normgen bench`: our kernels, the roof and every installed peer on the same inputs, in one interleaved run."""
