"""Job ids: UUIDv7, so that ids made later sort later and land at the end of an index."""

from __future__ import annotations

import os
import struct
import time

_ONE = 0xFFF_3FFF_FFFF_FFFF_FFFF
"""The bits of one id that are drawn: its place, and all behind the variant."""


def new_ids(count: int) -> list[str]:
    """Make ids that rise within the call.

    The 12 bits after the version hold the place within the call, so that a batch stays in order; a batch of more than
    4 096 borrows milliseconds from the future, as RFC 9562 allows. A call for one id draws them at random.
    """
    milliseconds = time.time_ns() // 1_000_000
    if count == 1:
        head, tail = f"{milliseconds:012x}", f"{int.from_bytes(os.urandom(10)) & _ONE | 0x8000 << 48:019x}"
        return [f"{head[:8]}-{head[8:]}-7{tail[:3]}-{tail[3:7]}-{tail[7:]}"]
    noise = struct.unpack(f"{count}Q", os.urandom(8 * count))
    made: list[str] = []
    for start in range(0, count, 0x1000):
        head = f"{milliseconds + start // 0x1000:012x}"
        form = f"{head[:8]}-{head[8:]}-7%03x-%04x-%012x"
        made += [
            form % (place, random & 0x3FFF | 0x8000, random >> 16)
            for place, random in enumerate(noise[start : start + 0x1000])
        ]
    return made
