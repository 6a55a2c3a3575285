"""Job ids: UUIDv7, so that ids made later sort later and land at the end of an index."""

from __future__ import annotations

import os
import time


def new_ids(count: int) -> list[str]:
    """Make ids that rise within the call."""
    milliseconds = time.time_ns() // 1_000_000
    entropy = os.urandom(10 * count)
    made = []
    for index in range(count):
        # The 12 bits after the version hold the place within the call, so that a batch stays in order; a batch of more
        # than 4 096 borrows milliseconds from the future, as RFC 9562 allows.
        head = f"{milliseconds + (index >> 12):012x}"
        tail = int.from_bytes(entropy[10 * index + 2 : 10 * index + 10], "big") & 0x3FFF_FFFF_FFFF_FFFF
        text = f"{tail | 0x8000_0000_0000_0000:016x}"
        made.append(f"{head[:8]}-{head[8:]}-7{index & 0xFFF:03x}-{text[:4]}-{text[4:]}")
    return made


def new_id() -> str:
    """Make one id."""
    milliseconds = time.time_ns() // 1_000_000
    value = int.from_bytes(os.urandom(10), "big")
    head = f"{milliseconds:012x}"
    text = f"{(value & 0x3FFF_FFFF_FFFF_FFFF) | 0x8000_0000_0000_0000:016x}"
    return f"{head[:8]}-{head[8:]}-7{(value >> 64) & 0xFFF:03x}-{text[:4]}-{text[4:]}"
