"""The RowProgram: what is computed on a row, with nothing said about threads."""
