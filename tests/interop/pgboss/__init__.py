"""Onward and the real pg-boss on the same queues, both ways, on the newest of each version that is supported (P1)."""
