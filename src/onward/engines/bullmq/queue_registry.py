"""Which queues there are, and which of them a name or a pattern means (X5).

Onward registers the queues that it adds jobs to, and those that it serves while they have active jobs, in a set, with a
counter that every change increments: a claim returns the counter, and an engine that sees another value reads the set
again, so the next claim finds a queue made a moment ago. The leader removes a queue that has no jobs left. Queues that
only Node knows are found by scanning for their ``meta`` keys, every few seconds, where a pattern is asked for.

A new queue's name is one that every engine takes. A name that exists in Redis is taken as it is; ``:`` is in none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from time import monotonic
from typing import Final

from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.plan_runner import Plan
from onward.errors import InvalidValue
from onward.validation import check_queue_name, matches

_SCAN_INTERVAL: Final = 5.0
"""Seconds between looks for queues that others made: as late as one may be found."""
_SCAN_COST_FACTOR: Final = 20
"""Of the time, at most one part in so many goes into looking: a Redis with millions of keys is looked through less
often."""
_NO_COLON: Final = "must not contain ':', which parts BullMQ's keys"
_GLOB_SPECIAL = re.compile(r"([\\*?\[\]])")


def is_pattern(text: str) -> bool:
    """Say whether a text means several queues."""
    return text == "*" or text.endswith("/*")


class QueueRegistry:
    """The names of queues, as far as one engine knows them."""

    def __init__(self, keys: Keys, *, can_scan: bool = True) -> None:
        self._keys = keys
        self.can_scan = can_scan
        """Whether queues are also found by their keys; not on a cluster."""
        self._registered: set[str] = set()
        self._scanned: set[str] = set()
        self._accepted: set[str] = set()
        """Names that no engine of ours would give, and that exist."""
        self._next_scan_at = 0.0
        self._matching: dict[tuple[str, ...], list[str]] = {}
        self.generation = -1
        """The counter's value when the names were last read."""

    def check(self, names: Iterable[str]) -> Plan[None]:
        """Refuse names that are neither such as a new queue may have nor those of a queue that exists."""
        for name in names:
            if name not in self._accepted:
                yield from self._check(name)

    def _check(self, name: str) -> Plan[None]:
        try:
            check_queue_name(name)
        except InvalidValue as error:
            if ":" in name:
                raise InvalidValue("queue", name, _NO_COLON) from None
            refusal = error
        else:
            self._accepted.add(name)
            return
        (exists,) = yield [("EXISTS", self._keys.meta(name))]
        if not exists:
            raise refusal
        self._accepted.add(name)

    def matching(self, patterns: tuple[str, ...]) -> Plan[list[str]]:
        """List the queues that names and patterns mean, in the order of their names."""
        for pattern in patterns:
            if ":" in pattern:
                raise InvalidValue("queue", pattern, _NO_COLON)
        if not any(is_pattern(pattern) for pattern in patterns):
            return sorted(set(patterns))
        if self.generation < 0:
            yield from self.refresh()
        if self.can_scan and monotonic() >= self._next_scan_at:
            yield from self._scan()
        found = self._matching.get(patterns)
        if found is None:
            named = {pattern for pattern in patterns if not is_pattern(pattern)}
            all_names = self._registered | self._scanned
            found = sorted(named | {name for name in all_names if any(matches(pattern, name) for pattern in patterns)})
            self._matching[patterns] = found
        return found

    def refresh(self) -> Plan[None]:
        """Read the names of the queues that Onward serves."""
        generation, registered = yield [("GET", self._keys.generation), ("SMEMBERS", self._keys.queues)]
        self.generation = int(generation or 0)
        self._registered = set(registered)
        self._matching.clear()

    def registered(self) -> Plan[list[str]]:
        """List the queues that Onward serves, by all its workers and producers."""
        (generation,) = yield [("GET", self._keys.generation)]
        if int(generation or 0) != self.generation:
            yield from self.refresh()
        return sorted(self._registered)

    def all_names(self) -> Plan[list[str]]:
        """List all queues there are."""
        yield from self.refresh()
        if self.can_scan and monotonic() >= self._next_scan_at:
            yield from self._scan()
        return sorted(self._registered | self._scanned)

    def _scan(self) -> Plan[None]:
        began = monotonic()
        root = self._keys.root
        pattern = _GLOB_SPECIAL.sub(r"\\\1", root) + "*:meta"
        found: set[str] = set()
        cursor = "0"
        while True:
            ((cursor, found_keys),) = yield [("SCAN", cursor, "MATCH", pattern, "COUNT", 1000, "TYPE", "hash")]
            found.update(name for key in found_keys if ":" not in (name := key[len(root) : -5]))
            if str(cursor) == "0":
                break
        if found != self._scanned:
            self._scanned = found
            self._matching.clear()
        self._next_scan_at = monotonic() + max(_SCAN_INTERVAL, (monotonic() - began) * _SCAN_COST_FACTOR)
