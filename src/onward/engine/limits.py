"""Limits as every store keeps them: the formula of docs/explain/rates.md, in whole microseconds, and its values.

A limited key has one number, the time of its next permit. A permit taken at *now* moves it on by one spacing. The
functions here are pure: a store reads the number, asks, and writes the answer, in one transaction and by its own clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec

from onward.clock import MICROSECOND
from onward.engine.values import Rate
from onward.errors import InvalidValue

MAX_KEY_LENGTH: Final = 255
MAX_CREDIT: Final = 1_000_000
"""The greatest credit of a rate, in microseconds: a permit that was due this long ago is as good as none."""


MISSING: Final = "the limiter's tables are missing in this database: call limiter.install(connection=…) once"


class Pace(NamedTuple):
    """A rate as the formula uses it. Durations are microseconds."""

    spacing: int
    """From one permit to the next; rounded up, so as never to be too fast."""
    credit: int
    """What a late taker may catch up; also the time within which a taken permit must be used."""
    reach: int
    """How far a burst reaches ahead."""

    @classmethod
    def of(cls, rate: Rate) -> Pace:
        """Derive the pace of a rate."""
        spacing = -(-(rate.period + rate.slack) // (MICROSECOND * (rate.count - rate.burst + 1)))
        return cls(spacing, rate.slack // MICROSECOND // 2, (rate.burst - 1) * spacing)

    @property
    def start_within(self) -> float:
        """Seconds from asking for a permit within which it must be used, or given up."""
        return self.credit / 1e6

    def clamp(self, permit_at: int, now: int) -> int:
        """Bring a permit closer that is further away than a full burst: the clock went back, or the rate was raised.

        A store must write the answer: reckoned from now each time, the permit would move away with every look.
        """
        return min(permit_at, now + self.spacing + self.reach)

    def due_at(self, permit_at: int, now: int) -> int:
        """Return when the next permit may be taken; in the past: now."""
        return self.clamp(permit_at, now) - self.reach

    def take(self, permit_at: int, now: int, count: int = 1) -> int:
        """Return the time of the next permit after some have been taken."""
        permit_at = self.clamp(permit_at, now)
        for _ in range(count):
            permit_at = max(permit_at, now - self.credit) + self.spacing
        return permit_at

    def free(self, permit_at: int, now: int, wanted: int) -> int:
        """Count the permits that may be taken now, up to ``wanted``."""
        count = 0
        permit_at = self.clamp(permit_at, now)
        while count < wanted and permit_at - self.reach <= now:
            permit_at = max(permit_at, now - self.credit) + self.spacing
            count += 1
        return count


class Limit(msgspec.Struct, frozen=True):
    """What one key allows: starts over time, permits held at once, or both.

    The limit comes with every call: a changed rate acts on the next permit, and a store keeps no settings.
    """

    key: str
    rate: Rate | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be kept."""
        if not isinstance(self.key, str) or not 0 < len(self.key) <= MAX_KEY_LENGTH or "\0" in self.key:
            rule = f"must be a text of 1 to {MAX_KEY_LENGTH} characters without NUL"
            raise InvalidValue("limit.key", self.key, rule)
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise InvalidValue("limit.rate", self.rate, "must be a Rate, such as Rate(600, timedelta(minutes=1))")
        if self.concurrency is not None and (type(self.concurrency) is not int or self.concurrency < 1):
            raise InvalidValue("limit.concurrency", self.concurrency, "must be a whole number of at least 1, or None")


class Permits(msgspec.Struct, frozen=True):
    """The answer of a limiter: permits for all keys, or for none."""

    count: int
    """Permits taken of each key; 0: none."""
    retry_after: timedelta | None = None
    """Where none were taken: when to ask again."""
    start_within: timedelta | None = None
    """Use them within this time of asking, or give them up; None: no key has a rate."""
    holder: str | None = None
    """By which concurrency permits are held."""
    taken: Mapping[str, Any] = {}
    """What :meth:`Limiter.give_up` needs: per key with a rate, its next permit before and after."""
    held: tuple[str, ...] = ()
    """The keys with a concurrency of which the holder has a permit."""

    @property
    def granted(self) -> bool:
        """Whether permits were taken."""
        return self.count > 0

    def __bool__(self) -> bool:
        """Say whether permits were taken."""
        return self.granted


def check_limits(limits: Any) -> list[Limit]:
    """Refuse what is no list of limits with different keys."""
    found = list(limits)
    for limit in found:
        if not isinstance(limit, Limit):
            raise InvalidValue("limits", limit, "must be of Limit(key, rate=…, concurrency=…)")
    keys = [limit.key for limit in found]
    if len(set(keys)) != len(keys):
        raise InvalidValue("limits", keys, "must name each key once")
    return found


def limits_json(limits: list[Limit]) -> str:
    """Write limits for the store's own function."""
    return msgspec.json.encode(
        [
            {
                "key": limit.key,
                "concurrency": limit.concurrency,
                **(
                    {}
                    if limit.rate is None
                    else {
                        "count": limit.rate.count,
                        "period": limit.rate.period // MICROSECOND,
                        "burst": limit.rate.burst,
                    }
                ),
            }
            for limit in limits
        ]
    ).decode()
