"""The Schedule: how a RowProgram runs on a GPU. It can never change the answer beyond rounding."""
