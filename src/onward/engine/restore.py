"""A store that was restored or copied: its workers claim nothing until its jobs are confirmed to be run there."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from onward.engine.values import Claims, Exchange, Exchanged

log = logging.getLogger("onward")

REMEDY: Final = "onward doctor --confirm-restore"
RESTORED: Final = (
    "this store is a restored or copied one, and its jobs may run, or have run, where it comes from: workers claim "
    f"nothing until that is confirmed. To run its jobs here: {REMEDY}"
)
WENT_BACK: Final = (
    "the server was promoted or recovered to an earlier point: the last commits may be lost, and jobs that ended in "
    f"them run again. To dismiss this: {REMEDY}"
)
_RETRY_AFTER: Final = 1.0
"""Seconds after which a worker that gets nothing asks again: the confirmation comes from another process."""


class Home(NamedTuple):
    """Where a store is, compared with where it was confirmed to be."""

    is_same: bool
    is_same_timeline: bool = True
    has_jobs: bool = False
    needs_adoption: bool = False
    """Nobody has confirmed it, and nothing is repeated by that."""


class RestoreGuard:
    """Whether the jobs of a store may be claimed. On the way of a claim it costs one flag."""

    def __init__(self) -> None:
        self.may_be_held = True
        """Whether to ask before a claim: until it is known, and while it is held."""
        self._was_told = False
        self._went_back = False

    def update(self, home: Home, store: object) -> bool:
        """Take in where the store is; log it where that has changed. Answers whether its jobs are held."""
        is_held = not home.is_same and home.has_jobs
        went_back = home.is_same and not home.is_same_timeline
        if is_held and not self._was_told:
            log.warning("%s: %s", store, RESTORED)
        if went_back and not self._went_back:
            log.warning("%s: %s", store, WENT_BACK)
        if self._was_told and not is_held:
            log.info("%s: confirmed, claims go on", store)
        self.may_be_held = self._was_told = is_held
        self._went_back = went_back
        return is_held


def no_claims() -> Claims:
    """Answer a claim on a store that is held."""
    return Claims(retry_after=_RETRY_AFTER)


def without_claims(exchanged: Exchanged) -> Exchanged:
    """Answer an exchange on a store that is held: what has ended is recorded, and nothing is claimed."""
    return Exchanged(lost=exchanged.lost, busy=exchanged.busy, claimed=no_claims())


def settle_only(exchange: Exchange) -> Exchange:
    """Leave the claim out of an exchange."""
    return Exchange(settlements=exchange.settlements, starts=exchange.starts, request=None)
