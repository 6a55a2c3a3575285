"""Real servers for tests, started from wheels, so that a bare machine needs nothing installed."""
