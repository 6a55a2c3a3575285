"""Stores outcomes and takes new jobs at the same time, on two connections.

A statement keeps one processor of the server busy, and a worker under load waits for little else. So where nothing that
has ended changes what there is to take, neither waits for the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from onward.engine.contract import Consumer
from onward.engine.values import Claim, ClaimRequest, Claims, Exchanged, Settlement
from onward.errors import OnwardError
from onward.lifecycle import Release


async def exchange_concurrently(
    engine: Consumer, settlements: Sequence[Settlement], request: ClaimRequest
) -> Exchanged:
    """Settle and claim at the same time."""
    claimed, lost = await asyncio.gather(engine.claim(request), engine.settle(settlements), return_exceptions=True)
    if isinstance(lost, BaseException):
        if not isinstance(claimed, BaseException) and claimed.claims:
            await release_claims(engine, claimed.claims)
        raise lost
    # What has ended is recorded, and must not be said again. Whoever asks next meets the error.
    return Exchanged(lost=lost, claimed=Claims() if isinstance(claimed, BaseException) else claimed)


async def release_claims(engine: Consumer, claims: Sequence[Claim]) -> None:
    """Release jobs that nobody has begun, if the store can be told; otherwise their leases will tell."""
    with suppress(OnwardError):
        await engine.settle([Settlement(claim, Release()) for claim in claims])


async def exchange_in_order(
    engine: Consumer, settlements: Sequence[Settlement], request: ClaimRequest | None
) -> Exchanged:
    """Settle, then claim: what was given back can be taken again."""
    return Exchanged(
        lost=await engine.settle(settlements) if settlements else frozenset(),
        claimed=Claims() if request is None else await engine.claim(request),
    )
