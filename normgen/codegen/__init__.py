"""The emitter: RowProgram x Schedule -> CUDA C text. The only layer that writes text."""
