"""A problem's program as calls of a tensor library, for that library's compiler to trace; none is a dependency."""
