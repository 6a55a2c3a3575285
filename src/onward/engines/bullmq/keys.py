"""Where everything is in Redis: BullMQ's keys by queue, Onward's own beside them."""

from __future__ import annotations

from typing import Final

from onward.clock import Clock

DEFAULT_PREFIX: Final = "bull"
_TEST_TTL_FACTOR: Final = 1_000_000
"""How many times longer keys are kept where a test moves the clock: Redis's own goes on meanwhile, and must not count.
Whoever moves the clock shortens them."""


class Keys:
    """The names of keys under one prefix, and the four arguments that every script begins with."""

    def __init__(self, prefix: str = DEFAULT_PREFIX, *, clock: Clock | None = None) -> None:
        self.prefix = prefix
        self.root = f"{prefix}:"
        self.onward_root = f"onward:{prefix}:"
        self.clock = clock
        self.ttl_factor = 1 if clock is None else _TEST_TTL_FACTOR
        self.leader = f"{self.onward_root}leader"
        self.workers = f"{self.onward_root}workers"
        self.worker_commands = f"{self.onward_root}worker_commands"
        self.queues = f"{self.onward_root}queues"
        self.generation = f"{self.onward_root}generation"
        self.prioritized = f"{self.onward_root}prioritized"
        self.idempotency_keys = f"{self.onward_root}idempotency_keys"
        self.schedules = f"{self.onward_root}schedules"
        self.tokens = f"{self.onward_root}tokens"
        self.tokens_used = f"{self.onward_root}tokens_used"
        self.tokens_revoked = f"{self.onward_root}tokens_revoked"
        self.sessions = f"{self.onward_root}sessions"
        self.sessions_seen = f"{self.onward_root}sessions_seen"
        self.audit = f"{self.onward_root}audit"
        self.audit_records = f"{self.onward_root}audit_records"
        self.audit_counts = f"{self.onward_root}audit_counts"
        self.audit_number = f"{self.onward_root}audit_number"

    def base(self, queue: str) -> str:
        """What all keys of a queue begin with."""
        return f"{self.root}{queue}:"

    def meta(self, queue: str) -> str:
        """The key by which a queue is there."""
        return f"{self.root}{queue}:meta"

    def sessions_of(self, token_id: str) -> str:
        """The key that lists the sessions of a token."""
        return f"{self.onward_root}sessions:{token_id}"

    def script_arguments(self) -> tuple[object, ...]:
        """The arguments that every script begins with: see ``lua/lib/queue.lua``."""
        return ("" if self.clock is None else self.clock.micros(), self.ttl_factor, self.onward_root, self.root)
