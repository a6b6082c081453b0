"""Functions of tensors that are no rows as they lie: what torch does around a kernel of theirs."""
