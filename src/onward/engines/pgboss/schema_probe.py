"""What pg-boss has made here. Its schema changes with nearly every release, so we look instead of trusting a number.

Versions 21 to 46 (pg-boss 10.0 to 12.38) are known to work. A later one is taken with a warning if what we need is
there: releases of pg-boss add columns and seldom take one away.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from onward.errors import SchemaTooNew, SchemaTooOld
from onward.pg.plan_runner import Row

log = logging.getLogger("onward.engines.pgboss")

MIN_VERSION: Final = 21
MAX_TESTED_VERSION: Final = 46
"""Of what has been tried against the real pg-boss."""

_REQUIRED_COLUMNS: Final = frozenset(
    {"job.id", "job.name", "job.priority", "job.data", "job.state", "job.retry_limit", "job.retry_count",
     "job.retry_delay", "job.retry_backoff", "job.start_after", "job.started_on", "job.singleton_key",
     "job.singleton_on", "job.created_on", "job.completed_on", "job.keep_until", "job.output", "job.dead_letter",
     "job.policy", "queue.name", "queue.policy", "queue.retry_limit", "queue.retry_delay", "queue.retry_backoff",
     "queue.expire_seconds", "queue.dead_letter", "queue.updated_on"}
)  # fmt: skip
_LATER_POLICIES: Final = ("exclusive", "key_strict_fifo")
"""Those that came after pg-boss 10, each with an index that holds it."""
_FETCH_INDEX: Final = "(name, priority DESC, created_on"
_STATE_INDEX: Final = "(name, state, blocked, start_after)"


class SchemaProbe:
    """A schema of pg-boss's, by what is in it."""

    def __init__(self, version: int, found: Sequence[Row]) -> None:
        self.version = version
        functions = {name for kind, name in found if kind == "function"}
        # One that Node drops while we look has a row, and no definition any more.
        indexes = {name for kind, name in found if kind == "index" and name is not None}
        self._features = {name for kind, name in found if kind == "column"}
        if any(index.startswith(_FETCH_INDEX) for index in indexes):
            self._features.add("index.fetch_order")
        if any(index.startswith(_STATE_INDEX) for index in indexes):
            self._features.add("index.by_state")
        self._features.update(
            f"policy.{policy}" for policy in _LATER_POLICIES if any(f"'{policy}'" in each for each in indexes)
        )
        if any(name.startswith("create_queue(") and "jsonb" in name for name in functions):
            self._features.add("function.jsonb")
        if "job_now()" in functions:
            self._features.add("function.job_now")

    def has(self, name: str) -> bool:
        """Say whether something is there: ``job.heartbeat_on``, ``index.by_state``, ``policy.exclusive``."""
        return name in self._features

    def check(self, store: str) -> None:
        """Refuse what we cannot work with, and say so where we have not tried."""
        if self.version < MIN_VERSION:
            message = (
                f"{store} has schema {self.version} of pg-boss, which is older than pg-boss 10: upgrade pg-boss there"
            )
            raise SchemaTooOld(message)
        if missing := sorted(_REQUIRED_COLUMNS - self._features):
            message = (
                f"{store} has schema {self.version} of pg-boss, where {', '.join(missing)} is missing: "
                "upgrade Onward here, or pin pg-boss to a version that it knows"
            )
            raise SchemaTooNew(message)
        if warning := self.warning:
            log.warning("%s: %s", store, warning)

    @property
    def warning(self) -> str | None:
        """What there is to say of a version that we have not tried."""
        if self.version <= MAX_TESTED_VERSION:
            return None
        return (
            f"schema {self.version} of pg-boss is newer than {MAX_TESTED_VERSION}, the newest that Onward was tried "
            "on; what it needs is there, so it goes on"
        )
