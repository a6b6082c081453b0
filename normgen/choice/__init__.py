"""The schedule of a problem before anything of it is measured: a ranker over the whole search space."""
