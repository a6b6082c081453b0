"""`replace`: the norms of a model, found by what they compute."""
