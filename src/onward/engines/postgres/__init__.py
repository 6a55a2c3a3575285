"""PostgreSQL: many machines, and jobs that are part of your own transactions."""

from onward.engines.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
