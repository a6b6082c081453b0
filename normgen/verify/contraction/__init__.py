"""What the oracle knows of products of matrices: their values, their bounds, and the sides that they are checked on."""
