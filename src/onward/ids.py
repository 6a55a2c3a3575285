"""Job ids: UUIDv7, so that ids made later sort later and land at the end of an index."""

from __future__ import annotations

import os
import time

_VARIANTS = "89ab" * 4


def new_ids(count: int) -> list[str]:
    """Make ids that rise within the call.

    The 12 bits after the version hold the place within the call, so that a batch stays in order; a batch of more than
    4 096 borrows milliseconds from the future, as RFC 9562 allows. A call for one id draws them at random.
    """
    milliseconds = time.time_ns() // 1_000_000
    entropy = os.urandom(8 * count + 2).hex()
    first = int(entropy[-3:], 16) if count == 1 else 0
    head, made = "", []
    for index in range(count):
        if index & 0xFFF == 0:
            head = f"{milliseconds + (index >> 12):012x}"
            head = f"{head[:8]}-{head[8:]}-7"
        tail = entropy[16 * index : 16 * index + 16]
        variant = _VARIANTS[int(tail[0], 16)]
        made.append(f"{head}{(index + first) & 0xFFF:03x}-{variant}{tail[1:4]}-{tail[4:]}")
    return made
