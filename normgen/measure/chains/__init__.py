"""What runs around a kernel while it is timed in place, and the roofs it is held against."""
