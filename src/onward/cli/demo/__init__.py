"""``onward demo``: mixed jobs, real worker processes, one of them killed, and every job accounted for."""
