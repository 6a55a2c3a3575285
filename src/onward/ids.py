"""Job ids: UUIDv7, so that ids made later sort later and land at the end of an index."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import chain
from typing import Final

_noise: list[str] = []
"""Of some single ids to come: to ask the kernel for each takes longer than all the rest."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_noise.clear)
_PLACES: Final = [f"7{place:03x}-8" for place in range(0x1000)]
"""The version and the place within a call; behind them begins the variant."""
_PART: Final = 128
"""Ids that are made at a time; the places are a multiple of it."""


def new_id() -> str:
    """Make one id, all of whose bits behind the time are drawn."""
    try:
        tail = _noise.pop()
    except IndexError:
        tail = _draw()
    head = f"{time.time_ns() // 1_000_000:012x}"
    return f"{head[:8]}-{head[8:]}-{tail}"


def new_ids(count: int) -> list[str]:
    """Make ids that rise within the call."""
    return [new_id()] if count == 1 else list(chain.from_iterable(ids_in_parts(count)))


def ids_in_parts(count: int) -> Iterator[list[str]]:
    """Make ids that rise, some hundred at a time, for those who have more to do with each of them.

    The 12 bits after the version hold the place within the call, so that a batch stays in order; a batch of more than
    4 096 borrows milliseconds from the future, as RFC 9562 allows. Sixty bits are random.
    """
    milliseconds = time.time_ns() // 1_000_000
    for first in range(0, count, _PART):
        borrowed, place = divmod(first, len(_PLACES))
        head, size = _head(milliseconds + borrowed), min(_PART, count - first)
        noise = os.urandom(8 * size).hex()
        yield [
            f"{head}{place}{noise[at : at + 3]}-{noise[at + 3 : at + 15]}"
            for place, at in zip(_PLACES[place : place + size], range(0, 16 * size, 16), strict=True)
        ]


def _head(milliseconds: int) -> str:
    text = f"{milliseconds:012x}"
    return f"{text[:8]}-{text[8:]}-"


def _draw() -> str:
    noise = os.urandom(9 * 64).hex()
    tail, *more = (
        f"7{noise[at : at + 3]}-8{noise[at + 3 : at + 6]}-{noise[at + 6 : at + 18]}" for at in range(0, len(noise), 18)
    )
    _noise.extend(more)
    return tail
