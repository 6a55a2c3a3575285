"""Which queues there are: read from pg-boss, and remembered for a moment.

Node makes and changes queues at any time, so what is remembered is read again after a second, and at once where a name
is not among it. The same look tells of a pg-boss that has been migrated under our hands.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from onward.engine.capabilities import Capabilities, Feature
from onward.engines.pgboss.rows import NO_SETTINGS, CompanionSettings, Queue
from onward.engines.pgboss.statements import Schema
from onward.errors import Unsupported
from onward.pg.plan_runner import Plan
from onward.validation import check_queue_name, matches

_TTL_SECONDS: Final = 1.0
"""Seconds for which a look is trusted: a queue that Node has just made is found within that."""


class SchemaMigrated(Exception):
    """Somebody has migrated pg-boss: look again at what is installed, and start over."""


class QueueCache:
    """The queues of one schema."""

    def __init__(self, schema: Schema, capabilities: Capabilities) -> None:
        self._schema = schema
        self._capabilities = capabilities
        self._queues: Mapping[str, Queue] = {}
        self._settings: Mapping[str, CompanionSettings] = {}
        self._refreshed_at = -_TTL_SECONDS

    def invalidate(self) -> None:
        """Look again before the next answer."""
        self._refreshed_at = -_TTL_SECONDS

    def refresh(self) -> Plan[Mapping[str, Queue]]:
        """Read all queues, those for pg-boss's own use too."""
        rows = yield self._schema.statement("queues")
        if rows and rows[0][-1] != self._schema.probe.version:
            raise SchemaMigrated
        self._queues = {row[0]: Queue(*row[:-1]) for row in rows}
        self._settings = {row[0]: CompanionSettings.of(row) for row in (yield self._schema.statement("queue_settings"))}
        self._refreshed_at = time.monotonic()
        return self._queues

    def cached(self) -> Plan[Mapping[str, Queue]]:
        """Give the queues as they were a moment ago at most."""
        if time.monotonic() - self._refreshed_at >= _TTL_SECONDS:
            yield from self.refresh()
        return self._queues

    def find(self, names: Iterable[str]) -> Plan[Mapping[str, Queue]]:
        """Give these queues; a name that is none is refused, with those that are nearest."""
        wanted = set(names)
        if not wanted <= self._queues.keys() or time.monotonic() - self._refreshed_at >= _TTL_SECONDS:
            yield from self.refresh()
        if missing := sorted(wanted - self._queues.keys()):
            for name in missing:
                check_queue_name(name)
            raise self._unknown_queue(missing[0])
        return self._queues

    def matching(self, patterns: Sequence[str]) -> Plan[list[Queue]]:
        """Give the queues that names and patterns lead to. A name that leads to none may be made yet."""
        queues = yield from self.cached()
        exact_names = {pattern for pattern in patterns if pattern != "*" and not pattern.endswith("/*")}
        if not exact_names <= queues.keys():
            queues = yield from self.refresh()
        return [
            queue
            for queue in queues.values()
            if queue.name in exact_names
            or (not queue.is_internal and any(matches(pattern, queue.name) for pattern in patterns))
        ]

    def policy_of(self, queue: str) -> str | None:
        """Say by which policy a queue was kept a moment ago: that does not change for as long as there is a queue."""
        cached = self._queues.get(queue)
        return None if cached is None else cached.policy

    def lease_of(self, queue: str, requested: timedelta) -> timedelta:
        """Say for how long a silent worker keeps the jobs of a queue."""
        return self.settings_of(queue).lease or requested

    def settings_of(self, queue: str) -> CompanionSettings:
        """Return what Onward keeps about a queue, as it was a moment ago."""
        return self._settings.get(queue) or NO_SETTINGS

    def has_limits(self, patterns: Sequence[str]) -> bool:
        """Say whether any queue that names and patterns match had limits a moment ago."""
        return any(
            settings.is_limited and any(matches(pattern, queue) for pattern in patterns)
            for queue, settings in self._settings.items()
        )

    def _unknown_queue(self, name: str) -> Unsupported:
        near = difflib.get_close_matches(name, [each.name for each in self._queues.values() if not each.is_internal])
        hint = f"did you mean {' or '.join(near)}?" if near else "none has a name like it"
        support = self._capabilities.features[Feature.QUEUES_BY_USE]
        note = f"{support.note} (there is no queue {name!r} in schema {self._schema.name}: {hint})"
        return Unsupported(self._capabilities.engine, Feature.QUEUES_BY_USE, note)
