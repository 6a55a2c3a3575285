"""Benchmarks that are run from a checkout: everything at once, and the peers."""
