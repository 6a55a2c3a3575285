"""Draws the number that names a claim for ever, for engines that do not leave this to their server."""

from __future__ import annotations

import secrets
import time
from typing import Final

RANDOM_BITS: Final = 21


def new_claim_no() -> int:
    """Draw a number of 63 bits: milliseconds since 1970, then random bits.

    It is not counted in the store, which repeats its counts after a restore: a worker from before would record its
    outcome for another job. The time makes later claims of a job compare higher; the random part makes the number
    unique even where a clock was set back.
    """
    return (time.time_ns() // 1_000_000) << RANDOM_BITS | secrets.randbits(RANDOM_BITS)
