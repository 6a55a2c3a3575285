"""Onward: a durable job queue for Python."""
