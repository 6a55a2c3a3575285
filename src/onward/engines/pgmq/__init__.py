"""PGMQ: Python workers and producers on the queues of a PGMQ that others use too."""

from onward.engines.pgmq.engine import PGMQEngine

__all__ = ["PGMQEngine"]
