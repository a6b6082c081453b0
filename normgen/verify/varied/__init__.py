"""What a check varies beside the rows of the first input, by which values, and which of these change a result."""
