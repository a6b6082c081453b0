"""How exact our kernels are, beside torch's: errors against float64 on many rows of every family."""
