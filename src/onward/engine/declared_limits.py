"""Rates and concurrencies that tasks declare for their queues: ``@app.task(queue="mail/{org_id}", rate="100/min")``.

A declaration names a queue, or all queues of a template. The engine's wrapper applies it to a queue before the first
job that this process enqueues there; a worker applies it to the queues that exist when it starts, and to those that
other programs create later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import UNSET

from onward.engine.values import QueueChange, QueueSettings, Rate
from onward.errors import InvalidValue

ORG: Final = "{org_id}"
"""What stands for the organisation in the name of a task's queue."""


class Limits(msgspec.Struct, frozen=True):
    """The limits of one queue, or of each queue of a template; None: not declared."""

    rate: Rate | None = None
    concurrency: int | None = None

    def change_of(self, settings: QueueSettings, *, replaces: bool) -> QueueChange | None:
        """Return what has to change in a queue's settings; None: nothing.

        ``replaces``: whether limits that the queue has already are replaced by those that are declared.
        """
        rate = self.rate if self.rate is not None and (settings.rate is None or replaces) else settings.rate
        has_concurrency = self.concurrency is not None and (settings.global_concurrency is None or replaces)
        concurrency = self.concurrency if has_concurrency else settings.global_concurrency
        if (rate, concurrency) == (settings.rate, settings.global_concurrency):
            return None
        return QueueChange(
            rate=UNSET if rate == settings.rate else rate,
            global_concurrency=UNSET if concurrency == settings.global_concurrency else concurrency,
        )


class DeclaredLimits:
    """The limits that the tasks of an App declare, by the name or template of their queue."""

    def __init__(self) -> None:
        self._by_template: dict[str, tuple[re.Pattern[str], Limits]] = {}

    def __bool__(self) -> bool:
        """Whether any are declared."""
        return bool(self._by_template)

    @property
    def names(self) -> list[str]:
        """The queues that are named in full."""
        return [template for template in self._by_template if ORG not in template]

    @property
    def has_templates(self) -> bool:
        """Whether a declaration is about more than one queue."""
        return len(self.names) < len(self._by_template)

    def declare(self, template: str, limits: Limits) -> None:
        """Add a declaration.

        Raises:
            InvalidValue: another task declares another limit for the same queue.
        """
        _, known = self._by_template.get(template, (None, Limits()))
        for field in Limits.__struct_fields__:
            one, other = getattr(known, field), getattr(limits, field)
            if one is not None and other is not None and one != other:
                raise InvalidValue(field, other, f"queue {template} has {one} by another task: a queue has one {field}")
        merged = Limits(limits.rate or known.rate, limits.concurrency or known.concurrency)
        if merged != Limits():
            pattern = "[^/]+".join(map(re.escape, template.split(ORG)))
            self._by_template[template] = re.compile(pattern), merged

    def of(self, queue: str) -> Limits | None:
        """Return the limits that are declared for a queue; None: none."""
        for pattern, limits in self._by_template.values():
            if pattern.fullmatch(queue):
                return limits
        return None

    def limited(self, queues: Iterable[str]) -> dict[str, Limits]:
        """Choose the queues for which limits are declared."""
        return {queue: limits for queue in queues if (limits := self.of(queue)) is not None}
