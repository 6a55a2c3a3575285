"""Batches and flows: named sets of jobs, whose jobs may wait for each other."""
