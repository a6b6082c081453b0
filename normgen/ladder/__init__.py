"""Named schedules: the rungs of the classic optimisation ladders, and every other point one can begin from."""
