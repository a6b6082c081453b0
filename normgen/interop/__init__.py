"""Between a kernel handle and the arrays of its caller: checks of what comes in, allocation of what goes out."""
