"""Schedules of contractions: what follows from one, which are legal, which are searched, and the default."""
