"""What runs jobs: the runner of one job, the tick, and the worker with its actors."""
